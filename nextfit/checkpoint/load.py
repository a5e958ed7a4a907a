"""Read the tensors of a checkpoint: each once, straight to the place where it stays."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from nextfit.checkpoint import Checkpoint
from nextfit.checkpoint.finite import check_data, check_scales, check_values
from nextfit.checkpoint.formats import FORMATS, FP8_BLOCK_ROWS, row_bytes, scale_shape
from nextfit.checkpoint.names import Kind, Slot
from nextfit.checkpoint.packed import Packed, Stack, Weight
from nextfit.checkpoint.regions import Region, Target, region, resident_bytes, targets
from nextfit.checkpoint.source import PerExpert, Piece, Source
from nextfit.checkpoint.table import NgramTable, Segment
from nextfit.errors import CheckpointError

Progress = Callable[[int, int], None]
_CHUNK = 16 << 20  # bytes per read


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


class Reader:
    """Reads byte ranges of files into tensors, counting what was read."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._files: dict[Path, int] = {}
        self._stack = ExitStack()
        self._total, self._done, self._progress = total, 0, progress

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self, file: Path) -> int:
        if file not in self._files:
            fd = os.open(file, os.O_RDONLY)
            self._stack.callback(os.close, fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            self._files[file] = fd
        return self._files[file]

    def into(self, out: Tensor, source: Source, start: int = 0) -> None:
        """Fill the contiguous `out` with the source's bytes from `start` on. Raises CheckpointError."""
        flat = out.reshape(-1) if out.dim() == 0 else out.view(-1)
        flat = flat.view(torch.uint8)
        assert start + flat.numel() <= source.nbytes
        fd = self._open(source.file)
        staging = (
            None if flat.device.type == "cpu" else torch.empty(min(_CHUNK, flat.numel()), dtype=torch.uint8)
        )
        for at in range(0, flat.numel(), _CHUNK):
            chunk = flat[at : at + _CHUNK]
            place = chunk if staging is None else staging[: chunk.numel()]
            self._fill(fd, place, source, start + at)
            if staging is not None:
                chunk.copy_(place)

    def _fill(self, fd: int, place: Tensor, source: Source, start: int) -> None:
        view, at = memoryview(place.numpy().data), 0
        while at < len(view):
            got = os.preadv(fd, [view[at:]], source.offset + start + at)
            if got <= 0:
                raise CheckpointError(
                    f"{source.file}: {source.name} ends early; the file changed while it was read"
                )
            at += got
        self._done += len(view)
        if self._progress is not None:
            self._progress(self._done, self._total)

    def values(self, source: Source, count: int | None = None, start: int = 0) -> Tensor:
        """`count` numbers (all if None) of a float tensor from the `start`th on: its own dtype, on a CPU."""
        dtype = _dtype(FORMATS[source.format].dtype)
        out = torch.empty(prod(source.shape) if count is None else count, dtype=dtype)
        self.into(out, source, start * dtype.itemsize)
        return out


@dataclass(frozen=True, slots=True)
class _Strip:
    """Rows of a slot that come from pieces of one format: one piece, or one for each expert."""

    start: int
    stop: int
    format: str
    pieces: tuple[Piece, ...]


def _strips(pieces: Sequence[Piece], parts: dict[str, Target]) -> list[_Strip]:
    """The slot's rows in order, neighbours of the same format not yet joined."""
    grouped: dict[tuple[int, int, str], list[Piece]] = defaultdict(list)
    for piece in pieces:
        target = parts[piece.part]
        a, b = piece.rows or (0, target.part.rows)
        grouped[target.start + a, target.start + b, piece.format].append(piece)
    return [_Strip(a, b, format, tuple(found)) for (a, b, format), found in sorted(grouped.items())]


def _allocate(format: str, shape: tuple[int, ...], device: torch.device, factors: bool) -> Tensor | Packed:
    """An unfilled resident weight of the logical `shape`; `factors`: with its optional scales, set to 1."""
    f = FORMATS[format]
    dtype = _dtype(f.dtype)
    if f.kind == "float":
        return torch.empty(shape, dtype=dtype, device=device)
    width = row_bytes(format, shape[-1])
    parts = {"data": torch.empty((*shape[:-1], width), dtype=dtype, device=device)}
    for role, scale in f.scales.items():
        if not scale.optional or factors:
            parts[role] = torch.ones(scale_shape(scale, shape), device=device).to(_dtype(scale.dtype))
    return Packed(format, shape, parts)


def _matrix_in(source: Source | PerExpert, index: int, size: int = 0) -> tuple[Source, int]:
    """The tensor that holds matrix `index`, and where in it that begins if each has `size` (bytes or numbers)."""
    if isinstance(source, PerExpert):
        return source.members[index], 0
    return source, index * size


@dataclass(frozen=True, slots=True)
class _Filler:
    """Copies one piece into its rows of a resident weight."""

    reader: Reader
    piece: Piece
    at: Region
    first: int  # row of the weight where the piece begins

    def experts(self) -> Iterator[tuple[int, int]]:
        """(index in the source, index in the weight) of every matrix that the piece fills."""
        if self.at.experts is not None:
            yield from ((e, e) for e in range(self.at.experts))
        else:
            yield 0, self.piece.expert or 0

    def _rows(self, out: Tensor, index: int) -> Tensor:
        """The rows of expert `index` (of the only matrix) that the piece fills."""
        a, b = self.at.source_rows
        matrix = out if out.dim() == 2 else out[index]
        return matrix[self.first : self.first + b - a]

    def bytes(
        self, out: Tensor, source: Source | PerExpert, width: int, columns: tuple[int, int] | None
    ) -> None:
        """Rows of `width` bytes as they are; only bytes `columns` of each if given."""
        a, b = self.at.source_rows
        for at, index in self.experts():
            rows = self._rows(out, index)
            tensor, start = _matrix_in(source, at, self.at.source_shape[0] * width)
            start += a * width
            if columns is None:
                self.reader.into(rows, tensor, start)
                continue
            step = max(1, _CHUNK // width)
            for row in range(0, b - a, step):
                some = rows[row : row + step]
                whole = torch.empty((len(some), width), dtype=torch.uint8)
                self.reader.into(whole, tensor, start + row * width)
                some.view(torch.uint8).copy_(whole[:, columns[0] : columns[1]])

    def data(self, out: Tensor) -> None:
        source, format = self.piece.sources["data"], self.piece.format
        width = row_bytes(format, self.at.source_shape[-1])
        columns = None
        if self.piece.columns is not None:
            left, right = self.piece.columns
            columns = (row_bytes(format, left), row_bytes(format, right))
        self.bytes(out, source, width, columns)
        for at, index in self.experts():
            check_data(_matrix_in(source, at)[0], format, self._rows(out, index))

    def row_scales(self, out: Tensor, source: Source | PerExpert) -> None:
        """E4M3 scales that the file has for every row."""
        self.bytes(out, source, out.shape[-1], None)
        for at, index in self.experts():
            check_scales(_matrix_in(source, at)[0], self._rows(out, index))

    def block_scales(self, out: Tensor, source: Source | PerExpert) -> None:
        """One scale for 128 rows, repeated for each of them."""
        a, b = self.at.source_rows
        rows, columns = source.shape[-2:]
        for at, index in self.experts():
            tensor, start = _matrix_in(source, at, rows * columns)
            found = self.reader.values(tensor, rows * columns, start)
            check_scales(tensor, found)
            each = found.view(rows, columns).repeat_interleave(FP8_BLOCK_ROWS, 0)[a:b]
            self._rows(out, index).copy_(each)

    def factors(self, out: Tensor, source: Source | PerExpert, inverse: bool) -> None:
        """One factor for the tensor or for each expert, repeated for every row."""
        found = [self._factor(member, inverse) for member in source.members]
        values = torch.cat(found).tolist()
        for at, index in self.experts():
            self._rows(out, index).fill_(values[at if len(values) > 1 else 0])

    def _factor(self, source: Source, inverse: bool) -> Tensor:
        found = self.reader.values(source)
        found = found.to(torch.promote_types(found.dtype, torch.float32))
        found = 1 / found if inverse else found
        check_scales(source, found)
        return found

    def fill(self, weight: Tensor | Packed) -> None:
        if isinstance(weight, Tensor):
            self.data(weight)
            return
        self.data(weight.parts["data"])
        for role, source in self.piece.sources.items():
            if role == "data":
                continue
            out = weight.parts[role.removeprefix("inverse_")]
            if self.piece.format == "fp8_block":
                self.block_scales(out, source)
            elif self.piece.format == "nvfp4" and role == "scale":
                self.row_scales(out, source)
            else:
                self.factors(out, source, role.startswith("inverse_"))


def _matrix(
    slot: Slot, pieces: Sequence[Piece], parts: dict[str, Target], reader: Reader, device: torch.device
) -> Weight:
    """A MATRIX or EXPERTS slot: one tensor per run of rows of the same format."""
    found: list[Tensor | Packed] = []
    for format, run in groupby(_strips(pieces, parts), key=lambda s: s.format):
        strips = list(run)
        start = strips[0].start
        shape = (*slot.shape[:-2], strips[-1].stop - start, slot.shape[-1])
        factors = any("scale" in p.sources for s in strips for p in s.pieces)
        weight = _allocate(format, shape, device, factors)
        for strip in strips:
            for piece in strip.pieces:
                at = region(piece, parts[piece.part])
                _Filler(reader, piece, at, strip.start - start).fill(weight)
        found.append(weight)
    return found[0] if len(found) == 1 else Stack(tuple(found))


def _vector(
    slot: Slot, pieces: Sequence[Piece], parts: dict[str, Target], reader: Reader, device: torch.device
) -> Tensor:
    """A GAIN, VECTOR, DECAY or CONV slot: float32 (float64 from a float64 file), as the model uses it."""
    wide = max((_dtype(FORMATS[p.format].dtype) for p in pieces), key=lambda d: d.itemsize)
    out = torch.empty(slot.shape, dtype=torch.promote_types(wide, torch.float32))
    for piece in pieces:
        [source] = piece.sources["data"].members
        a, b = region(piece, parts[piece.part]).rows
        start = parts[piece.part].start
        values = reader.values(source).to(out.dtype)
        if slot.kind is Kind.GAIN and not piece.applied:
            values = 1 + values
        elif slot.kind is Kind.DECAY and not piece.applied:
            values = -values.exp()
        check_values(source, values)
        out[start + a : start + b] = values.view(b - a, *slot.shape[1:])
    return out.to(device)


def _table(slot: Slot, pieces: Sequence[Piece], reader: Reader) -> NgramTable:
    segments, start = [], 0
    for piece in sorted(pieces, key=lambda p: p.shard or 0):
        [data] = piece.sources["data"].members
        segments.append(Segment(start, data.shape[0], data.file, data.offset))
        start += data.shape[0]
    scale = None
    if found := pieces[0].sources.get("scale"):
        [source] = found.members
        values = reader.values(source)
        check_scales(source, values)
        scale = float(values[0])
    return NgramTable(pieces[0].format, (slot.shape[0], slot.shape[1]), segments, scale)


def _load(
    slot: Slot, pieces: Sequence[Piece], parts: dict[str, Target], reader: Reader, device: torch.device
) -> Weight | NgramTable:
    if slot.kind is Kind.TABLE:
        return _table(slot, pieces, reader)
    if slot.kind in (Kind.MATRIX, Kind.EXPERTS):
        return _matrix(slot, pieces, parts, reader, device)
    return _vector(slot, pieces, parts, reader, device)


def load_weights(
    checkpoint: Checkpoint,
    device: str | torch.device = "cpu",
    draft: bool = True,
    progress: Progress | None = None,
) -> dict[str, Weight | NgramTable]:
    """Slot name -> resident weight, in the file's own types; the n-gram table stays in its file.

    `draft=False` leaves the draft head out. `progress` is called with the bytes read so far and in all.
    Raises CheckpointError if the checkpoint has problems or a scale, norm or decay is not finite.
    """
    checkpoint.require()
    slots = [s for s in checkpoint.slots() if draft or not s.name.startswith("mtp.")]
    parts = targets(slots)
    pieces = [p for p in checkpoint.tensors.pieces if p.part in parts]
    by_slot: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_slot[parts[piece.part].slot.name].append(piece)
    place = torch.device(device)
    with Reader(resident_bytes(pieces, parts), progress) as reader:
        return {s.name: _load(s, by_slot[s.name], parts, reader, place) for s in slots}
