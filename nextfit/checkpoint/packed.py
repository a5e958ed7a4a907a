"""Resident weights: a plain tensor, quantised blocks, or a stack of both along the output rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nextfit.checkpoint.decode import decode_rows
from nextfit.checkpoint.formats import FORMATS, FP8_BLOCK_ROWS, row_bytes, scale_shape
from nextfit.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight kept in its file's own quantised blocks.

    Every tensor of `parts` has the leading axes of `shape` ([experts], rows), so that one index takes
    the same slice of codes and scales. Scales that many rows share are repeated without memory
    (stride 0) where one factor serves a whole matrix.
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


def pack(format: str, shape: tuple[int, ...], sources: Mapping[str, Tensor]) -> Tensor | Packed:
    """A resident weight of the logical `shape` [..., rows, columns] from tensors as files hold them.

    `sources["data"]` holds the codes in any shape with the right number of bytes. Scales may come as the
    file has them: one ([] or [1]), one for each expert ([E]), one for each 128 rows (fp8_block), or
    already in the resident shape. Raises CheckpointError where their shape fits none of these.
    """
    f = FORMATS[format]
    data = sources["data"]
    if f.kind in ("float", "integer"):
        return data.view(_dtype(f.dtype)).reshape(shape)
    parts = {"data": data.view(_dtype(f.dtype)).reshape(*shape[:-1], row_bytes(format, shape[-1]))}
    for role, scale in f.scales.items():
        if role in sources:
            wanted = scale_shape(scale, shape)
            parts[role] = _scales(format, role, sources[role], wanted).to(_dtype(scale.dtype))
        elif not scale.optional:
            raise CheckpointError(f"a weight of format {format} came without its {role}")
    return Packed(format, shape, parts)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _scales(format: str, role: str, x: Tensor, wanted: tuple[int, ...]) -> Tensor:
    """Scales of a file brought to their resident shape: [..., rows, n]."""
    if tuple(x.shape) == wanted:
        return x
    if x.numel() == 1:
        return x.reshape((1,) * len(wanted)).expand(wanted)
    if wanted[-1] == 1 and tuple(x.shape) == wanted[: x.dim()]:
        return x.reshape(*x.shape, *(1,) * (len(wanted) - x.dim())).expand(wanted)
    blocks = (*wanted[:-2], -(-wanted[-2] // FP8_BLOCK_ROWS), wanted[-1])
    if format == "fp8_block" and tuple(x.shape) == blocks:
        return x.repeat_interleave(FP8_BLOCK_ROWS, dim=-2)[..., : wanted[-2], :]
    raise CheckpointError(f"{format}: {role} of shape {tuple(x.shape)} does not fit {wanted}")


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


def rows(weight: Tensor | Packed, start: int, stop: int) -> Tensor | Packed:
    """Output rows `start` to `stop` (exclusive) of a matrix or of every expert, as a view."""
    if isinstance(weight, Tensor):
        return weight[..., start:stop, :]
    return _each(weight, lambda x: x[..., start:stop, :])


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


def gather_rows(weight: Tensor | Packed | Gathers, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows `ids` (int64, any shape) of a matrix, decoded: [*ids.shape, columns]."""
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
