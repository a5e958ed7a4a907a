"""Resident weights from codes and scales as files hold them."""

from __future__ import annotations

import torch
from torch import Tensor

from nextfit.checkpoint.formats import FORMATS, FP8_BLOCK_ROWS, row_bytes, scale_shape
from nextfit.checkpoint.packed import Packed


def pack(format: str, shape: tuple[int, ...], data: Tensor, **scales: Tensor) -> Packed:
    """A weight of the logical `shape` [..., rows, columns].

    A scale is one for all ([]), one for each expert ([E]), one for 128 rows (fp8_block) or one for each row.
    """
    f = FORMATS[format]
    dtype = getattr(torch, f.dtype)
    parts = {"data": data.view(dtype).reshape(*shape[:-1], row_bytes(format, shape[-1]))}
    for role, x in scales.items():
        wanted = scale_shape(f.scales[role], shape)
        if x.dim() < len(wanted):
            x = x.reshape(*x.shape, *(1,) * (len(wanted) - x.dim())).expand(wanted)
        elif x.shape != wanted:
            x = x.repeat_interleave(FP8_BLOCK_ROWS, dim=-2)[..., : wanted[-2], :]
        parts[role] = x.to(getattr(torch, f.scales[role].dtype))
    return Packed(format, shape, parts)


def random_blocks(format: str, shape: tuple[int, ...], seed: int = 0) -> Packed:
    """Random bytes as a weight of a block format: any codes, any scales but NaN and infinity."""
    g = torch.Generator().manual_seed(seed)
    f = FORMATS[format]
    raw = torch.randint(0, 256, (*shape[:-1], row_bytes(format, shape[-1])), generator=g, dtype=torch.uint8)
    for at in HALVES.get(format, ()):
        raw.view(-1, f.block_bytes)[:, at + 1] &= 0xBF  # never the largest exponent
    if format == "iq1_m":  # its half is spread over the high nibbles of four 16-bit words
        raw.view(-1, f.block_bytes)[:, 55] &= 0xBF
    return pack(format, shape, raw)


# offsets of the IEEE halves of a block
HALVES = {
    **dict.fromkeys(("q4_0", "q5_0", "q8_0", "iq4_nl", "iq4_xs"), (0,)),
    **dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), (0, 2)),
    **dict.fromkeys(("iq1_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"), (0,)),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q6_k": (208,),
}
