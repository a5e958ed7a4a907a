"""How pieces of files lie in parts of the model: the geometry that the audit checks and the loader copies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nextfit.checkpoint.formats import FP8_BLOCK_ROWS
from nextfit.checkpoint.names import Kind, Part, Slot
from nextfit.checkpoint.source import Piece, distinct

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Target:
    """One part with what its slot says about it."""

    slot: Slot
    part: Part
    start: int  # first row of the part in its slot

    @property
    def experts(self) -> int | None:
        return self.slot.shape[0] if self.slot.kind is Kind.EXPERTS else None

    @property
    def columns(self) -> int | None:
        """Values of a row; None for a vector."""
        return self.slot.shape[-1] if len(self.slot.shape) > 1 else None


def targets(slots: Iterable[Slot]) -> dict[str, Target]:
    """Part name -> where it belongs."""
    found = {}
    for slot in slots:
        start = 0
        for part in slot.parts:
            found[part.name] = Target(slot, part, start)
            start += part.rows
    return found


@dataclass(frozen=True, slots=True)
class Region:
    """What a piece takes from its source and where in the part it puts it.

    The source is [experts,] rows x columns (a vector has no columns) and is used from `source_rows` and
    `source_columns`; these fill `rows` of the part, for one `expert` or for all that the source holds.
    """

    experts: int | None
    source_shape: tuple[int, ...]  # logical, without the experts axis: (rows,) or (rows, columns)
    source_rows: Interval
    source_columns: Interval | None
    rows: Interval
    expert: int | None

    @property
    def logical(self) -> tuple[int, ...]:
        """The source's shape as numbers."""
        return self.source_shape if self.experts is None else (self.experts, *self.source_shape)


def region(piece: Piece, target: Target) -> Region:
    """The region that `piece` should be of; what its source really is stays to be checked.

    Only sizes that the model does not fix come from the source: rows of a table's shard, and the whole of
    a source of which a piece takes a share.
    """
    data = piece.sources["data"].shape
    experts = target.experts if piece.expert is None else None
    rows = piece.rows or (0, target.part.rows)
    count = rows[1] - rows[0]
    if target.slot.kind is Kind.TABLE:
        count = data[0] if data else 0
    total = count
    if piece.source_rows is not None and len(data) > 1:
        total = max(data[-2], piece.source_rows[1])
    columns = target.columns
    shape: tuple[int, ...] = (total,)
    if columns is not None:
        whole = columns if piece.columns is None or not data else max(data[-1], piece.columns[1])
        shape = (total, whole)
        columns_taken = piece.columns or (0, columns)
        return Region(experts, shape, piece.source_rows or (0, count), columns_taken, rows, piece.expert)
    return Region(experts, shape, piece.source_rows or (0, count), None, rows, piece.expert)


def data_shapes(piece: Piece, target: Target, at: Region) -> list[tuple[int, ...]]:
    """Shapes that the data of the piece may have in its file."""
    lead = () if at.experts is None else (at.experts,)
    rows, tail = at.source_shape[0], at.source_shape[1:]
    if target.slot.kind is Kind.CONV:
        return [(rows, 1, *tail), (rows, *tail)]
    if piece.format == "nvfp4":  # two codes to a byte
        tail = tuple(n // 2 for n in tail)
    shapes = [(*lead, rows, *tail)]
    if rows == 1 and tail and not lead:
        shapes.append(tail)  # GGUF drops an outermost axis of one
    return shapes


def scale_shapes(format: str, role: str, at: Region) -> list[tuple[int, ...]]:
    """Shapes that the scales `role` of a piece may have in its file."""
    lead = () if at.experts is None else (at.experts,)
    rows, columns = at.source_shape[0], at.source_shape[-1]
    if format == "nvfp4" and role == "scale":
        return [(*lead, rows, columns // 16)]
    if format == "fp8_block":
        return [(*lead, -(-rows // FP8_BLOCK_ROWS), -(-columns // FP8_BLOCK_ROWS))]
    return [(), (1,), lead, (*lead, 1)] if lead else [(), (1,)]


def is_mapped(piece: Piece, role: str, target: Target) -> bool:
    """Whether this source of the piece stays in its file: the n-gram table's rows do."""
    return role == "data" and target.slot.kind is Kind.TABLE


def resident_bytes(pieces: Iterable[Piece], parts: dict[str, Target]) -> int:
    """Bytes of files that loading `pieces` reads."""
    return sum(
        s.nbytes
        for s in distinct(
            s for p in pieces for role, s in p.sources.items() if not is_mapped(p, role, parts[p.part])
        )
    )
