"""All-pairs tables: few rows, in which any two values of any two factors occur together.

Greedy and without chance: the same factors give the same rows. Not the fewest rows that there could be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

Value = str | int
Row = dict[str, Value]
CANDIDATES = 10  # pairs not yet in a row, each of which is tried as the beginning of the next one


class Cell(NamedTuple):
    """A value of a factor."""

    factor: str
    value: Value


Pair = frozenset[Cell]


def pair(one: Cell, other: Cell) -> Pair:
    return frozenset((one, other))


def all_pairs(factors: Mapping[str, Sequence[Value]], impossible: frozenset[Pair] = frozenset()) -> list[Row]:
    """Rows with a value for every factor, in which every pair occurs that is not `impossible`.

    Raises ValueError for a pair that no row can have without having an impossible one as well.
    """
    names = list(factors)
    left = {
        p: None  # a dict, as it keeps its order
        for a, b in combinations(names, 2)
        for x in factors[a]
        for y in factors[b]
        if (p := pair(Cell(a, x), Cell(b, y))) not in impossible
    }
    rows: list[Row] = []
    while left:
        best: list[Cell] = []
        covered = 0
        for begun in list(left)[:CANDIDATES]:
            found = _fill(sorted(begun), names, factors, impossible, left)
            if found is None:
                raise ValueError(f"no row can have {sorted(begun)}: its other values are impossible")
            gain = sum(p in left for p in _pairs(found))
            if gain > covered:
                best, covered = found, gain
        for p in _pairs(best):
            left.pop(p, None)
        chosen = dict(best)
        rows.append({name: chosen[name] for name in names})
    return rows


def _pairs(cells: Sequence[Cell]) -> Iterator[Pair]:
    return (pair(a, b) for a, b in combinations(cells, 2))


def _fill(
    cells: list[Cell],
    names: Sequence[str],
    factors: Mapping[str, Sequence[Value]],
    impossible: frozenset[Pair],
    left: Mapping[Pair, None],
) -> list[Cell] | None:
    """`cells` and one of every other factor, each the one that covers most of what is left; None: there is no way."""
    taken = {cell.factor for cell in cells}
    name = next((n for n in names if n not in taken), None)
    if name is None:
        return cells
    options = []
    for i, value in enumerate(factors[name]):
        new = [pair(cell, Cell(name, value)) for cell in cells]
        if impossible.isdisjoint(new):
            options.append((-sum(p in left for p in new), i, Cell(name, value)))
    for _, _, cell in sorted(options):
        found = _fill([*cells, cell], names, factors, impossible, left)
        if found is not None:
            return found
    return None
