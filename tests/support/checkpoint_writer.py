"""Small checkpoints on disk in every Hugging Face layout that is read, and the means to damage them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.config import ModelConfig

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6.0])
Experts = Literal["fused", "each"]
Quant = Literal["fp8", "modelopt", "compressed-tensors"]


def config_json(c: ModelConfig, nested: bool = False) -> dict[str, Any]:
    """`config.json` of `c` as the released checkpoint (nested) or a text-only one writes it."""
    text = {k: v for k, v in asdict(c).items() if k not in ("rotary_dim", "rope_theta", "ple_layers")}
    del text["value_heads_tiled"]
    text |= {
        "model_type": "qwen4_exp_text",
        "layer_types": list(c.layer_types),
        "ple_layer_ids": [i + 1 for i in c.ple_layers],
        "indexer_kv_heads": 1,
        "hidden_act": "silu",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": c.rope_theta,
            "partial_rotary_factor": c.rotary_dim / c.head_dim,
            "mrope_interleaved": True,
        },
    }
    if not nested:
        return {"architectures": ["Qwen4ExpForCausalLM"], **text}
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text,
        "vision_config": {"model_type": "qwen4_exp_vision"},
    }


def write_safetensors(file: Path, tensors: dict[str, Tensor], header: dict[str, Any] | None = None) -> None:
    """A safetensors file; `header` replaces the true one (with the same data)."""
    entries, blobs, at = {}, [], 0
    for name, x in tensors.items():
        blob = x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        entries[name] = {
            "dtype": DTYPES[x.dtype],
            "shape": list(x.shape),
            "data_offsets": [at, at + len(blob)],
        }
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(entries if header is None else header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def nvfp4(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[rows, columns] -> codes U8 [rows, columns / 2], scales E4M3 [rows, columns / 16], scale_2 F32 []."""
    blocks = w.float().reshape(len(w), -1, 16)
    second = w.abs().max().float() / (6 * 448)
    scale = (blocks.abs().amax(-1) / (6 * second)).to(torch.float8_e4m3fn)
    each = (scale.float() * second)[..., None].clamp(min=1e-30)
    code = (blocks.abs()[..., None] / each[..., None] - E2M1).abs().argmin(-1) + 8 * (blocks < 0)
    code = code.reshape(len(w), -1).to(torch.uint8)
    return code[:, 0::2] | (code[:, 1::2] << 4), scale, second


def fp8_blocks(w: Tensor) -> tuple[Tensor, Tensor]:
    """[..., rows, columns] -> E4M3 codes and one scale (float32) for each 128 x 128 of them."""
    rows, columns = w.shape[-2:]
    padded = torch.nn.functional.pad(w.float(), (0, -columns % 128, 0, -rows % 128))
    tiles = padded.unflatten(-1, (-1, 128)).unflatten(-3, (-1, 128))
    scale = tiles.abs().amax((-1, -3)) / 448
    codes = (tiles / scale[..., None, :, None]).flatten(-2).flatten(-3, -2)
    return codes[..., :rows, :columns].to(torch.float8_e4m3fn), scale


def _quantise(name: str, w: Tensor, style: Quant) -> dict[str, Tensor]:
    """The tensors of weight `name` (without `.weight`)."""
    if style == "fp8":
        codes, scale = fp8_blocks(w)
        return {f"{name}.weight": codes, f"{name}.weight_scale_inv": scale.to(torch.bfloat16)}
    codes, scale, second = nvfp4(w)
    if style == "modelopt":
        return {
            f"{name}.weight": codes,
            f"{name}.weight_scale": scale,
            f"{name}.weight_scale_2": second,
            f"{name}.input_scale": torch.tensor(1 / 64),
        }
    return {
        f"{name}.weight_packed": codes,
        f"{name}.weight_scale": scale,
        f"{name}.weight_global_scale": (1 / second).reshape(1),
        f"{name}.input_global_scale": torch.tensor([64.0]),
    }


def _experts(
    parts: dict[str, Tensor], prefix: str, layout: Experts, quant: Quant | None
) -> dict[str, Tensor]:
    """Expert tensors of the layer `prefix` (`layers.0.mlp.experts`)."""
    out: dict[str, Tensor] = {}
    gate, up, down = (parts[f"{prefix}.{n}_proj"] for n in ("gate", "up", "down"))
    if layout == "fused":
        fused = {"gate_up_proj": torch.cat([gate, up], 1), "down_proj": down}
        if quant is None:
            return {f"{prefix}.{n}": x for n, x in fused.items()}
        assert quant == "fp8", "NVFP4 checkpoints have one tensor per expert"
        for name, x in fused.items():
            codes, scale = fp8_blocks(x)
            out |= {f"{prefix}.{name}": codes, f"{prefix}.{name}_scale_inv": scale.to(torch.bfloat16)}
        return out
    for name, x in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
        for e, w in enumerate(x):
            one = f"{prefix}.{e}.{name}"
            out |= {f"{one}.weight": w} if quant is None else _quantise(one, w, quant)
    return out


def _table(name: str, x: Tensor, shards: int, fp8: bool) -> dict[str, Tensor]:
    """`shards` tensors of rows, 0 for one tensor."""
    scale = (x.abs().max() / 448).to(torch.bfloat16)
    if fp8:
        x = (x / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    out = {f"{name}.weight_scale": scale.reshape(1)} if fp8 else {}
    if not shards:
        return {f"{name}.weight": x, **out}
    rows = -(-len(x) // shards)
    return out | {f"{name}.shard_{i}.weight": x[i * rows : (i + 1) * rows] for i in range(shards)}


def tensors(
    c: ModelConfig,
    parts: dict[str, Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    prefix: str = "model.",
    experts: Experts = "fused",
    table_shards: int = 4,
    mtp: bool = True,
    vision: bool = False,
    constants: bool = True,
    quant: Quant | None = None,
) -> dict[str, Tensor]:
    """File name -> values of a checkpoint with the parts of `tests.support.random_model.random_parts`."""
    out: dict[str, Tensor] = {}
    parts = {k: v.to(dtype) for k, v in parts.items() if mtp or not k.startswith("mtp.")}
    for name, x in parts.items():
        at = "" if name.startswith(("mtp.", "lm_head")) else prefix
        if name.endswith(".experts.gate_proj"):
            style = None if at == "" else quant
            own = _experts(parts, name.removesuffix(".gate_proj"), experts, style)
            out |= {at + k: v for k, v in own.items()}
        elif name.endswith("ngram_embedding"):
            out |= {at + k: v for k, v in _table(name, x, table_shards, quant is not None).items()}
        elif ".experts." not in name:
            linear = name.endswith("_proj.weight") and ".indexer." not in name and ".ple." not in name
            if quant == "fp8" and at and linear:
                out |= _quantise(at + name.removesuffix(".weight"), x, quant)
            else:
                out[at + name] = x[:, None] if "conv1d" in name else x
    for layer in c.ple_layers if constants else ():
        h, p = ngram_hash(c, layer), f"{prefix}layers.{layer}.ple.ple_embedding."
        out[p + "layer_multipliers"] = torch.tensor(h.multipliers)
        out[p + "ngram_heads_offsets"] = torch.tensor(h.offsets)
        out[p + "ngram_heads_vocab_sizes"] = torch.tensor(h.sizes)
    if vision:
        out["model.visual.patch_embed.proj.weight"] = torch.zeros(4, 3, dtype=dtype)
    return out


def write_checkpoint(
    folder: Path,
    c: ModelConfig,
    found: dict[str, Tensor],
    *,
    files: int = 1,
    nested: bool = False,
    quantization: dict[str, Any] | None = None,
) -> Path:
    """A checkpoint folder of `files` safetensors files (with an index if more than one)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config_json(c, nested)
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    if files == 1:
        write_safetensors(folder / "model.safetensors", found)
        return folder
    index: dict[str, str] = {}
    names = list(found)
    for i in range(files):
        file = f"model-{i + 1:05d}-of-{files:05d}.safetensors"
        some = {n: found[n] for n in names[i::files]}
        write_safetensors(folder / file, some)
        index |= dict.fromkeys(some, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder
