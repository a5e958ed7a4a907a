"""A header of the released model's size: 111 GB of holes, 49 blocks, 248,320 tokens."""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from gguf.constants import GGMLQuantizationType, GGUFValueType

from nextfit.checkpoint import open_checkpoint
from nextfit.checkpoint.formats import data_bytes
from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.config import ModelConfig
from tests.checkpoint.test_gguf_header import array, entry, tensor, text
from tests.support.gguf_writer import Value, gguf_metadata, gguf_tensors
from tests.support.released import RELEASED, part_shapes

pytestmark = pytest.mark.alone

CONFIG = replace(RELEASED, value_heads_tiled=True, split_ngram_parts=1)
# spec section 3.1
MULTIPLIERS = (23703573157769, 20109073645365, 8052911324071)
SIZES: tuple[int, ...] = (20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077)
SIZES += (20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171)


def shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """GGUF name -> shape, without any values: parts of one number repeated."""
    parts = {name: torch.zeros(()).expand(shape) for name, shape in part_shapes(c).items()}
    return {name: x.shape for name, x in gguf_tensors(c, parts).items()}


def kind(name: str, shape: tuple[int, ...]) -> str:
    """Types as in the usual 4-bit file."""
    if len(shape) == 1 or "norm" in name or "ffn_gate_inp" in name or "conv1d" in name:
        return "f32"
    if "per_layer_token_embd" in name:
        return "iq4_nl"
    if "_exps" in name:
        return "q4_k" if shape[-1] % 256 == 0 else "q5_0"
    return "bf16" if "indexer" in name else "q8_0"


def packed(key: str, v: Value) -> bytes:
    codes = {GGUFValueType.UINT32: "I", GGUFValueType.INT32: "i", GGUFValueType.UINT64: "Q"}
    codes |= {GGUFValueType.FLOAT32: "f", GGUFValueType.BOOL: "?"}
    if v.type == GGUFValueType.STRING:
        return entry(key, v.type, text(v.value))
    if v.type != GGUFValueType.ARRAY:
        return entry(key, v.type, struct.pack(f"<{codes[v.type]}", v.value))
    assert v.of is not None
    if v.of == GGUFValueType.STRING:
        return array(key, v.of, len(v.value), b"".join(map(text, v.value)))
    return array(key, v.of, len(v.value), struct.pack(f"<{len(v.value)}{codes[v.of]}", *v.value))


def write(path: Path) -> Path:
    """The header, and a hole for the data."""
    metadata = gguf_metadata(CONFIG)
    metadata["general.architecture"] = Value(GGUFValueType.STRING, "qwen4exp")
    head, at = [packed(k, v) for k, v in metadata.items()], 0
    found = shapes(CONFIG)
    for name, shape in found.items():
        type_ = kind(name, shape)
        head.append(tensor(name, shape[::-1], GGMLQuantizationType[type_.upper()], at))
        at += -(-data_bytes(type_, shape) // 32) * 32
    with path.open("wb") as f:
        f.write(b"GGUF" + struct.pack("<I2Q", 3, len(found), len(metadata)) + b"".join(head))
        f.truncate(-(-f.tell() // 32) * 32 + at)
    return path


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("released") / "m.gguf")


def test_it_is_a_whole_model(released: Path) -> None:
    c = open_checkpoint(released)
    assert c.problems == () and c.tensors.warnings == []
    # the base that a header tells is the first prime, which gives the same constants
    assert c.config == replace(CONFIG, ngram_vocab_size_base=SIZES[0])
    h = ngram_hash(c.config, 1)
    assert (h.multipliers, h.sizes) == (MULTIPLIERS, SIZES)
    assert (h.offsets[-1], h.rows) == (300001275, 320001536)
    assert len(c.tensors.pieces) == 1224 + 32 + 1


def test_its_header_is_read_in_a_second_without_its_data(released: Path) -> None:
    start = time.process_time()
    c = open_checkpoint(released)
    assert time.process_time() - start < 1
    table = next(p for p in c.tensors.pieces if p.part.endswith("ngram_embedding")).sources["data"]
    assert (table.shape, table.nbytes) == ((320001536, 160), 28_800_138_240)
    assert sum(prod(p.sources["data"].shape) for p in c.tensors.pieces) > 176e9
