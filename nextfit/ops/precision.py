"""Which type a product is computed in."""

from __future__ import annotations

from functools import cache

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type for sums, norms and states: float32, or float64 in a float64 model."""
    return torch.promote_types(dtype, torch.float32)


@cache
def _native_half_matmul() -> bool:
    """Whether this CPU multiplies bf16 matrices faster than float32 ones (AVX-512 BF16 or AMX)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def matmul_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The type of large matrix products on operands of `dtype`.

    A CPU without bf16 arithmetic emulates it at a sixth of its float32 speed (docs/performance.md), so
    16-bit operands are widened there; the result is rounded back once, which is only more exact.
    """
    if device.type == "cpu" and dtype in (torch.bfloat16, torch.float16) and not _native_half_matmul():
        return torch.float32
    return dtype
