"""Random traces of requests, and those in which certain things happen for sure."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.engine.alike import FAMILY, everybody, of_kind, turn
from tests.engine.drive import LONG, PENALISED, Trace, run

WAYS = ["right", "alternating", *map(str, range(8))]
REQUESTS = 12
drawn = partial(  # the same traces on every run; a failing one is printed, not shrunk
    settings,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@st.composite
def traces(draw: st.DrawFn, model: int) -> Trace:
    """Hypothesis chooses the limits, a seed the rest: it would mostly try few requests that all come at once."""
    limits = dict(
        sequences=draw(st.sampled_from([4, 3, 2, 1])),
        prefill_chunk=draw(st.sampled_from([16, 50, 3, 64, 128, 23, 7, 1])),
        draft=draw(st.sampled_from([4, 8, 3, 1, 2, 5, 6, 7, 0])),
        adaptive_draft=draw(st.booleans()),
        decode_gap=draw(st.sampled_from([16, 128, 1])),
        page_size=draw(st.sampled_from([4, 16])),
        kv_tokens=draw(st.sampled_from([1, None])),  # 1: as little as one request of the full context needs
        answer_reserve=draw(st.sampled_from([1, 8, 4096])),
        paranoid=draw(st.integers(0, 9)) == 9,
    )
    rng = random.Random(draw(st.integers(0, 2**32)))
    numbers = rng.sample(range(REQUESTS), rng.randint(2, 5))
    numbers += [PENALISED] * (rng.random() < 0.3)
    numbers += rng.sample(LONG, rng.choice([0, 0, 1, 3]))
    numbers = [model * FAMILY + n for n in numbers]
    arrivals = {n: rng.choice([0, 0, 2, 9]) for n in numbers}
    cancels = {n: arrivals[n] + rng.randint(1, 15) for n in numbers if rng.random() < 0.3}
    forced = {n: rng.choice(WAYS) for n in numbers if rng.random() < 0.6}
    return Trace(model, limits, arrivals, cancels, forced, check_drafts=rng.random() < 0.2)


def certain(model: int) -> list[Trace]:
    """What must happen whatever Hypothesis finds: preemption, requests that leave at every stage, late rejections."""
    base = model * FAMILY
    long = [base + n for n in LONG]
    small = dict(sequences=4, prefill_chunk=64, draft=3, page_size=4, kv_tokens=1)
    slow = dict(sequences=2, prefill_chunk=3, draft=8, page_size=16)
    deep = dict(sequences=4, prefill_chunk=64, draft=8, page_size=16)
    return [
        Trace(model, small, dict.fromkeys(long, 0), {}, {long[0]: "right", long[2]: "1"}),
        Trace(model, slow, {base + 7: 0, base + 5: 0, base + 9: 0}, {base + 7: 2, base + 5: 1, base + 9: 3}),
        Trace(
            model,
            small,
            dict.fromkeys([long[1], base + 5, base + PENALISED], 0),
            {long[1]: 5},
            {base + 5: "2", base + PENALISED: "3"},
            check_drafts=True,
        ),
        Trace(model, deep, dict.fromkeys(long, 0), {}, {n: str(4 + i) for i, n in enumerate(long)}),
    ]


@st.composite
def alike_traces(draw: st.DrawFn, model: int) -> Trace:
    """Requests that begin alike come while others that they share with run, wait or are long gone."""
    limits = dict(
        snapshots=draw(st.sampled_from([16, 3, 2, 1, 0])),
        sequences=draw(st.sampled_from([4, 3, 2, 1])),
        prefill_chunk=draw(st.sampled_from([16, 3, 7, 50, 128])),
        draft=draw(st.sampled_from([4, 8, 3, 1, 0])),
        adaptive_draft=draw(st.booleans()),
        page_size=draw(st.sampled_from([4, 16])),
        kv_tokens=draw(st.sampled_from([1, None, 200])),
        host_kv_tokens=draw(st.sampled_from([0, 40, 400])),
        snapshot_every=draw(st.sampled_from([16, 32, 2048])),
        answer_every=draw(st.sampled_from([16, 1])),
    )
    rng = random.Random(draw(st.integers(0, 2**32)))
    numbers = rng.sample(everybody(model), rng.randint(3, 6))
    numbers += [turn(model, count) for count in (1, 2) if rng.random() < 0.2]
    numbers += [n for n in of_kind("choice", model) if rng.random() < 0.3 and n not in numbers]
    numbers += [model * FAMILY + n for n in rng.sample(range(REQUESTS), rng.choice([0, 0, 1, 2]))]
    arrivals = {n: rng.choice([0, 0, 1, 4, 12, 30, 60]) for n in numbers}
    cancels = {n: arrivals[n] + rng.randint(1, 12) for n in numbers if rng.random() < 0.2}
    forced = {n: rng.choice(WAYS) for n in numbers if rng.random() < 0.4}
    preempts = {n: range(arrivals[n] + 2, 100, rng.randint(3, 9)) for n in numbers if rng.random() < 0.15}
    return Trace(model, limits, arrivals, cancels, forced, rng.random() < 0.2, preempts)


def certain_alike(model: int) -> list[Trace]:
    """Every kind of hit, with little and with much room."""
    roomy = dict(sequences=2, prefill_chunk=16, draft=4, page_size=4, snapshots=16, answer_every=16)
    tight = dict(
        sequences=4, prefill_chunk=64, draft=3, page_size=4, kv_tokens=1, snapshots=2, answer_every=16
    )
    cold = tight | dict(sequences=1, snapshots=16, host_kv_tokens=600, adaptive_draft=False)
    one = dict(sequences=1, prefill_chunk=128, draft=8, page_size=16, snapshots=16, answer_every=16)
    first, again = of_kind("first", model)[0], of_kind("again", model)
    parted, header = of_kind("parted", model), of_kind("header", model)
    talk, turns = of_kind("talk", model)[0], [turn(model, count) for count in (1, 2)]
    choices, long = of_kind("choice", model), [model * FAMILY + n for n in LONG]
    returning = [first, *long[:2], again[0], parted[8], *long[2:], again[1]]
    in_turn = [first, *again, *of_kind("longer", model), *parted, *of_kind("short", model), talk, *turns]
    return [
        Trace(model, roomy, {n: 6 * i for i, n in enumerate(in_turn)}, {}, {}, check_drafts=True),
        Trace(
            model, one, dict.fromkeys([first, *again, *parted[::2], talk, turns[0]], 0), {}, {again[0]: "1"}
        ),
        Trace(model, tight, dict.fromkeys([*choices, *header, talk], 0), {choices[1]: 1, header[0]: 3}),
        Trace(model, tight | dict(snapshots=16), dict.fromkeys([*long, talk, *turns], 0), {}, {talk: "2"}),
        Trace(model, roomy, dict.fromkeys([*choices, *parted[:3], first, again[0]], 0), {again[0]: 1}),
        Trace(model, cold, dict.fromkeys(returning, 0)),
        Trace(model, roomy | dict(answer_every=4, draft=0), {talk: 0}, preempts={talk: range(4, 60, 3)}),
    ]


def run_drawn(
    strategy: Callable[[int], st.SearchStrategy[Trace]],
    for_sure: Callable[[int], Iterable[Trace]],
    model: int,
    count: int,
    exact: bool = True,
) -> Counter:
    """Run `count` traces of a model and the certain ones, in float32 unless `exact`; what happened in them."""
    seen: Counter = Counter()

    @seed(model)
    @drawn(max_examples=count)
    @given(strategy(model))
    def check(trace: Trace) -> None:
        run(trace if exact else rough(trace), seen)

    with torch.inference_mode():  # a quarter faster
        check()
        for trace in for_sure(model):
            run(trace if exact else rough(trace), seen)
    return seen


def rough(trace: Trace) -> Trace:
    """The same in float32, where drafts too may fall either way."""
    return replace(trace, exact=False, check_drafts=False)


def missing(seen: Counter, depths: int) -> list[object]:
    """What should have happened in `traces` and did not."""
    wanted: list[object] = ["mixed steps", "preempted", "drafts compared", "prompts over the sparse budget"]
    wanted += ["cancelled in the prompt", "cancelled while decoding", "cancelled while waiting"]
    wanted += [
        "own drafts accepted",
        "greedy",
        "sampled",
        "penalties",
        "top_k",
        "top_p",
        "min_p",
        "logit_bias",
        "choice",
        "min_tokens",
    ]
    wanted += [("rejected at", depth) for depth in range(depths)]
    wanted += [("accepted of", drafts) for drafts in range(1, depths + 1)]
    return [what for what in wanted if not seen[what]]


def missing_alike(seen: Counter) -> list[object]:
    """What should have happened in `alike_traces` and did not."""
    kinds = ("first", "again", "longer", "parted", "short", "header", "choice", "talk", "turn")
    wanted: list[object] = [*(("hit", kind) for kind in kinds), ("missed", "parted")]
    wanted += ["snapshots evicted", "snapshots replaced", "pages evicted", "resumed from a snapshot"]
    wanted += ["pages to the host", "pages back from the host"]
    wanted += ["awaited", "cancelled while awaited", "preempted", "cancelled in the prompt"]
    wanted += ["drafts compared after a hit", "prompts over the sparse budget"]
    return [what for what in wanted if not seen[what]]
