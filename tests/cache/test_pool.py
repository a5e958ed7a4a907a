"""The pool of numbers against a plain set."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from nextfit.cache import Pool


@pytest.mark.parametrize("seed", range(50))
def test_random_operations(seed: int) -> None:
    rng = random.Random(seed)
    capacity = rng.choice([1, 2, 7, 40])
    pool, free = Pool(capacity), set(range(1, capacity + 1))
    held: list[list[int]] = []
    for _ in range(200):
        if held and rng.random() < 0.5:
            numbers = held.pop(rng.randrange(len(held)))
            pool.give(numbers)
            free |= set(numbers)
        else:
            count = rng.randint(0, len(free))
            numbers = pool.take(count)
            assert len(set(numbers)) == count and set(numbers) <= free
            free -= set(numbers)
            held.append(numbers)
        assert pool.free == len(free)
        pool.check()


def test_nobodys_number_is_never_handed_out() -> None:
    assert sorted(Pool(5).take(5)) == [1, 2, 3, 4, 5]


def test_giving_back_twice_is_noticed() -> None:
    pool = Pool(3)
    numbers = pool.take(2)
    pool.give(numbers)
    with pytest.raises(KeyError):
        pool.give(numbers)


def test_bookkeeping_needs_no_torch() -> None:
    code = (
        "import sys, nextfit.cache, nextfit.engine.scheduler, nextfit.engine.verify, nextfit.engine.config, "
        "nextfit.engine.request, nextfit.engine.sequence; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
