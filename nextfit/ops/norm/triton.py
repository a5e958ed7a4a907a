"""The norms in Triton. A program owns whole groups, so that no sum crosses programs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # values of a group at a time
HEADS = 16  # heads that one program of the gated norm takes


@triton.jit
def _rms_norm_kernel(
    x_ptr, gain_ptr, out_ptr, heads, groups, width, eps, x_row, x_head, x_col, BLOCK: tl.constexpr
):
    """One group of one head of one row: program (row * heads + head) * groups + group."""
    program = tl.program_id(0).to(tl.int64)
    group = program % groups
    head = program // groups % heads
    row = program // groups // heads
    x_ptr += row * x_row + head * x_head + group * width * x_col
    gain_ptr += group * width
    out_ptr += program * width
    column = tl.arange(0, BLOCK)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        at = start + column
        x = tl.load(x_ptr + at.to(tl.int64) * x_col, mask=at < width, other=0.0).to(tl.float32)
        squares += x * x
    scale = tl.rsqrt(tl.sum(squares, 0) / width + eps)
    for start in range(0, width, BLOCK):
        at = start + column
        x = tl.load(x_ptr + at.to(tl.int64) * x_col, mask=at < width, other=0.0).to(tl.float32)
        gain = tl.load(gain_ptr + at, mask=at < width, other=0.0)
        tl.store(out_ptr + at, (x * scale * gain).to(out_ptr.dtype.element_ty), mask=at < width)


@triton.jit(do_not_specialize=["pairs"])
def _gated_rms_norm_kernel(
    x_ptr,
    gate_ptr,
    weight_ptr,
    out_ptr,
    pairs,
    heads,
    width,
    eps,
    x_row,
    x_head,
    x_col,
    gate_row,
    gate_head,
    gate_col,
    SILU: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """HEADS of the pairs row * heads + head."""
    pair = (tl.program_id(0).to(tl.int64) * HEADS + tl.arange(0, HEADS))[:, None]
    row, head = pair // heads, pair % heads
    column = tl.arange(0, BLOCK).to(tl.int64)[None, :]
    mask = (pair < pairs) & (column < width)
    kind = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * x_row + head * x_head + column * x_col, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_row + head * gate_head + column * gate_col, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + column, mask=column < width, other=0.0)
    y = (x * tl.rsqrt(tl.sum(x * x, 1) / width + eps)[:, None]).to(kind).to(tl.float32)
    y = (weight.to(kind).to(tl.float32) * y).to(kind).to(tl.float32)
    gate = gate.to(tl.float32)
    opened = tl.sigmoid(gate)
    if SILU:
        opened = gate * opened
    tl.store(out_ptr + pair * width + column, (y * opened).to(kind), mask=mask)


def rms_norm(x: Tensor, gain: Tensor, eps: float, groups: int = 1) -> Tensor:
    rows, heads = x.shape[0], x.shape[1] if x.dim() == 3 else 1
    width = x.shape[-1] // groups
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = min(BLOCK, triton.next_power_of_2(width))
    _rms_norm_kernel[(rows * heads * groups,)](
        x,
        gain,
        out,
        heads,
        groups,
        width,
        eps,
        x.stride(0),
        x.stride(1) if x.dim() == 3 else 0,
        x.stride(-1),
        BLOCK=block,
        num_warps=8 if block >= 2048 else 4 if block >= 512 else 1,
    )
    return out


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, activation: str) -> Tensor:
    rows, heads, width = x.shape
    out = torch.empty(x.shape, dtype=gate.dtype, device=x.device)
    _gated_rms_norm_kernel[(triton.cdiv(rows * heads, HEADS),)](
        x,
        gate,
        weight,
        out,
        rows * heads,
        heads,
        width,
        eps,
        *x.stride(),
        *gate.stride(),
        SILU=activation == "silu",
        HEADS=HEADS,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
    )
    return out
