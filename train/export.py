"""Weights to and from a folder in the released layout (bf16 safetensors)."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.config import ModelConfig
from train import nano


def save(out: Path, c: ModelConfig, parts: dict[str, Tensor]) -> None:
    """Write a folder that NextFit and transformers load."""
    nano.write_folder(out)
    tensors: dict[str, Tensor] = {}
    for layer in c.ple_layers:
        h, p = ngram_hash(c, layer), f"model.layers.{layer}.ple.ple_embedding."
        tensors[p + "layer_multipliers"] = torch.tensor(h.multipliers)
        tensors[p + "ngram_heads_offsets"] = torch.tensor(h.offsets)
        tensors[p + "ngram_heads_vocab_sizes"] = torch.tensor(h.sizes)
    for name, part in parts.items():
        x = part.detach().to("cpu", torch.bfloat16)
        full = name if name.startswith(("mtp.", "lm_head.")) else f"model.{name}"
        if name.endswith("experts.gate_proj"):
            up = parts[name.replace("gate_proj", "up_proj")].detach().to("cpu", torch.bfloat16)
            tensors[full.replace("gate_proj", "gate_up_proj")] = torch.cat([x, up], 1)
        elif name.endswith("ngram_embedding"):
            for k, shard in enumerate(x.tensor_split(c.split_ngram_parts)):
                tensors[f"{full}.shard_{k}.weight"] = shard.contiguous()
        elif name.endswith("conv1d.weight"):
            tensors[full] = x[:, None]
        elif not name.endswith("experts.up_proj"):
            tensors[full] = x
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)


def load(folder: Path, c: ModelConfig, device: str) -> dict[str, Tensor]:
    """Parts in float32 from what `save` wrote."""
    tensors = {
        k.removeprefix("model."): v for k, v in load_file(folder / "model.safetensors", device).items()
    }
    out: dict[str, Tensor] = {}
    for name, x in tensors.items():
        if x.dtype == torch.int64:
            continue
        x = x.float()
        if name.endswith("gate_up_proj"):
            gate, up = x.chunk(2, 1)
            out[name.replace("gate_up", "gate")] = gate.contiguous()
            out[name.replace("gate_up", "up")] = up.contiguous()
        elif ".shard_" in name:
            base, _, number = name.removesuffix(".weight").rpartition(".shard_")
            if number == "0":
                shards = [tensors[f"{base}.shard_{k}.weight"] for k in range(c.split_ngram_parts)]
                out[base] = torch.cat(shards).float()
        else:
            out[name] = x[:, 0].contiguous() if name.endswith("conv1d.weight") else x
    return out
