"""Every way a safetensors checkpoint can be wrong, and what its refusal must say."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.checkpoint_writer import nvfp4
from tests.support.damage import (
    L0,
    L1,
    TABLE,
    Case,
    Model,
    drop,
    edit_bytes,
    edit_header,
    model,
    nan_at,
    put,
    set_field,
)

Q = L1 + "self_attn.q_proj.weight"
UP0 = L0 + "mlp.experts.0.up_proj."
EXPERT = L0 + "mlp.experts."
FILE = "model.safetensors"


def _write(file: str, text: str) -> Any:
    return lambda folder: (folder / file).write_text(text)


def _sharded() -> Model:
    return model(files=3)


def _index(change: Callable[[dict[str, Any]], object]) -> Any:
    def after(folder: Path) -> None:
        file = folder / "model.safetensors.index.json"
        found = json.loads(file.read_text())
        change(found)
        file.write_text(json.dumps(found))

    return after


def _second_copy(folder: Path) -> None:
    (folder / "other.safetensors").write_bytes((folder / "model.safetensors").read_bytes())


def _folder_for_file(folder: Path) -> None:
    (folder / FILE).unlink()
    (folder / FILE).mkdir()


def _long_header(folder: Path) -> None:
    with (folder / FILE).open("r+b") as f:
        f.write(struct.pack("<Q", 100_000_001))
        f.truncate(200_000_000)


def _double_key(raw: bytes) -> bytes:
    (length,) = struct.unpack("<Q", raw[:8])
    header = raw[8 : 8 + length].rstrip()
    again = header[:-1] + b', "lm_head.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}'
    return struct.pack("<Q", len(again)) + again + raw[8 + length :]


def _modelopt() -> Model:
    return model("modelopt")


def _compressed() -> Model:
    return model("compressed-tensors")


def _fp8() -> Model:
    return model("fp8")


def _shift(header: dict[str, Any], by: int) -> None:
    """Move one tensor in the data, length kept."""
    entry = header[L0 + "linear_attn.dt_bias"]
    entry["data_offsets"] = [x + by for x in entry["data_offsets"]]


def _method(method: str, **more: object) -> Any:
    return lambda m: m.config.__setitem__("quantization_config", {"quant_method": method, **more})


def _fp8_norm(m: Model) -> None:
    m.tensors[L0 + "ple.norm_key.weight"] = torch.zeros(128).to(torch.float8_e4m3fn)
    m.tensors[L0 + "ple.norm_key.weight_scale"] = torch.ones(1)


def _int4(m: Model) -> None:
    m.tensors[Q + "_packed"] = m.tensors.pop(Q)[:, :4].to(torch.int32)
    m.tensors[Q + "_scale"] = torch.ones(256, 1)
    m.tensors[Q + "_shape"] = torch.tensor([256, 32])


def _mxfp8(m: Model) -> None:
    m.tensors[Q] = m.tensors[Q].to(torch.float8_e4m3fn)
    m.tensors[Q + "_scale"] = torch.full((256, 1), 127, dtype=torch.uint8)


def _nvfp4_table(m: Model) -> None:
    for i in (0, 1):
        name = f"{TABLE}.shard_{i}.weight"
        rows = torch.nn.functional.pad(m.tensors[name], (0, 12))
        m.tensors[name], m.tensors[name + "_scale"], m.tensors[name + "_scale_2"] = nvfp4(rows)


HEADER = [
    Case("no such path", ("no such file or folder",), path="nothing"),
    Case("no config", ("config.json", "cannot be read"), after=lambda f: (f / "config.json").unlink()),
    Case("config no JSON", ("config.json", "no valid JSON"), after=_write("config.json", "{")),
    Case("config no object", ("config.json", "holds a list"), after=_write("config.json", "[]")),
    Case(
        "config too long", ("config.json", "expected at most"), after=_write("config.json", " " * (65 << 20))
    ),
    Case("config twice", ("seed is there twice",), after=_write("config.json", '{"seed": 1, "seed": 2}')),
    Case("config nested", ("no valid JSON",), after=_write("config.json", "[" * 100_000)),
    Case("no tensors", ("no safetensors file",), after=lambda f: (f / FILE).unlink()),
    Case("a draft apart", ("no such file",), path="draft.gguf"),
    Case("empty file", (FILE, "truncated or damaged"), after=edit_bytes(lambda _: b"")),
    Case("header past the end", (FILE, "truncated"), after=edit_bytes(lambda b: b"\xff" * 8 + b[8:])),
    Case(
        "header a little short",
        (FILE, "no JSON object"),
        after=edit_bytes(lambda b: bytes([b[0] - 8]) + b[1:]),
    ),
    Case("header a little long", (FILE,), after=edit_bytes(lambda b: bytes([b[0] + 8]) + b[1:])),
    Case("header no JSON", (FILE, "no valid JSON"), after=edit_bytes(lambda b: b[:9] + b"\x00" + b[10:])),
    Case("header no object", (FILE, "no JSON object"), after=edit_bytes(lambda b: b[:8] + b"[" + b[9:])),
    Case("tensor twice", ("lm_head.weight is there twice",), after=edit_bytes(_double_key)),
    Case("entry no object", (Q, "expected an object"), after=edit_header(lambda h: h.__setitem__(Q, 3))),
    Case("entry without shape", (Q, "expected an object"), after=edit_header(lambda h: h[Q].pop("shape"))),
    Case("entry with more", (Q, "expected an object"), after=set_field(Q, "strides", [1])),
    Case("unknown dtype", (Q, "dtype is 'F4'", "BF16"), after=set_field(Q, "dtype", "F4")),
    Case("dtype no string", (Q, "dtype is 7"), after=set_field(Q, "dtype", 7)),
    Case("shape no list", (Q, "shape is 7"), after=set_field(Q, "shape", 7)),
    Case("negative shape", (Q, "shape is [-1"), after=set_field(Q, "shape", [-1, 32])),
    Case("shape of booleans", (Q, "expected a list of sizes"), after=set_field(Q, "shape", [True, 32])),
    Case("huge shape", (Q, "needs"), after=set_field(Q, "shape", [1 << 40, 1 << 40])),
    Case("wrong dtype", (Q, "of F16 needs"), after=set_field(Q, "dtype", "F16")),
    Case("offsets backwards", (Q, "-8 bytes of data"), after=set_field(Q, "data_offsets", [8, 0])),
    Case("offsets of one", (Q, "a start and an end"), after=set_field(Q, "data_offsets", [0])),
    Case("offset past the end", (FILE, "past the end"), after=edit_header(lambda h: _shift(h, 1 << 40))),
    Case("overlap", (FILE, "overlaps"), after=edit_header(lambda h: _shift(h, -4))),
    Case("hole", (FILE, "a hole of 4 bytes"), after=edit_header(lambda h: _shift(h, 4))),
    Case("rest", (FILE, "4 bytes after the last"), after=edit_bytes(lambda b: b + b"....")),
]
OTHER_FILES = [
    Case(
        "template no text",
        ("tokenizer_config.json: chat_template is a int, expected a string",),
        after=_write("tokenizer_config.json", '{"chat_template": 3}'),
    ),
    Case("a folder for a file", (FILE, "cannot be read (Is a directory)"), after=_folder_for_file),
    Case("header too long", (FILE, "expected at most 100000000"), after=_long_header),
]
INDEX = [
    Case(
        "shard missing",
        ("model-2-of-3", "missing"),
        make=_sharded,
        after=lambda f: (f / "model-2-of-3.safetensors").unlink(),
    ),
    Case(
        "index without map",
        ("weight_map", "expected an object"),
        make=_sharded,
        after=_index(lambda i: i.pop("weight_map")),
    ),
    Case(
        "index of a number",
        ("lm_head.weight is in 3",),
        make=_sharded,
        after=_index(lambda i: i["weight_map"].__setitem__("lm_head.weight", 3)),
    ),
    Case(
        "index leaves the folder",
        ("'../x.safetensors'", "the name of a safetensors file"),
        make=_sharded,
        after=_index(lambda i: i["weight_map"].__setitem__("lm_head.weight", "../x.safetensors")),
    ),
    Case(
        "index promises more",
        ("extra is missing",),
        make=_sharded,
        after=_index(lambda i: i["weight_map"].__setitem__("extra", "model-1-of-3.safetensors")),
    ),
    Case(
        "index knows less",
        ("lm_head.weight is in this file",),
        make=_sharded,
        after=_index(lambda i: i["weight_map"].pop("lm_head.weight")),
    ),
    Case("same tensor in two files", ("is in model.safetensors too",), after=_second_copy),
]
AUDIT = [
    Case("one tensor removed", ("missing: layers.1.self_attn.q_proj.weight",), before=drop(Q)),
    Case(
        "one expert removed",
        ("missing: layers.0.mlp.experts.up_proj of expert 1 (1 of 3)",),
        before=drop(EXPERT + "1.up_proj.weight"),
    ),
    Case("draft tensor removed", ("missing: mtp.fc_hidden.weight",), before=drop("mtp.fc_hidden.weight")),
    Case(
        "draft expert removed",
        ("missing: mtp.layers.0.mlp.experts.down_proj of expert 2",),
        before=drop("mtp.layers.0.mlp.experts.2.down_proj.weight"),
    ),
    Case(
        "draft of another model",
        ("mtp.fc_hidden.weight", "[64, 64], expected [32, 32]"),
        before=put("mtp.fc_hidden.weight", lambda _: torch.zeros(64, 64)),
    ),
    Case("wrong shape", (Q, "[256, 31], expected [256, 32]"), before=put(Q, lambda x: x[:, :31])),
    Case(
        "vector of another shape",
        ("A_log", "[5], expected [6]"),
        before=put(L0 + "linear_attn.A_log", lambda x: x[:5]),
    ),
    Case(
        "integer weight",
        ("lm_head: I64 values cannot be read",),
        before=put("lm_head.weight", lambda x: x.long()),
    ),
    Case("8-bit norm", ("norm_key.weight is fp8_tensor, expected a float",), before=lambda m: _fp8_norm(m)),
    Case(
        "unknown tensor",
        ("model.layers.0.bias belongs to no part",),
        before=put("model.layers.0.bias", lambda _: torch.zeros(1)),
    ),
    Case(
        "layer too many",
        ("model.layers.2.mlp.gate.weight belongs to no part",),
        before=put("model.layers.2.mlp.gate.weight", lambda _: torch.zeros(3, 32)),
    ),
    Case(
        "expert too many",
        ("of expert 3, expected 0 to 2",),
        before=put(EXPERT + "3.up_proj.weight", lambda _: torch.zeros(32, 32)),
    ),
    Case(
        "both prefixes",
        ("are the same tensor of the model",),
        before=put("model.language_model.embed_tokens.weight", lambda _: torch.zeros(64, 32)),
    ),
    Case(
        "fused and single",
        ("twice: rows 0 to 31 of layers.0.mlp.experts.up_proj (", "gate_up_proj", "experts.*.up_proj"),
        before=put(EXPERT + "gate_up_proj", lambda _: torch.zeros(3, 64, 32)),
    ),
    Case(
        "fused too wide",
        ("gate_up_proj: rows 64 to 69 belong to nothing",),
        make=lambda: model(experts="fused"),
        before=put(EXPERT + "gate_up_proj", lambda _: torch.zeros(3, 70, 32)),
    ),
    Case(
        "fused too narrow",
        ("gate_up_proj is [3, 60, 32]",),
        make=lambda: model(experts="fused"),
        before=put(EXPERT + "gate_up_proj", lambda _: torch.zeros(3, 60, 32)),
    ),
    Case(
        "experts of two types",
        ("different formats (bf16, f32)",),
        before=put(UP0 + "weight", lambda x: x.bfloat16()),
    ),
    Case(
        "table shard missing",
        ("ngram_embedding: 128 rows in 1 tensors, expected 256",),
        before=drop(TABLE + ".shard_1.weight"),
    ),
    Case("table shard 0 missing", ("shards missing: 0",), before=drop(TABLE + ".shard_0.weight")),
    Case(
        "table twice",
        ("as one tensor and as shards",),
        before=put(TABLE + ".weight", lambda _: torch.zeros(4, 4)),
    ),
    Case(
        "table of two types",
        ("shards are in different formats",),
        before=put(TABLE + ".shard_1.weight", lambda x: x.half()),
    ),
    Case(
        "table too wide",
        ("shard_0", "expected"),
        before=put(TABLE + ".shard_0.weight", lambda _: torch.zeros(64, 5)),
    ),
    Case(
        "no table",
        ("missing: layers.0.ple.ple_embedding.ngram_embedding",),
        before=lambda m: [m.tensors.pop(f"{TABLE}.shard_{i}.weight") for i in (0, 1)],
    ),
    Case(
        "hash of another seed",
        ("layer_multipliers", "another seed"),
        before=lambda m: m.config.__setitem__("seed", 5),
    ),
    Case(
        "hash of another type",
        ("ngram_heads_offsets", "expected I64 [8]"),
        before=put(L0 + "ple.ple_embedding.ngram_heads_offsets", lambda x: x.int()),
    ),
    Case(
        "hash of no layer",
        ("layers.1.ple.ple_embedding.layer_multipliers belongs to no part",),
        before=put(L1 + "ple.ple_embedding.layer_multipliers", lambda _: torch.zeros(3).long()),
    ),
    Case(
        "many problems",
        ("and 1", "more (`nextfit inspect` shows all)"),
        before=lambda m: [m.tensors.pop(k) for k in list(m.tensors) if "layers.1" in k],
    ),
    Case("NaN in a norm", ("q_norm.weight", "not finite"), before=nan_at(L1 + "self_attn.q_norm.weight")),
    Case("NaN decay", ("A_log", "not finite"), before=nan_at(L0 + "linear_attn.A_log")),
]
QUANTISED = [
    Case("method unknown", ("quant_method is 'awq', expected one of modelopt",), before=_method("awq")),
    Case(
        "block size unknown",
        ("weight_block_size is [64, 64], expected [128, 128]",),
        make=_fp8,
        before=_method("fp8", weight_block_size=[64, 64]),
    ),
    Case("packed integers", ("integers packed in I32 (INT4 and its like)",), before=lambda m: _int4(m)),
    Case("INT8", ("q_proj: I8 values cannot be read",), before=put(Q, lambda x: x.to(torch.int8))),
    Case("FP8 E5M2", ("q_proj: F8_E5M2 values",), before=put(Q, lambda x: x.to(torch.float8_e5m2))),
    Case("FP8 without scale", ("q_proj: FP8 without a scale",), make=_fp8, before=drop(Q + "_scale_inv")),
    Case(
        "FP8 with two scales",
        ("FP8 with unknown tensors beside it",),
        make=_fp8,
        before=put(Q + "_scale", lambda _: torch.ones(1)),
    ),
    Case(
        "FP8 scales of integers",
        ("FP8 with scales of an unknown type",),
        make=_fp8,
        before=put(Q + "_scale_inv", lambda x: x.to(torch.int32)),
    ),
    Case(
        "FP8 factor of integers",
        ("FP8 with scales of an unknown type",),
        make=_fp8,
        before=put(TABLE + ".weight_scale", lambda x: x.to(torch.int32)),
    ),
    Case(
        "FP8 scale shape",
        ("_scale_inv is [3, 1], expected [2, 1]",),
        make=_fp8,
        before=put(Q + "_scale_inv", lambda _: torch.ones(3, 1)),
    ),
    Case(
        "FP8 table with scales a row",
        ("FP8 with a scale per row",),
        make=_fp8,
        before=put(TABLE + ".weight_scale", lambda _: torch.ones(64, 1)),
    ),
    Case(
        "FP8 table without scale",
        ("shard_0: FP8 without a scale",),
        make=_fp8,
        before=drop(TABLE + ".weight_scale"),
    ),
    Case("4-bit table", ("ngram_embedding.shard_0.weight is nvfp4",), before=lambda m: _nvfp4_table(m)),
    Case("MXFP8", ("q_proj: MXFP8 cannot be read",), before=lambda m: _mxfp8(m)),
    Case(
        "floats with scales",
        ("q_proj: floats with scales",),
        before=put(Q + "_scale", lambda _: torch.ones(1)),
    ),
    Case("scales alone", ("scales without a weight",), make=_modelopt, before=drop(UP0 + "weight")),
    Case(
        "4 bits without scales",
        ("4-bit codes without weight_scale",),
        make=_modelopt,
        before=drop(UP0 + "weight_scale"),
    ),
    Case(
        "4 bits with more",
        ("4-bit codes of an unknown layout",),
        make=_modelopt,
        before=put(UP0 + "weight_zero_point", lambda _: torch.ones(1)),
    ),
    Case(
        "4 bits, scales of floats",
        ("4-bit codes with scales of an unknown type",),
        make=_modelopt,
        before=put(UP0 + "weight_scale", lambda x: x.float()),
    ),
    Case(
        "4 bits, short scales",
        ("weight_scale is [32, 1], expected [32, 2]",),
        make=_modelopt,
        before=put(UP0 + "weight_scale", lambda x: x[:, :1]),
    ),
    Case(
        "two layouts",
        ("two layouts at once",),
        make=_compressed,
        before=put(UP0 + "weight", lambda _: torch.ones(32, 32)),
    ),
    Case(
        "NaN in a block scale",
        ("up_proj.weight_scale has a scale that is not finite",),
        make=_modelopt,
        before=nan_at(UP0 + "weight_scale"),
    ),
    Case(
        "NaN factor",
        ("up_proj.weight_scale_2 has a scale that is not finite",),
        make=_modelopt,
        before=nan_at(UP0 + "weight_scale_2"),
    ),
    Case(
        "zero divisor",
        ("weight_global_scale has a scale that is not finite",),
        make=_compressed,
        before=put(UP0 + "weight_global_scale", lambda x: x * 0),
    ),
    Case(
        "NaN in FP8 scales",
        ("q_proj.weight_scale_inv has a scale that is not finite",),
        make=_fp8,
        before=nan_at(Q + "_scale_inv"),
    ),
    Case(
        "NaN table scale",
        ("ngram_embedding.weight_scale has a scale that is not finite",),
        make=_fp8,
        before=nan_at(TABLE + ".weight_scale"),
    ),
]
CASES = [*HEADER, *OTHER_FILES, *INDEX, *AUDIT, *QUANTISED]
