"""The n-gram table: rows fetched from a file mapping that is never copied."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nextfit.checkpoint.formats import FORMATS, row_bytes
from nextfit.checkpoint.packed import Packed, decode


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of the table that lie together in a file."""

    start: int  # first row
    rows: int
    file: Path
    offset: int  # bytes


def _map(segment: Segment, width: int) -> np.ndarray:
    """The segment's bytes [rows, width], mapped; nothing is read until a row is asked for."""
    before = segment.offset % mmap.ALLOCATIONGRANULARITY
    with segment.file.open("rb") as f:
        mapping = mmap.mmap(
            f.fileno(),
            before + segment.rows * width,
            access=mmap.ACCESS_READ,
            offset=segment.offset - before,
        )
    mapping.madvise(mmap.MADV_RANDOM)  # rows lie far apart: reading ahead would only fill memory
    return np.frombuffer(mapping, np.uint8, segment.rows * width, before).reshape(segment.rows, width)


class NgramTable:
    """Rows [rows, columns] of `format`, in one or several files; `scale` multiplies all of them (FP8)."""

    def __init__(
        self, format: str, shape: tuple[int, int], segments: Sequence[Segment], scale: float | None = None
    ) -> None:
        self.format = format
        self.shape = shape
        self.scale = scale
        self._width = row_bytes(format, shape[1])
        ordered = sorted((s for s in segments if s.rows), key=lambda s: s.start)
        self._starts = np.array([s.start for s in ordered] + [ordered[-1].start + ordered[-1].rows])
        self._bytes = [_map(s, self._width) for s in ordered]

    @property
    def nbytes(self) -> int:
        """Of its rows in the files."""
        return self.shape[0] * self._width

    def gather(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows `ids` (int64, any shape, below the table's rows): [*ids.shape, columns] in `dtype`.

        Each row is read once, in rising order, however often it is asked for.
        """
        if not ids.numel():
            return torch.empty((*ids.shape, self.shape[1]), dtype=dtype, device=ids.device)
        wanted, inverse = torch.unique(ids.reshape(-1), return_inverse=True)
        rows = wanted.cpu().numpy()
        if not 0 <= rows[0] <= rows[-1] < self._starts[-1]:
            raise IndexError(f"n-gram rows {rows[0]} to {rows[-1]}, the table has {self._starts[-1]}")
        found = np.empty((len(rows), self._width), np.uint8)
        edges = np.searchsorted(rows, self._starts)
        for i in np.flatnonzero(edges[1:] > edges[:-1]):
            a, b = edges[i], edges[i + 1]
            np.take(self._bytes[i], rows[a:b] - self._starts[i], axis=0, out=found[a:b])
        values = self._decode(torch.from_numpy(found).to(ids.device), dtype)
        return values[inverse].view(*ids.shape, self.shape[1])

    def _decode(self, found: Tensor, dtype: torch.dtype) -> Tensor:
        f = FORMATS[self.format]
        data = found.view(getattr(torch, f.dtype))
        if f.kind == "float":
            return data.to(dtype)
        parts = {"data": data}
        if self.scale is not None:
            parts["scale"] = torch.full((1, 1), self.scale, device=found.device).expand(len(found), 1)
        return decode(Packed(self.format, (len(found), self.shape[1]), parts), dtype)
