from __future__ import annotations

import torch
from torch import Tensor


def rope_table(positions: Tensor, rotary_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotation angles, [*positions.shape, rotary_dim / 2] each, in `dtype`.

    Angles are computed in float32 as in the reference implementation, in float64 for a float64 model.
    """
    w = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, rotary_dim, 2, device=positions.device, dtype=w) / rotary_dim
    angle = positions.to(w)[..., None] * (1.0 / theta**exponent)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rope(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x [rows, heads, width] by the row's angles; values beyond the rotary width pass through."""
    cos, sin = (t[:, None, :] for t in table)
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)
