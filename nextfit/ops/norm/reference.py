from __future__ import annotations

import torch
from torch import Tensor

from nextfit.ops.precision import wide


def rms_norm(x: Tensor, gain: Tensor, eps: float, groups: int = 1) -> Tensor:
    y = x.to(wide(x.dtype)).unflatten(-1, (groups, -1))
    mean = torch.linalg.vector_norm(y, dim=-1, keepdim=True).square_() / y.shape[-1]
    y = (y * torch.rsqrt(mean + eps)).flatten(-2)
    return y.mul_(gain).to(x.dtype)


def l2_norm(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(sum x^2 + eps) over the last axis, in the wide type."""
    y = x.to(wide(x.dtype))
    return y * torch.rsqrt(y.square().sum(-1, keepdim=True) + eps)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, activation: str) -> Tensor:
    w = wide(x.dtype)
    y = x.to(w)
    y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)).to(gate.dtype)
    y = weight.to(gate.dtype) * y
    g = gate.to(w)
    g = torch.sigmoid(g) if activation == "sigmoid" else torch.nn.functional.silu(g)
    return (y.to(w) * g).to(gate.dtype)
