"""Checkpoints of the released model's size without its values: whole headers, and holes for the data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path

from nextfit.checkpoint.names import Kind, draft_slots, trunk_slots
from nextfit.config import ModelConfig
from tests.support.checkpoint_writer import config_json
from tests.support.random_model import small_config

RELEASED = small_config(
    hidden_size=2560,
    num_hidden_layers=48,
    vocab_size=248320,
    max_position_embeddings=262144,
    num_attention_heads=24,
    head_dim=256,
    rotary_dim=64,
    indexer_n_heads=4,
    indexer_head_dim=128,
    indexer_budget=2048,
    linear_num_key_heads=16,
    linear_num_value_heads=48,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    num_experts=512,
    num_experts_per_tok=10,
    moe_intermediate_size=640,
    shared_expert_intermediate_size=640,
    hc_lowrank=320,
    ple_embed_dim=2560,
    heads_per_ngram=8,
    ngram_vocab_size_base=20000000,
    split_ngram_parts=128,
    eos_token_id=248044,
    dtype="bfloat16",
)
SIZES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}
Entry = tuple[str, tuple[int, ...]]  # dtype and shape


def part_shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Part name -> shape; expert projections are [experts, rows, columns]."""
    out = {}
    for slot in (*trunk_slots(c), *draft_slots(c)):
        axis = len(slot.shape) - 2 if slot.kind in (Kind.MATRIX, Kind.EXPERTS) else 0
        for part in slot.parts:
            out[part.name] = (*slot.shape[:axis], part.rows, *slot.shape[axis + 1 :])
    return out


def _experts(name: str, shape: tuple[int, ...], nvfp4: bool) -> Iterator[tuple[str, Entry]]:
    """Tensors of `...experts.up_proj` [experts, rows, columns], one set for each expert."""
    prefix, _, projection = name.rpartition(".")
    rows, columns = shape[1:]
    for e in range(shape[0]):
        one = f"{prefix}.{e}.{projection}."
        if not nvfp4:
            yield one + "weight", ("BF16", (rows, columns))
            continue
        yield one + "weight", ("U8", (rows, columns // 2))
        yield one + "weight_scale", ("F8_E4M3", (rows, columns // 16))
        yield one + "weight_scale_2", ("F32", ())
        yield one + "input_scale", ("F32", ())


def _fused(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Entry]]:
    prefix, _, projection = name.rpartition(".")
    if projection == "down_proj":
        yield name, ("BF16", shape)
    elif projection == "gate_proj":
        yield f"{prefix}.gate_up_proj", ("BF16", (shape[0], 2 * shape[1], shape[2]))


def _table(name: str, shape: tuple[int, ...], shards: int, fp8: bool) -> Iterator[tuple[str, Entry]]:
    rows = shape[0] // shards
    for i in range(shards):
        yield f"{name}.shard_{i}.weight", ("F8_E4M3" if fp8 else "BF16", (rows, shape[1]))
    if fp8:
        yield f"{name}.weight_scale", ("BF16", (1,))


def entries(c: ModelConfig, nvfp4: bool) -> dict[str, Entry]:
    """Tensor name -> dtype and shape of the BF16 release, or of the ModelOpt NVFP4 conversion of it (spec/gguf.md
    section 7: experts NVFP4 and one by one, the table FP8, the rest and the draft head BF16). No hash constants."""
    out: dict[str, Entry] = {}
    for name, shape in part_shapes(c).items():
        draft = name.startswith("mtp.")
        full = name if draft or name.startswith("lm_head") else f"model.language_model.{name}"
        if ".mlp.experts." in name:
            each = nvfp4 and not draft
            out |= dict(_experts(full, shape, nvfp4) if each else _fused(full, shape))
        elif name.endswith("ngram_embedding"):
            out |= dict(_table(full, shape, c.split_ngram_parts, nvfp4))
        else:
            out[full] = ("BF16", (shape[0], 1, shape[1]) if "conv1d" in name else shape)
    return out


def _write_file(file: Path, tensors: dict[str, Entry]) -> None:
    """Tensors by element size and name, as the safetensors library orders them; the data is one hole."""
    header, at = {}, 0
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda t: (-SIZES[t[1][0]], t[0])):
        end = at + prod(shape) * SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + at)


def write_released(folder: Path, nvfp4: bool, shards: int = 206) -> Path:
    """A folder of `shards` files with an index, as `save_pretrained` writes it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_json(RELEASED, nested=True)))
    tensors = entries(RELEASED, nvfp4)
    each = sum(prod(shape) * SIZES[dtype] for dtype, shape in tensors.values()) / shards
    files: list[dict[str, Entry]] = [{}]
    size = 0
    for name, (dtype, shape) in tensors.items():
        if size >= each * len(files):
            files.append({})
        files[-1][name] = (dtype, shape)
        size += prod(shape) * SIZES[dtype]
    index: dict[str, str] = {}
    for i, some in enumerate(files):
        name = f"model-{i + 1:05d}-of-{len(files):05d}.safetensors"
        _write_file(folder / name, some)
        index |= dict.fromkeys(some, name)
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": index}, indent=2)
    (folder / "model.safetensors.index.json").write_text(text)
    return folder
