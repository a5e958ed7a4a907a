"""Resident weights: a plain tensor, quantised blocks, or a stack of both along the output rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight kept in its file's own quantised blocks.

    Every tensor of `parts` has the leading axes of `shape` ([experts], rows), so that one index takes
    the same slice of codes and scales.
    """

    format: str  # a key of `formats.FORMATS`
    shape: tuple[int, ...]  # logical [..., rows, columns]
    parts: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Stack:
    """Weights that share their input, concatenated on the second last axis without being of one type."""

    parts: tuple[Tensor | Packed, ...]


Weight = Tensor | Packed | Stack


def expert(weight: Weight, index: int) -> Weight:
    """Expert `index` of an EXPERTS weight, as a view."""
    if isinstance(weight, Tensor):
        return weight[index]
    raise TypeError(type(weight))


def decode(weight: Tensor | Packed, dtype: torch.dtype) -> Tensor:
    """The weight's values [..., rows, columns] in `dtype` (exact products of codes and scales, one rounding)."""
    if isinstance(weight, Tensor):
        return weight.to(dtype)
    raise TypeError(type(weight))


def gather_rows(weight: Tensor | Packed, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows `ids` (int64, any shape) of a matrix, decoded: [*ids.shape, columns]."""
    if isinstance(weight, Tensor):
        return weight[ids].to(dtype)
    raise TypeError(type(weight))
