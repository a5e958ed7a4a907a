"""Scales inside GGUF blocks: refused exactly where decoding them gives something that is no number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nextfit.checkpoint.finite import check_data, check_scales
from nextfit.checkpoint.formats import FORMATS
from nextfit.checkpoint.packed import Packed, decode
from nextfit.checkpoint.source import Source
from nextfit.errors import CheckpointError

BLOCKS = sorted(name for name, f in FORMATS.items() if f.kind == "block" and name != "mxfp4")
SOURCE = Source("blk.0.x", "q4_0", (1, 32), Path("file.gguf"), 0, 18)


def refused(format: str, data: Tensor) -> bool:
    try:
        check_data(SOURCE, format, data)
    except CheckpointError:
        return True
    return False


def finite(format: str, data: Tensor) -> bool:
    return bool(
        decode(Packed(format, (1, FORMATS[format].block), {"data": data}), torch.float32).isfinite().all()
    )


@pytest.mark.parametrize("format", BLOCKS)
def test_every_place_of_a_block(format: str) -> None:
    """A NaN and infinite halves at every place of a block of zeros where a half can lie."""
    found = set()
    for at in range(0, FORMATS[format].block_bytes - 1, 2):
        for value in (0x7E00, 0x7C00, 0xFC00):
            data = torch.zeros(1, FORMATS[format].block_bytes, dtype=torch.uint8)
            data[0, at], data[0, at + 1] = value & 0xFF, value >> 8
            assert refused(format, data) != finite(format, data), (at, hex(value))
            found.add(refused(format, data))
    assert found == ({False} if format in ("iq1_m", "nvfp4_gguf") else {False, True})


def test_the_exponent_of_mxfp4() -> None:
    """255 is E8M0's NaN; ggml would read it as 2 ** 128."""
    data = torch.zeros(2, 17, dtype=torch.uint8)
    data[:, 1:] = 255
    data[1, 0] = 254
    assert not refused("mxfp4", data)
    data[1, 0] = 255
    assert refused("mxfp4", data)


def test_the_spread_scale_of_iq1_m() -> None:
    data = torch.zeros(1, 56, dtype=torch.uint8)
    data[0, [49, 51, 53, 55]] = torch.tensor([0x10, 0x00, 0xC0, 0x70], dtype=torch.uint8)
    assert refused("iq1_m", data) and not finite("iq1_m", data)
    data[0, 53] = 0x80
    assert not refused("iq1_m", data) and finite("iq1_m", data)


def test_scales_beside_their_codes() -> None:
    check_scales(SOURCE, torch.tensor([448.0, 0.0]).to(torch.float8_e4m3fn))
    for bad in (torch.tensor([0x7F], dtype=torch.uint8), torch.tensor([0xFF], dtype=torch.uint8)):
        with pytest.raises(CheckpointError, match="blk.0.x has a scale that is not finite"):
            check_scales(SOURCE, bad.view(torch.float8_e4m3fn))
    for number in (float("nan"), float("inf")):
        with pytest.raises(CheckpointError, match="file.gguf"):
            check_scales(SOURCE, torch.tensor([1.0, number]))
