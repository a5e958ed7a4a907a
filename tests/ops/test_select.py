"""Top-k under the rule: highest first, of equals the lower index, NaN lowest."""

from __future__ import annotations

import math
import random

import pytest
import torch

from nextfit.ops.select import top_k_ascending
from tests.ops.common import ROWS


def naive(scores: list[float], k: int) -> list[int]:
    key = [-math.inf if math.isnan(x) else x for x in scores]
    return sorted(sorted(range(len(key)), key=lambda i: (-key[i], i))[:k])


@pytest.mark.parametrize("rows", [0, *ROWS])
@pytest.mark.parametrize("values", [2, 1000])
def test_against_sorting(rows: int, values: int) -> None:
    """Few distinct values make ties everywhere, also at the cut."""
    g = torch.Generator().manual_seed(rows)
    for n, k in ((1, 1), (8, 3), (40, 1), (40, 17), (40, 40)):
        scores = torch.randint(0, values, (rows, n), generator=g).float()
        got = top_k_ascending(scores, k)
        assert got.shape == (rows, k) and got.dtype == torch.int64
        assert got.tolist() == [naive(row, k) for row in scores.tolist()]


@pytest.mark.parametrize("seed", range(20))
def test_special_values(seed: int) -> None:
    rng = random.Random(seed)
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 3e38, -3e38]
    rows = [[rng.choice(special) for _ in range(12)] for _ in range(9)]
    for k in (1, 5, 11, 12):
        assert top_k_ascending(torch.tensor(rows), k).tolist() == [naive(row, k) for row in rows]


def test_b31_all_equal_takes_the_lowest() -> None:
    for value in (0.0, math.nan, -math.inf, math.inf):
        assert top_k_ascending(torch.full((3, 10), value), 4).tolist() == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types(dtype: torch.dtype) -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0]], dtype=dtype)
    assert top_k_ascending(scores, 2).tolist() == [[1, 2]]
