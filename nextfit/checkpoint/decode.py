"""Quantised rows to floating point, some rows at a time so that the float32 values stay in cache."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from nextfit.checkpoint.decode_blocks import BLOCK_DECODERS, E2M1_DOUBLED, look_up_pairs, own_copy
from nextfit.checkpoint.formats import FORMATS, row_bytes

CHUNK = 1 << 19  # elements decoded at a time on a CPU: 2 MiB of float32
CHUNK_GPU = 1 << 26


def decode_rows(format: str, parts: dict[str, Tensor], columns: int, dtype: torch.dtype) -> Tensor:
    """Values [rows, columns] in `dtype` of rows of a block or scaled format.

    Every tensor of `parts` is [rows, ...] as in `packed.Packed`. The values are made in float32 and
    rounded once; float64 holds the float32 values.
    """
    n, device = len(parts["data"]), parts["data"].device
    assert parts["data"].shape[1] == row_bytes(format, columns), "rows do not have this many columns"
    out = torch.empty((n, columns), dtype=dtype, device=device)
    step = max(1, (CHUNK if device.type == "cpu" else CHUNK_GPU) // columns)
    in_place = dtype == torch.float32
    scratch = out if in_place else torch.empty((min(n, step), columns), dtype=torch.float32, device=device)
    for start in range(0, n, step):
        stop = min(n, start + step)
        values = scratch[start:stop] if in_place else scratch[: stop - start]
        _decode(format, {role: x[start:stop] for role, x in parts.items()}, values)
        if not in_place:
            out[start:stop].copy_(values)
    return out


def _decode(format: str, parts: dict[str, Tensor], out: Tensor) -> None:
    """Fill `out`, float32 [rows, columns], contiguous."""
    f = FORMATS[format]
    data = parts["data"]
    if f.kind == "block":
        BLOCK_DECODERS[format](data.reshape(-1, f.block_bytes), out.view(-1, f.block))
        if "scale" in parts:
            out.mul_(parts["scale"])
    elif format == "nvfp4":
        _nvfp4(data, parts["scale"], parts["scale_2"], out)
    else:
        out.copy_(_halves(data))
        _multiply(out, parts["scale"], f.scales["scale"].columns_each)


def _halves(data: Tensor) -> Tensor:
    """The values of E4M3 codes [rows, columns] as float16, which holds all of them, two codes at a time."""
    if data.shape[1] % 2:
        return data.half()
    index = own_copy(data).view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    pairs = _e4m3_pairs(data.device).index_select(0, index.view(-1))
    return pairs.view(torch.float16).view(data.shape)


@lru_cache(maxsize=8)
def _e4m3_pairs(device: torch.device) -> Tensor:
    """int32 [65536]: two float16 values for every two codes."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).half()
    pairs = torch.stack([codes.repeat(256), codes.repeat_interleave(256)], dim=1)
    return pairs.view(torch.int32).flatten().to(device)


def _nvfp4(data: Tensor, scale: Tensor, scale_2: Tensor, out: Tensor) -> None:
    out.copy_(look_up_pairs(data, E2M1_DOUBLED))
    out.view(-1, 16).mul_(scale.float().mul_(0.5).view(-1, 1))
    out.mul_(scale_2)


def _multiply(out: Tensor, scale: Tensor, each: int) -> None:
    """Multiply rows by their scales, one for each `each` columns (0: for the whole row)."""
    if not each:
        out.mul_(scale)
    elif out.shape[1] % each == 0:
        out.view(len(out), -1, each).mul_(scale.unsqueeze(-1))
    else:
        out.mul_(scale.repeat_interleave(each, dim=1)[:, : out.shape[1]])
