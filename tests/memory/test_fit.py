"""Plans grow with what is asked of them; a refusal names the owner, and its advice is exact."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextfit.errors import ConfigError
from nextfit.memory.hardware import Hardware
from nextfit.memory.plan import Limits, MemoryPlan, plan
from nextfit.memory.plan_fit import Change, explain, smallest_changes, too_big
from nextfit.memory.plan_rows import Temporary, colour, temporaries
from nextfit.memory.plan_values import GPU_ONLY, OWNERS
from tests.memory.released import RELEASED, released

GiB = 1 << 30
FORMATS = "nvfp4/q8_0/bf16"
V100S = Hardware((16 * GiB,) * 4, 64 * GiB)

limits = st.builds(
    Limits,
    context=st.integers(2, 262144),
    sequences=st.integers(1, 64),
    draft=st.integers(0, 8),
    prefill_chunk=st.integers(1, 8192),
    page_size=st.sampled_from([4, 16, 64, 256]),
    kv_tokens=st.none() | st.integers(1, 1 << 20),
    snapshots=st.integers(0, 100),
    host_kv_tokens=st.integers(0, 1 << 20),
)
on_gpus = st.builds(
    replace,
    limits,
    kv=st.sampled_from([None, "host", "gpu"]),
    kv_format=st.sampled_from([None, "q8_0", "f8_e4m3"]),
    host_experts=st.integers(20, 512),
)
GROWS = ("context", "sequences", "draft", "prefill_chunk", "kv_tokens", "snapshots", "host_kv_tokens")


def needs(lim: Limits, hardware: Hardware = V100S) -> MemoryPlan:
    return plan(RELEASED, released(FORMATS), hardware, lim)


def more(lim: Limits, name: str, by: int) -> Limits:
    value = getattr(lim, name)
    if value is None:
        value = max(lim.total_tokens(), lim.context)
    most = {"context": 262144, "draft": 8}.get(name, 1 << 30)
    return replace(lim, **{name: min(most, value + by)})


@settings(max_examples=60, deadline=None)
@given(on_gpus, st.sampled_from(GROWS), st.integers(1, 5000), st.sampled_from([1, 2, 4]))
def test_more_never_needs_less_on_gpus(lim: Limits, name: str, by: int, gpus: int) -> None:
    machine = Hardware((16 * GiB,) * gpus, 64 * GiB)
    small, large = needs(lim, machine), needs(more(lim, name, by), machine)
    for memory in small.places():
        assert small.used(memory) <= large.used(memory), memory


@settings(max_examples=60, deadline=None)
@given(limits, st.sampled_from(GROWS), st.integers(1, 5000))
def test_more_never_needs_less_on_a_cpu(lim: Limits, name: str, by: int) -> None:
    machine = Hardware((), 64 * GiB)
    assert needs(lim, machine).used("host") <= needs(more(lim, name, by), machine).used("host")


@settings(max_examples=30, deadline=None)
@given(on_gpus)
def test_a_plan_is_consistent(lim: Limits) -> None:
    p = needs(lim)
    assert {b.owner for b in p.buffers} <= set(OWNERS)
    assert all(b.bytes > 0 and b.formula and b.lifetime for b in p.buffers)
    assert len({(b.owner, b.what, b.place) for b in p.buffers}) == len(p.buffers)
    for memory in p.places():
        assert sum(p.by_owner(memory).values()) == p.used(memory)
    counted = sum(b.bytes for b in p.buffers if b.place != "mapped file")
    assert counted == sum(p.used(m) for m in p.places())
    # each expert that leaves the GPU is on the host, and the reserve is there whatever happens
    assert all(p.by_owner(f"gpu:{k}")["reserve"] == 512 << 20 for k in range(4))


@settings(max_examples=40, deadline=None)
@given(limits, st.integers(4, 40), st.integers(1, 2))
def test_as_few_experts_as_fit_are_on_the_host(lim: Limits, gib: int, ranks: int) -> None:
    machine = Hardware((gib * GiB,) * 2 * ranks, 512 * GiB)
    p = needs(lim, machine)
    if not p.short():
        for h in {0, 1, p.host_experts // 2, p.host_experts - 1} - {-1, p.host_experts}:
            assert h > p.host_experts or needs(replace(lim, host_experts=h), machine).short(), h


CASES: list[tuple[Hardware, dict[str, Any]]] = [
    (Hardware((16 * GiB,) * 4, 30 * GiB), {}),
    (Hardware((16 * GiB,) * 4, 30 * GiB), {"context": 100_000, "sequences": 20}),
    (Hardware((16 * GiB,) * 4, 64 * GiB), {"host_experts": 60}),
    (Hardware((16 * GiB,) * 4, 36 * GiB), {"host_experts": 500}),
    (Hardware((16 * GiB,) * 4, 34 * GiB), {"sequences": 64, "kv": "gpu"}),
    (Hardware((16 * GiB,) * 4, 37 * GiB), {}),
    (Hardware((24 * GiB,) * 2, 44 * GiB), {"snapshots": 200}),
    (Hardware((16 * GiB,) * 4, 50 * GiB), {"kv_tokens": 600_000}),
    (Hardware((24 * GiB,) * 2, 40 * GiB), {"kv": "gpu", "prefill_chunk": 100_000, "sequences": 2}),
    (Hardware((6 * GiB,), 90 * GiB), {"draft": 8, "sequences": 3, "context": 20_000}),
    (Hardware((), 78 * GiB), {"context": 262144, "sequences": 16}),
    (Hardware((), 40 * GiB), {}),
    (Hardware((), 120 * GiB), {"host_kv_tokens": 2_000_000}),
    (Hardware((8 * GiB,) * 2, 10 * GiB), {}),
]


@pytest.mark.parametrize(("machine", "given_"), CASES)
def test_advice_is_exact(machine: Hardware, given_: dict[str, Any]) -> None:
    """What is proposed fits, one step less does not, and what has no answer has none."""
    lim = Limits(**{"context": 262144, **given_})
    weights = released(FORMATS)
    assert not needs(lim, machine).fits
    changes = smallest_changes(RELEASED, weights, machine, lim)
    names = {"context", "sequences", "draft", "prefill_chunk", "kv_tokens", "snapshots"}
    names |= {"host_kv_tokens"} & given_.keys()
    assert {x.setting for x in changes} == names | (set(GPU_ONLY) if machine.gpus else set())
    for x in changes:
        if isinstance(x.value, int):
            assert needs(x.apply(lim), machine).fits, x
            assert isinstance(x.now, int)
            step = 1 if x.now > x.value else -1
            assert not needs(replace(x, value=x.value + step).apply(lim), machine).fits, x
        elif x.value is not None:
            assert needs(x.apply(lim), machine).fits, x
        else:
            for value in tries(x, lim):
                assert not needs(replace(x, value=value).apply(lim), machine).fits, (x, value)
    text = explain(needs(lim, machine), changes)
    assert all(f"--{x.setting.replace('_', '-')}" in text for x in changes)


def tries(x: Change, lim: Limits) -> list[Any]:
    low = {"context": 2, "sequences": 1, "draft": 0, "prefill_chunk": 1, "snapshots": 0}
    if x.setting == "host_experts":
        return random.Random(0).sample(range(513), 12)
    if x.setting == "kv":
        return ["host", "gpu"]
    if x.setting == "kv_format":
        return ["bf16", "q8_0", "f8_e4m3"]
    return [low.get(x.setting, lim.context)]


def test_every_kind_of_advice_is_given() -> None:
    """The cases above reach an answer for every setting."""
    found = set()
    for machine, given_ in CASES:
        lim = Limits(**{"context": 262144, **given_})
        found |= {
            x.setting
            for x in smallest_changes(RELEASED, released(FORMATS), machine, lim)
            if x.value is not None
        }
    assert found == {*GROWS, *GPU_ONLY}


def test_the_owner_that_is_too_big_is_named() -> None:
    p = needs(Limits(context=262144, kv="gpu", host_experts=512), Hardware((8 * GiB,), 128 * GiB))
    (found,) = too_big(p)
    assert (found.memory, found.owner) == ("gpu:0", "K/V pages")
    assert "largest owner is K/V pages with 6.00 GiB" in str(found)
    (found,) = too_big(needs(Limits(context=4096), Hardware((), 8 * GiB)))
    assert found.owner == "experts" and "alone more than there is" in str(found)
    (found,) = too_big(needs(Limits(context=4096), Hardware((2 * GiB,) * 4, 512 * GiB)))
    assert found.memory == "gpu:0 to gpu:3"


@pytest.mark.parametrize(
    ("gpus", "wrong", "message"),
    [
        (0, {"context": 1}, r"context is 1; expected 2 to 262144 \(--context\)"),
        (0, {"context": 262145}, "expected 2 to 262144"),
        (0, {"sequences": 0}, "sequences is 0; expected at least 1"),
        (0, {"draft": 9}, "expected 0 to 8"),
        (0, {"prefill_chunk": 0}, "--prefill-chunk"),
        (0, {"kv_tokens": 0}, "--kv-tokens"),
        (0, {"page_size": 6}, r"page_size is 6; expected a multiple of 4 \(--page-size\)"),
        (0, {"page_size": 0}, "--page-size"),
        (0, {"dtype": "int8"}, "--dtype"),
        (0, {"kv": "gpu"}, r"--kv is gpu, but there is no GPU to plan for \(--gpu\)"),
        (0, {"kv_format": "q8_0"}, "no GPU"),
        (0, {"host_experts": 1}, "no GPU"),
        (1, {"kv": "disk"}, "expected host or gpu"),
        (1, {"kv_format": "q4_k"}, "--kv-format"),
        (1, {"host_experts": 513}, "expected 0 to 512"),
        (1, {"snapshots": -1}, "--snapshots"),
        (0, {"host_kv_tokens": -1}, "--host-kv-tokens"),
        (1, {"reserve": -1}, "--reserve"),
    ],
)
def test_limits_are_checked(gpus: int, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        needs(Limits(**{"context": 4096, **wrong}), Hardware((16 * GiB,) * gpus, GiB))


spans = st.tuples(st.integers(0, 8), st.integers(0, 8)).map(sorted)
some = st.lists(st.tuples(st.integers(0, 1000), spans), max_size=12)


@settings(max_examples=200, deadline=None)
@given(some)
def test_what_lives_together_shares_no_byte(found: list[tuple[int, list[int]]]) -> None:
    named = [Temporary(str(i), n, a, b) for i, (n, (a, b)) in enumerate(found)]
    offsets, total = colour(named)
    for i, x in enumerate(named):
        assert 0 <= offsets[x.name] <= offsets[x.name] + x.bytes <= total
        for y in named[:i]:
            if x.bytes and y.bytes and x.meets(y):
                apart = offsets[x.name] + x.bytes <= offsets[y.name]
                assert apart or offsets[y.name] + y.bytes <= offsets[x.name]
    assert total <= sum(t.bytes for t in named)


def test_colouring_shares() -> None:
    rows = list(temporaries(RELEASED, 1, 2, True))
    _, total = colour(rows)
    alive = [sum(t.bytes for t in rows if t.first <= now <= t.last) for now in range(17)]
    assert max(alive) <= total <= 1.1 * max(alive)
    assert total < 0.6 * sum(t.bytes for t in rows)
