"""Resident weights: a plain tensor, quantised blocks, or a stack of both along the output rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nextfit.checkpoint.decode import decode_rows


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight kept in its file's own quantised blocks.

    Every tensor of `parts` has the leading axes of `shape` ([experts], rows), so that one index takes
    the same slice of codes and scales (`formats.Scale` says how many scales a row has).
    """

    format: str  # a key of `formats.FORMATS`
    shape: tuple[int, ...]  # logical [..., rows, columns]
    parts: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Stack:
    """Weights that share their input, concatenated on the second last axis without being of one type."""

    parts: tuple[Tensor | Packed, ...]


Weight = Tensor | Packed | Stack


class Gathers(Protocol):
    """Rows that are fetched from wherever they lie, such as a table that stays in its file."""

    def gather(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows `ids` (int64, any shape) in `dtype`: [*ids.shape, columns]."""


def _each(weight: Packed, take: Callable[[Tensor], Tensor]) -> Packed:
    parts = {role: take(x) for role, x in weight.parts.items()}
    return Packed(weight.format, (*parts["data"].shape[:-1], weight.shape[-1]), parts)


def expert(weight: Weight, index: int) -> Weight:
    """Expert `index` of an EXPERTS weight, as a view."""
    if isinstance(weight, Stack):
        return Stack(tuple(_expert(p, index) for p in weight.parts))
    return _expert(weight, index)


def _expert(weight: Tensor | Packed, index: int) -> Tensor | Packed:
    return weight[index] if isinstance(weight, Tensor) else _each(weight, lambda x: x[index])


def rows(weight: Tensor | Packed, first: int, end: int) -> Tensor | Packed:
    """Output rows `first` to `end` of a matrix, as a view."""
    return weight[first:end] if isinstance(weight, Tensor) else _each(weight, lambda x: x[first:end])


def decode(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The weight's values [..., rows, columns] in `dtype`.

    Codes times scales in float32, then one rounding to `dtype` (float64 holds the float32 values). A
    tensor that already has `dtype` is returned as it is, without a copy.
    """
    if isinstance(weight, Stack):
        return torch.cat([decode(p, dtype) for p in weight.parts], dim=-2)
    if isinstance(weight, Tensor):
        return weight.to(dtype)
    flat = {role: x.reshape(-1, x.shape[-1]) for role, x in weight.parts.items()}
    return decode_rows(weight.format, flat, weight.shape[-1], dtype).view(weight.shape)


def gather_rows(weight: Weight | Gathers, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows `ids` (int64, any shape) of a matrix of one format, decoded: [*ids.shape, columns]."""
    assert not isinstance(weight, Stack), "rows of a stack lie in several weights"
    if isinstance(weight, Tensor):
        return weight[ids].to(dtype)
    if isinstance(weight, Packed):
        flat = ids.reshape(-1)
        taken = _each(weight, lambda x: x.index_select(0, flat) if x.dtype.itemsize > 1 else _bytes(x, flat))
        return decode(taken, dtype).view(*ids.shape, weight.shape[-1])
    return weight.gather(ids, dtype)


def _bytes(x: Tensor, ids: Tensor) -> Tensor:
    """Rows `ids` of a matrix of one-byte elements, which need no arithmetic of their dtype."""
    return x.view(torch.uint8).index_select(0, ids).view(x.dtype)
