"""What makes the rows of the matrix: every possible pair, in few rows, each time the same ones."""

from __future__ import annotations

from itertools import combinations, product
from random import Random

import pytest

from tests.support.pairwise import Cell, Value, all_pairs, pair


@pytest.mark.parametrize("seed", range(30))
def test_every_pair_that_is_possible(seed: int) -> None:
    rng = Random(seed)
    factors: dict[str, list[Value]] = {
        name: list(range(rng.randint(1, 4))) for name in "abcdefg"[: rng.randint(2, 7)]
    }
    # what is impossible keeps clear of the first values, so that every other pair has a row
    impossible = {
        (a, x, b, y)
        for a, b in combinations(factors, 2)
        for x, y in product(factors[a], factors[b])
        if x and y and rng.random() < 0.3
    }
    given = frozenset(pair(Cell(a, x), Cell(b, y)) for a, x, b, y in impossible)
    rows = all_pairs(factors, given)
    assert rows == all_pairs(factors, given)
    for a, b in combinations(factors, 2):
        for x, y in product(factors[a], factors[b]):
            times = sum(row[a] == x and row[b] == y for row in rows)
            assert (times > 0) == ((a, x, b, y) not in impossible)
    assert all(list(row) == list(factors) for row in rows)
    every = sum(len(factors[a]) * len(factors[b]) for a, b in combinations(factors, 2))
    assert len(rows) <= every / 2 or every < 20


def test_a_pair_that_nothing_else_goes_with() -> None:
    factors: dict[str, list[Value]] = {"a": [0, 1], "b": [0, 1], "c": [0]}
    with pytest.raises(ValueError, match="no row can have"):
        all_pairs(factors, frozenset({pair(Cell("a", 1), Cell("c", 0))}))
