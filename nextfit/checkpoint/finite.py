"""Refuse scales that are no numbers: one NaN in a scale makes whole blocks of a weight NaN."""

from __future__ import annotations

import torch
from torch import Tensor

from nextfit.checkpoint.formats import FORMATS
from nextfit.checkpoint.source import Source
from nextfit.errors import CheckpointError

# offsets of the high bytes of the IEEE halves in a GGUF block (spec/gguf.md section 3 and gguf.quants)
_HALVES = {
    **dict.fromkeys(("q4_0", "q5_0", "q8_0", "iq4_nl", "iq4_xs"), (1,)),
    **dict.fromkeys(("iq1_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"), (1,)),
    **dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), (1, 3)),
    "q2_k": (81, 83),
    "q3_k": (109,),
    "q6_k": (209,),
}
_EXPONENT = 0x7C  # of a half's high byte: all ones mean infinity or NaN


def _block_scales_bad(format: str, data: Tensor) -> bool:
    blocks = data.reshape(-1, FORMATS[format].block_bytes)
    if format == "mxfp4":
        return bool((blocks[:, 0] == 255).any())
    if format == "iq1_m":  # the half is spread over the high nibbles of four shorts
        return bool((((blocks[:, 55] & 0x70) == 0x70) & ((blocks[:, 53] & 0xC0) == 0xC0)).any())
    return any(bool(((blocks[:, i] & _EXPONENT) == _EXPONENT).any()) for i in _HALVES.get(format, ()))


def check_data(source: Source, format: str, data: Tensor) -> None:
    """Check the scales inside quantised blocks (uint8, whole blocks). Raises CheckpointError."""
    if FORMATS[format].kind == "block" and _block_scales_bad(format, data):
        raise CheckpointError(
            f"{source.file}: {source.name} has a scale that is not finite (NaN or infinity)"
        )


def check_scales(source: Source, values: Tensor) -> None:
    """Check scales that lie beside their codes: floats or E4M3. Raises CheckpointError."""
    if values.dtype == torch.float8_e4m3fn:
        bad = bool(((values.view(torch.uint8) & 0x7F) == 0x7F).any())
    else:
        bad = not bool(values.isfinite().all())
    if bad:
        raise CheckpointError(
            f"{source.file}: {source.name} has a scale that is not finite (NaN or infinity)"
        )


def check_values(source: Source, values: Tensor) -> None:
    """Check a norm, a decay, a bias or convolution taps. Raises CheckpointError."""
    if not bool(values.isfinite().all()):
        raise CheckpointError(
            f"{source.file}: {source.name} has a value that is not finite (NaN or infinity)"
        )
