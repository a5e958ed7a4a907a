"""Tails, logs and causal convolutions against whole sequences kept in lists."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nextfit.ops.batch import Batch
from nextfit.ops.history import History, causal_conv, commit, extend
from tests.memory.storages import Peak
from tests.ops.common import ROWS, batch, generator

WINDOW = 5
CHANNELS = 3


def naive_conv(rows: list[Tensor], taps: Tensor, dilation: int, initial: float = 0) -> Tensor:
    """Output at the last of `rows`, one channel after the other."""
    k, out = taps.shape[1], torch.zeros(len(taps), dtype=torch.float64)
    for channel in range(len(taps)):
        for i in range(k):
            at = len(rows) - 1 - dilation * (k - 1 - i)
            out[channel] += taps[channel, i].double() * (rows[at][channel].double() if at >= 0 else initial)
    return out


@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("dilation", [1, 3])
def test_whole_sequence(n: int, dilation: int) -> None:
    g = generator(n)
    x, taps = torch.randn(n, CHANNELS, generator=g), torch.randn(CHANNELS, 4, generator=g)
    history = History(
        torch.full((3, 3 * dilation, CHANNELS), torch.nan), torch.full((3, 1, CHANNELS), torch.nan)
    )
    y = causal_conv(extend(history, batch([n], slots=[2]), x), taps, dilation)
    wanted = torch.stack([naive_conv(list(x[: i + 1]), taps, dilation) for i in range(n)])
    assert torch.allclose(y.double(), wanted, atol=1e-5)
    assert history.tail[1].isnan().all() and history.log.isnan().all()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("reach", [1, 3, 9])
def test_random_steps(reach: int, seed: int) -> None:
    """Prefills, verify steps of which any number is accepted, and new owners of a slot, in any order."""
    rng, g = random.Random(f"{seed} {reach}"), generator(seed)
    slots = 4
    history = History(
        torch.full((slots + 1, reach, CHANNELS), torch.nan, dtype=torch.float64),
        torch.full((slots + 1, WINDOW, CHANNELS), torch.nan, dtype=torch.float64),
        initial=7,
    )
    known: dict[int, list[Tensor]] = {}
    pending: dict[int, int] = {}
    for _ in range(25):
        taken = rng.sample(range(1, slots + 1), rng.randint(1, slots))
        for s in taken:
            if s not in known or rng.random() < 0.1:
                known[s], pending[s] = [], 0
        decode = [s for s in taken if known[s] and rng.random() < 0.6]
        order = decode + [s for s in taken if s not in decode]
        lengths = [rng.randint(1, WINDOW) if s in decode else rng.randint(1, 12) for s in order]
        b = batch(
            lengths,
            [len(known[s]) for s in order],
            len(decode),
            slots=order,
            replay=[pending[s] for s in order],
        )
        x = torch.randn(sum(lengths), CHANNELS, generator=g, dtype=torch.float64)
        extended = extend(history, b, x)
        row = 0
        for s, n in zip(order, lengths, strict=True):
            rows = known[s] + list(x[row : row + n])
            for i in range(n):
                for back in range(reach + 1):
                    at = len(known[s]) + i - back
                    wanted = rows[at] if at >= 0 else torch.full((CHANNELS,), 7.0, dtype=torch.float64)
                    assert torch.equal(extended.back(back)[row + i], wanted)
            count = rng.randint(1, n) if s in decode else n
            pending[s] = count if s in decode else 0
            known[s] = rows[: len(known[s]) + count]
            row += n


def test_commit_alone() -> None:
    """Accepted rows can be committed without a forward pass, of any slots; the others are left alone."""
    history = History(torch.arange(8.0).view(4, 2, 1), torch.arange(10.0, 22.0).view(4, 3, 1))
    tail = commit(history, torch.tensor([3, 1]), torch.tensor([1, 3]))
    assert tail.flatten().tolist() == [7, 19, 14, 15]
    assert history.tail.flatten().tolist() == [0, 1, 14, 15, 4, 5, 7, 19]


def test_integers_stay_integers() -> None:
    history = History(
        torch.zeros(2, 2, 1, dtype=torch.int64), torch.zeros(2, 1, 1, dtype=torch.int64), initial=248044
    )
    extended = extend(history, batch([2]), torch.tensor([[10], [11]]))
    assert extended.values.flatten().tolist() == [248044, 248044, 10, 11]
    assert extended.back(2).flatten().tolist() == [248044, 248044]


def ragged(lengths: list[int], dtype: torch.dtype, channels: int) -> tuple[History, Batch, Tensor]:
    """Fresh prompts whose slots are the first column of a wider table of int32, as engines keep them."""
    g, n = generator(1), len(lengths)
    table = torch.full((n, 5), -1, dtype=torch.int32)
    table[:, 0] = torch.arange(n, 0, -1)
    history = History(
        torch.zeros(n + 1, 9, channels, dtype=dtype), torch.zeros(n + 1, 1, channels, dtype=dtype)
    )
    x = torch.randn(sum(lengths), channels, generator=g).to(dtype)
    return history, replace(batch(lengths), slots=table[:, 0]), x


@pytest.mark.parametrize("lengths", [[8160, 32], [40, 3, 17], [17, 40, 3], [3, 17, 40]])
def test_b5_b6_several_prompts_through_strided_slots(lengths: list[int]) -> None:
    """Whatever their order, each has what it has alone, by no more operators than one prompt of all the rows takes."""
    taps = torch.randn(CHANNELS, 4, generator=generator(2))
    history, step, x = ragged(lengths, torch.float32, CHANNELS)
    y = causal_conv(extend(history, step, x), taps, 3)
    for slot, a, b in zip(step.slots.tolist(), step.starts, step.starts[1:], strict=False):
        alone = History(torch.full((2, 9, CHANNELS), torch.nan), torch.full((2, 1, CHANNELS), torch.nan))
        assert torch.equal(y[a:b], causal_conv(extend(alone, batch([b - a]), x[a:b]), taps, 3))
        assert torch.equal(history.tail[slot], alone.tail[1])


def test_b7_prompts_are_not_padded_to_the_longest() -> None:
    """Temporaries of a long and a short prompt: less than two copies of the rows, as bf16."""
    channels = 64
    taps = torch.randn(channels, 4, generator=generator(2))

    def temporaries(lengths: list[int]) -> int:
        history, step, x = ragged(lengths, torch.bfloat16, channels)
        with Peak() as seen:
            y = causal_conv(extend(history, step, x), taps, 3)
        return seen.peak - y.nbytes

    rows = 8160 + 32
    assert temporaries([8160, 32]) < 2 * rows * channels * 2
    assert temporaries([8160, 32]) < 1.02 * temporaries([rows])
