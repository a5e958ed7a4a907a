"""Noise with known answers, filters against a list-based definition, and frequencies against softmax."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from nextfit.ops.sampling import choose, gumbel, penalise, top_logprobs
from nextfit.ops.sampling.noise import philox

OFF: dict = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, choice=0)


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: tuple, key: tuple, wanted: tuple) -> None:
    """The vectors published with Random123 for philox4x32-10."""
    assert tuple(int(word) for word in philox(counter, key)) == wanted


def test_noise_depends_on_everything_and_on_nothing_else() -> None:
    tokens = torch.arange(1000)
    noise = gumbel(7, 0, torch.tensor([5]), tokens)
    assert torch.equal(gumbel(7, 0, torch.tensor([[4], [5]]), tokens[None])[1], noise)
    others = [gumbel(8, 0, torch.tensor([5]), tokens), gumbel(7 + 2**32, 0, torch.tensor([5]), tokens)]
    others += [gumbel(7, 1, torch.tensor([5]), tokens), gumbel(7, 0, torch.tensor([6]), tokens)]
    for other in others:
        assert float((other == noise).double().mean()) < 0.01
    assert torch.isfinite(gumbel(-1, 3, torch.tensor([2**31]), tokens)).all()


def test_noise_is_gumbel() -> None:
    x = gumbel(3, 0, torch.arange(400)[:, None], torch.arange(500)[None]).flatten()
    assert abs(float(x.mean()) - 0.5772) < 0.01 and abs(float(x.var()) - math.pi**2 / 6) < 0.02
    for q in (0.01, 0.25, 0.5, 0.75, 0.99):
        assert abs(float((x < -math.log(-math.log(q))).double().mean()) - q) < 0.004


def naive_filter(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Candidates that are left, by definition."""
    order = sorted((i for i, x in enumerate(logits) if x > -math.inf), key=lambda i: (-logits[i], i))
    if top_k:
        order = order[:top_k]
    best = logits[order[0]]
    p = {i: math.exp((logits[i] - best) / temperature) for i in order}
    total, kept, mass = sum(p.values()), [], 0.0
    for i in order:
        if top_p < 1 and mass >= top_p:
            break
        kept.append(i)
        mass += p[i] / total
    return {i for i in kept if p[i] >= min_p}


@pytest.mark.parametrize("seed", range(40))
def test_filters(seed: int) -> None:
    """The choice is the argmax of noisy scores among exactly the candidates of the definition."""
    rng = random.Random(seed)
    n, rows = rng.choice([1, 5, 30]), 8
    logits = [[rng.choice([rng.gauss(0, 3), 1.0, 2.0]) for _ in range(n)] for _ in range(rows)]
    for row in logits:
        for i in range(1, n):
            if rng.random() < 0.1:
                row[i] = -math.inf
    settings = dict(
        temperature=rng.choice([0.3, 1.0, 1.7]),
        top_k=rng.choice([0, 1, 3, 100]),
        top_p=rng.choice([1.0, 0.9, 0.5, 0.01]),
        min_p=rng.choice([0.0, 0.05, 0.3, 1.0]),
    )
    positions = torch.randint(0, 1000, (rows,), generator=torch.Generator().manual_seed(seed))
    got = choose(torch.tensor(logits, dtype=torch.float64), positions, seed=seed, choice=2, **settings)  # type: ignore[arg-type]
    for row, position, token in zip(logits, positions, got.tolist(), strict=True):
        noise = gumbel(seed, 2, position[None], torch.arange(n)).tolist()
        left = naive_filter(row, **settings)  # type: ignore[arg-type]
        assert token == max(left, key=lambda i: row[i] / settings["temperature"] + noise[i])


@pytest.mark.parametrize("widths", [(0.1,), (3.0,), (0.1, 3.0)], ids=("flat", "peaked", "both"))
@pytest.mark.parametrize("min_p", [0.0, 0.05])
def test_a_large_vocabulary(widths: tuple[float, ...], min_p: float) -> None:
    """More tokens than are sorted, or get their noise, at once; rows alike, and each kind beside the other."""
    n, settings = 2500, dict(temperature=0.9, top_k=0, top_p=0.9, min_p=min_p)
    g = torch.Generator().manual_seed(5)
    rows = [(torch.randn(n, generator=g) * w).round(decimals=1) for w in widths for _ in range(20)]
    logits, positions = torch.stack(rows).double(), torch.arange(len(rows))
    got = choose(logits, positions, seed=6, choice=0, **settings)  # type: ignore[arg-type]
    noise = gumbel(6, 0, positions[:, None], torch.arange(n)).tolist()
    for row, extra, token in zip(logits.tolist(), noise, got.tolist(), strict=True):
        left = naive_filter(row, **settings)  # type: ignore[arg-type]
        assert token == max(left, key=lambda i: row[i] / settings["temperature"] + extra[i])


def test_equal_logits_at_the_cut_keep_the_lower_id() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 1.0]]).double().expand(200, -1)
    seen = set(choose(logits, torch.arange(200), **{**OFF, "top_k": 2}).tolist())
    assert seen == {1, 2}
    seen = set(choose(logits, torch.arange(200), **{**OFF, "top_p": 0.3}).tolist())
    assert seen == {1, 2}
    assert choose(logits[:1], torch.zeros(1, dtype=torch.int64), **{**OFF, "temperature": 0}).tolist() == [1]


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"choice": 4, "seed": 2**63}],
)
def test_frequencies(settings: dict) -> None:
    """Chi-square of the choices at many positions against the softmax of what the filters leave."""
    n, draws = 12, 20_000
    row = torch.randn(n, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 1.5
    settings = {**OFF, **settings}
    got = choose(row.expand(draws, -1), torch.arange(draws), **settings)
    left = sorted(
        naive_filter(row.tolist(), *(settings[k] for k in ("temperature", "top_k", "top_p", "min_p")))
    )
    expected = (row[left] / settings["temperature"]).softmax(0) * draws
    counts = torch.bincount(got, minlength=n).double()
    assert float(counts.sum()) == float(counts[left].sum())
    chi = float(((counts[left] - expected).square() / expected).sum())
    freedom = max(1, len(left) - 1)
    assert chi < freedom + 5 * math.sqrt(2 * freedom) + 5  # the draws are fixed, so this never flickers


def naive_penalty(
    x: float, prompt: bool, count: int, repetition: float, presence: float, frequency: float
) -> float:
    if prompt or count:
        x = x / repetition if x > 0 else x * repetition
    return x - presence * (count > 0) - frequency * count


def test_penalties() -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 50, generator=g, dtype=torch.float64)
    prompt = torch.rand(50, generator=g) < 0.4
    counts = torch.randint(0, 3, (6, 50), generator=g)
    got = penalise(logits, prompt, counts, 1.3, 0.4, -0.2)
    for row in range(6):
        for i in range(50):
            wanted = naive_penalty(
                float(logits[row, i]), bool(prompt[i]), int(counts[row, i]), 1.3, 0.4, -0.2
            )
            assert abs(float(got[row, i]) - wanted) < 1e-12


def test_top_logprobs() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0, -1.0], [3.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    own, ids, values = top_logprobs(logits, torch.tensor([3, 4]), 3)
    for row, token in enumerate((3, 4)):
        total = math.log(sum(math.exp(x) for x in logits[row].tolist()))
        assert abs(float(own[row]) - (float(logits[row, token]) - total)) < 1e-12
        assert torch.allclose(values[row], logits[row, ids[row]] - total)
    assert ids.tolist() == [[1, 2, 3], [0, 1, 2]]
    own, ids, values = top_logprobs(logits, torch.tensor([0, 0]), 0)
    assert ids.shape == values.shape == (2, 0) and own.shape == (2,)


def test_float32_logits_choose_like_float64() -> None:
    logits: Tensor = torch.randn(300, 40, generator=torch.Generator().manual_seed(1))
    a = choose(logits, torch.arange(300), **OFF)
    b = choose(logits.double(), torch.arange(300), **OFF)
    assert torch.equal(a, b)
