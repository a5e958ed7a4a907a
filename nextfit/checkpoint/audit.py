"""Does a checkpoint hold the model, all of it, once, and nothing else? Headers only, no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from nextfit.checkpoint.formats import FORMATS, data_bytes
from nextfit.checkpoint.names import Kind
from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.checkpoint.regions import Interval, Target, data_shapes, region, scale_shapes
from nextfit.checkpoint.source import PerExpert, Piece, Source, TensorMap
from nextfit.config import ModelConfig
from nextfit.errors import CheckpointError

_FLOATS = {"f64", "f32", "f16", "bf16"}
_BLOCKS = {name for name, f in FORMATS.items() if f.kind == "block"}
_SCALED = {name for name, f in FORMATS.items() if f.kind == "scaled"}
_ALLOWED = {
    Kind.MATRIX: _FLOATS | _BLOCKS | _SCALED,
    Kind.EXPERTS: _FLOATS | _BLOCKS | _SCALED,
    Kind.TABLE: _FLOATS | _BLOCKS | {"fp8_tensor"},
}
_SHOWN = 6  # experts or rows named in one message


def _spell(source: Source | PerExpert) -> str:
    return f"{source.members[0].file}: {source.name}"


def _wrong_shape(piece: Piece, target: Target) -> Iterator[str]:
    """Format, shapes and bytes of one piece."""
    data = piece.sources["data"]
    if piece.format not in _ALLOWED.get(target.slot.kind, _FLOATS):
        what = "a float" if target.slot.kind not in _ALLOWED else "a format this weight can have"
        yield f"{_spell(data)} is {piece.format}, expected {what} for {piece.part}"
        return
    at = region(piece, target)
    shapes = data_shapes(piece, target, at)
    if data.shape not in shapes:
        yield f"{_spell(data)} is {list(data.shape)}, expected {list(shapes[0])} for {piece.part}"
        return
    if piece.expert is not None and not 0 <= piece.expert < (target.experts or 0):
        yield f"{_spell(data)} is of expert {piece.expert}, expected 0 to {(target.experts or 0) - 1}"
        return
    for role, source in piece.sources.items():
        if role == "data":
            continue
        wanted = scale_shapes(piece.format, role, at)
        if source.shape not in wanted:
            yield f"{_spell(source)} is {list(source.shape)}, expected {list(wanted[0])} for {piece.part}"
    try:
        wanted_bytes = data_bytes(piece.format, at.logical)
        if at.source_columns is not None:
            for edge in at.source_columns:
                data_bytes(piece.format, (1, edge))
    except CheckpointError as error:
        yield f"{_spell(data)}: {error}"
        return
    if data.nbytes != wanted_bytes:
        yield f"{_spell(data)} has {data.nbytes} bytes, expected {wanted_bytes} for {list(at.logical)}"


def _gaps(intervals: Iterable[Interval], whole: int) -> tuple[list[Interval], list[Interval]]:
    """Missing and doubly covered ranges of [0, whole)."""
    missing, double, at = [], [], 0
    for a, b in sorted(intervals):
        if a > at:
            missing.append((at, a))
        elif a < at:
            double.append((a, min(at, b)))
        at = max(at, b)
    if at < whole:
        missing.append((at, whole))
    return missing, double


def _ranges(found: list[Interval]) -> str:
    return ", ".join(f"{a} to {b - 1}" for a, b in found[:_SHOWN])


def _first(numbers: list[int]) -> str:
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return ", ".join(map(str, numbers[:_SHOWN])) + more


def _rows_covered(name: str, pieces: list[Piece], rows: int, what: str = "") -> Iterator[str]:
    missing, double = _gaps((p.rows or (0, rows) for p in pieces), rows)
    if missing:
        yield f"missing: rows {_ranges(missing)} of {name}{what}"
    if double:
        names = " and ".join(sorted({_spell(p.sources["data"]) for p in pieces}))
        yield f"twice: rows {_ranges(double)} of {name}{what} ({names})"


def _experts_covered(target: Target, pieces: list[Piece]) -> Iterator[str]:
    """Every expert once, and all of one format (they share one buffer)."""
    name, rows, count = target.part.name, target.part.rows, target.experts or 0
    if all(p.expert is None for p in pieces):
        yield from _rows_covered(name, pieces, rows)
        return
    by_expert: dict[int, list[Piece]] = defaultdict(list)
    for p in pieces:
        for e in range(count) if p.expert is None else (p.expert,):
            by_expert[e].append(p)
    missing = [e for e in range(count) if e not in by_expert]
    if missing:
        yield f"missing: {name} of expert {_first(missing)} ({len(missing)} of {count})"
    for e, found in sorted(by_expert.items()):
        if len(found) > 1 or found[0].rows is not None:
            yield from _rows_covered(name, found, rows, f" of expert {e}")
    formats = sorted({p.format for p in pieces})
    if len(formats) > 1:
        yield f"{name}: experts are in different formats ({', '.join(formats)}), expected one for all"


def _table_covered(target: Target, pieces: list[Piece], config: ModelConfig) -> Iterator[str]:
    """Shards numbered 0, 1, 2 ... whose rows add up to the table, with or without the padding at its end."""
    name = target.part.name
    numbers = sorted(p.shard for p in pieces if p.shard is not None)
    if len(pieces) > 1 or numbers:
        if len(numbers) != len(pieces):
            yield f"twice: {name} is there as one tensor and as shards"
            return
        if numbers != list(range(len(pieces))):
            absent = sorted(set(range(numbers[-1] + 1)) - set(numbers))
            twice = sorted({n for n in numbers if numbers.count(n) > 1})
            yield f"{name}: shards missing: {_first(absent) or 'none'}; twice: {_first(twice) or 'none'}"
            return
    formats = sorted({p.format for p in pieces})
    if len(formats) > 1:
        yield f"{name}: shards are in different formats ({', '.join(formats)}), expected one"
    found = sum(p.sources["data"].shape[0] for p in pieces)
    h = ngram_hash(config, int(name.split(".")[1]))
    if found not in (h.rows, h.offsets[-1] + h.sizes[-1]):
        yield f"{name}: {found} rows in {len(pieces)} tensors, expected {h.rows}"


def _covered(target: Target, pieces: list[Piece], config: ModelConfig) -> Iterator[str]:
    if not pieces:
        yield f"missing: {target.part.name}"
    elif target.slot.kind is Kind.TABLE:
        yield from _table_covered(target, pieces, config)
    elif target.slot.kind is Kind.EXPERTS:
        yield from _experts_covered(target, pieces)
    else:
        yield from _rows_covered(target.part.name, pieces, target.part.rows)


def _unused(pieces: Iterable[tuple[Piece, Target]]) -> Iterator[str]:
    """Sources of which some rows or columns go nowhere (each piece has passed `_wrong_shape`)."""
    shared: dict[tuple[str, str], list[tuple[Piece, Target]]] = defaultdict(list)
    for piece, target in pieces:
        if piece.source_rows is not None or piece.columns is not None:
            data = piece.sources["data"]
            shared[str(data.members[0].file), data.name].append((piece, target))
    for users in shared.values():
        at = [region(p, t) for p, t in users]
        rows, _ = _gaps((r.source_rows for r in at), at[0].source_shape[0])
        columns, _ = _gaps((r.source_columns or (0, 0) for r in at), at[0].source_shape[-1])
        if rows or columns:
            axis, gaps = ("rows", rows) if rows else ("columns", columns)
            yield f"{_spell(users[0][0].sources['data'])}: {axis} {_ranges(gaps)} belong to nothing"


def audit(config: ModelConfig, tensors: TensorMap, parts: dict[str, Target]) -> list[str]:
    """Everything that keeps `tensors` from being the model whose parts are `parts`; empty if nothing does.

    That each tensor lies inside its file, and no two in one place, its reader has checked.
    """
    found: dict[str, list[Piece]] = {name: [] for name in parts}
    for piece in tensors.pieces:
        found[piece.part].append(piece)
    problems = list(tensors.problems)
    problems += [f"{_spell(s)} belongs to no part of this model" for s in tensors.unknown]
    sound = []
    for piece in tensors.pieces:
        wrong = list(_wrong_shape(piece, parts[piece.part]))
        problems += wrong
        if not wrong:
            sound.append((piece, parts[piece.part]))
    bad = {p.part for p in tensors.pieces} - {p.part for p, _ in sound}
    for name, pieces in found.items():
        if name not in bad:
            problems += _covered(parts[name], pieces, config)
    problems += _unused(sound)
    return problems
