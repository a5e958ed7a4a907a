"""The compiled operators against the reference, in bf16 and on poisoned outputs; no row sees its neighbours."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor

from nextfit.ops import compiled, delta_net, dispatch, experts, hyper, linear
from nextfit.ops.history import History
from tests.ops.common import SPACE, batch, generator

ROWS = [0, 1, 2, 5, 16, 17, 40, 65]
EPS = 1e-6


@pytest.fixture(autouse=True)
def built() -> None:
    if compiled.kernels is None:
        assert not shutil.which("c++"), "there is a compiler, but no compiled operators: pip install -e ."
        pytest.skip("no compiler was found when the package was installed")


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, generator=generator(seed)) * scale).bfloat16()


def poisoned(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan, dtype=torch.bfloat16)


def close(got: Tensor, expected: Tensor, steps: float) -> bool:
    """Within `steps` times 2^-8, the relative spacing of bf16, of the largest value."""
    return bool(
        (got.double() - expected.double()).abs().max() <= steps * 2**-8 * expected.double().abs().max()
    )


def strided(x: Tensor) -> Tensor:
    """The same rows as a view into wider ones full of NaN."""
    wider = poisoned(len(x), x.shape[1] + 32)
    wider[:, : x.shape[1]] = x
    return wider[:, : x.shape[1]]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 132])
@pytest.mark.parametrize("columns", [32, 96, 1024])
def test_linear(rows: int, count: int, columns: int) -> None:
    x, w = strided(random(rows, columns)), random(count, columns, seed=1, scale=columns**-0.5)
    out = strided(poisoned(rows, count)) if count % 32 == 0 else poisoned(rows, count)
    linear.linear(x, w, rows, SPACE, out)
    if rows:
        assert close(out, x.double() @ w.double().T, 1)
        alone = linear.linear(x[-1:], w, 1, SPACE)
        assert torch.equal(alone[0], out[-1])


def test_linear_takes_decode_rows_only() -> None:
    """Rows of the prefill class, other types and odd widths stay with the reference."""
    x, w = random(5, 64), random(48, 64, seed=1)
    mixed = linear.linear(x, w, 2, SPACE)
    assert torch.equal(mixed[:2], linear.linear(x[:2], w, 2, SPACE))
    assert torch.equal(mixed[2:], linear.linear(x[2:], w, 0, SPACE))
    for a, b in [(x.float(), w), (x, w.float()), (x[:, :40], w[:, :40]), (x, w.T)]:
        assert compiled.format_of(a, b) != "bfloat16"
    assert compiled.format_of(x, w) == "bfloat16"
    chosen = {
        c.rows: c.route
        for c in dispatch.choices()
        if (c.operator, c.format) == ("linear.product", "bfloat16")
    }
    assert chosen == {"few": "cpu", "many": "reference"}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("hidden, streams, rank, injects", [(32, 2, 32, 2), (64, 4, 32, 0), (96, 4, 64, 4)])
def test_hyper_read(rows: int, hidden: int, streams: int, rank: int, injects: int) -> None:
    width = hidden * streams
    x, gain = strided(random(rows, width, scale=30)), 1 + random(width, seed=1).float() / 8
    down = random(rank + injects, width, seed=2, scale=3 * width**-0.5)
    up = random(width, rank, seed=3, scale=3 * rank**-0.5)

    def read(x: Tensor) -> tuple[Tensor, Tensor]:
        out = poisoned(len(x), hidden)
        return hyper.read(x, gain, down, up, rank, streams, EPS, len(x), SPACE, out), out

    got = read(x)
    assert [g.shape for g in got] == [(rows, injects), (rows, hidden)]
    if not rows:
        return
    assert all(torch.equal(a[0], b[-1]) for a, b in zip(read(x[-1:]), got, strict=True))
    out = torch.empty(rows, hidden, dtype=torch.float64)
    a, b, c, d = x.double(), gain.double(), down.double(), up.double()
    inject = hyper.read(a, b, c, d, rank, streams, EPS, rows, SPACE, out)
    assert close(got[1], out, 3)
    assert not injects or close(got[0], inject, 3)


def chosen_experts(rows: int, count: int, k: int, upper: bool) -> Tensor:
    """Router's logits whose winners are random, in the upper half where `upper`."""
    logits = random(rows, count, seed=4)
    best = torch.stack([torch.randperm(count, generator=generator(r))[:k] for r in range(rows)])
    best = best % (count // 2) + count - count // 2 if upper else best
    return logits.scatter_add_(1, best, torch.full(best.shape, 8.0).bfloat16())


@pytest.mark.parametrize("rows", ROWS[1:])
@pytest.mark.parametrize(
    "count, k, normalise",
    [(16, 3, True), (128, 8, False), (257, 10, True), (300, 10, True), (513, 10, False)],
)
def test_experts(rows: int, count: int, k: int, normalise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, width, shared = 64, 32, 96
    gate_up, down = random(count, 2 * width, hidden, seed=1), random(count, hidden, width, seed=2)
    x = strided(random(rows, hidden))
    logits = chosen_experts(rows, count, k, upper=count > 256)
    projected = torch.cat([logits, random(rows, 1 + 2 * shared, seed=5)], dim=1)
    shared_down = random(hidden, shared, seed=3)
    w = experts.Experts(gate_up, down, shared_down, k, normalise)
    ids, _ = experts.route(logits, k, normalise)
    unused = torch.ones(count, dtype=torch.bool)
    unused[ids.flatten()] = False
    gate_up[unused], down[unused] = torch.nan, torch.nan

    out = experts.layer(x, projected, w, rows, SPACE, poisoned(rows, hidden))
    alone = experts.layer(x[-1:], projected[-1:], w, 1, SPACE, poisoned(1, hidden))
    assert torch.equal(alone[0], out[-1])
    exact = experts.Experts(gate_up.double(), down.double(), shared_down.double(), k, normalise)
    expected = torch.empty(rows, hidden, dtype=torch.float64)
    experts.layer(x.double(), projected.double(), exact, rows, SPACE, expected)
    assert close(out, expected, 4)


HEADS, KEY_HEADS, KEY, VALUE, WINDOW, TAPS = 6, 2, 32, 64, 6, 4
CHANNELS = 2 * KEY_HEADS * KEY + HEADS * VALUE


def mixer(dtype: torch.dtype, activation: str) -> delta_net.Mixer:
    def vector(*shape: int, seed: int) -> Tensor:
        return torch.rand(*shape, generator=generator(seed)).to(torch.promote_types(dtype, torch.float32))

    return delta_net.Mixer(
        vector(CHANNELS, TAPS, seed=1) - 0.5,
        -vector(HEADS, seed=2),
        vector(HEADS, seed=3),
        vector(VALUE, seed=4) + 0.5,
        torch.arange(HEADS) % KEY_HEADS,
        *(KEY_HEADS, KEY, VALUE, activation, EPS),
    )


def slots(dtype: torch.dtype, count: int) -> tuple[History, delta_net.DeltaState]:
    """Poisoned storage, the delta state of a bf16 model in float32."""

    def new(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.full((count, *shape), torch.nan, dtype=dtype)

    exact = torch.promote_types(dtype, torch.float32)
    history = History(new(TAPS - 1, CHANNELS, dtype=dtype), new(WINDOW, CHANNELS, dtype=dtype))
    sizes = (
        (HEADS, KEY, VALUE),
        (WINDOW, HEADS, KEY),
        (WINDOW, HEADS, VALUE),
        (WINDOW, HEADS),
        (WINDOW, HEADS),
    )
    return history, delta_net.DeltaState(*(new(*s, dtype=exact) for s in sizes))


class DeltaTrace:
    """Steps of some sequences; `run` takes them all, or one of them as if it were alone and had no drafts."""

    steps = [(1, 5, 2), (3, 1, 6), (1, 1, 1), (4, 5, 2), (2, 6, 1)]  # rows of each sequence
    accepted = [(1, 2, 0), (3, 1, 6), (0, 1, 1), (4, 1, 2), (1, 1, 1)]  # of them, known in the next step

    def __init__(self, dtype: torch.dtype, activation: str = "sigmoid") -> None:
        self.weights = mixer(dtype, activation)
        self.history, self.delta = slots(dtype, 9)
        self.dtype = dtype

    def rows(self, step: int, s: int) -> Tensor:
        """Of sequence s: what a rejected row held must not matter, so each step draws its own."""
        return random(self.steps[step][s], sum(self.weights.sizes), seed=100 * step + s).to(self.dtype)

    def mix(
        self, x: Tensor, firsts: list[int], replay: list[int], slot: list[int], lengths: list[int]
    ) -> Tensor:
        b = batch(lengths, firsts, len(lengths), slots=slot, replay=replay)
        return delta_net.mix(x, self.weights, self.history, self.delta, b)

    def run(self) -> list[list[Tensor]]:
        """Outputs of each step and sequence."""
        at, replay, found = [0, 0, 0], [0, 0, 0], []
        for step, lengths in enumerate(self.steps):
            x = torch.cat([self.rows(step, s) for s in range(3)])
            found.append(list(self.mix(x, at, replay, [7, 2, 5], list(lengths)).split(lengths)))
            replay = list(self.accepted[step])
            at = [a + r for a, r in zip(at, replay, strict=True)]
        return found

    def alone(self, s: int) -> list[list[Tensor]]:
        """The accepted rows of sequence s, one a step."""
        at, found = 0, []
        for step in range(len(self.steps)):
            outputs = []
            for row in self.rows(step, s)[: self.accepted[step][s]]:
                outputs.append(self.mix(row[None], [at], [min(at, 1)], [3], [1])[0])
                at += 1
            found.append(outputs)
        return found


@pytest.mark.parametrize("activation", ["sigmoid", "silu"])
def test_delta_net(activation: str) -> None:
    """Verify steps with drafts that are accepted in part, on poisoned slots, against the reference in float64."""
    ours, exact = DeltaTrace(torch.bfloat16, activation), DeltaTrace(torch.float64, activation)
    for a, b in zip(ours.run(), exact.run(), strict=True):
        assert all(close(x, y, 1) for x, y in zip(a, b, strict=True))
    for slot in (2, 5, 7):
        assert torch.equal(ours.history.tail[slot].double(), exact.history.tail[slot])
        assert torch.allclose(ours.delta.matrix[slot].double(), exact.delta.matrix[slot], atol=1e-5)
    untouched = [0, 1, 3, 4, 6, 8]
    assert ours.delta.matrix[untouched].isnan().all() and ours.history.tail[untouched].isnan().all()


def test_delta_net_leaves_the_bits_of_a_sequence_alone_without_drafts() -> None:
    together = DeltaTrace(torch.bfloat16).run()
    for s in range(3):
        for step, outputs in enumerate(DeltaTrace(torch.bfloat16).alone(s)):
            for row, y in enumerate(outputs):
                assert torch.equal(y, together[step][s][row])


def test_routing_takes_the_first_of_equals_and_never_a_nan() -> None:
    """A row whose experts all but two tie, and one with a NaN among its logits: the others are as without it."""
    count, hidden = 48, 32
    gate_up, down = random(count, 64, hidden, seed=1), random(count, hidden, 32, seed=2)
    gate_up[[0, 1, 2, 40], :, :], down[[0, 1, 2, 40]] = 0, 0
    logits = torch.zeros(2, count).bfloat16()
    logits[:, 40] = 1  # 40, then the first three of the equal ones: all of them give zero
    logits[1, 47] = torch.nan
    projected = torch.cat([logits, torch.zeros(2, 65).bfloat16()], dim=1)
    w = experts.Experts(gate_up, down, torch.zeros(hidden, 32).bfloat16(), 4, True)
    out = experts.layer(random(2, hidden), projected, w, 2, SPACE, poisoned(2, hidden))
    assert torch.equal(out, torch.zeros(2, hidden).bfloat16())
