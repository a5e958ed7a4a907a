"""Cases of other engines' faults that an engine answers for, by name: docs/tested.md lists which test holds which."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request, Stats
from tests.engine.drive import tiny_model
from tests.support.scripted_model import ScriptedEngine, ScriptedModel, wrong_at

Found = dict[str, tuple[list[int], list[float], Output]]


def engine(**limits: Any) -> Engine:
    return Engine(tiny_model(1), EngineConfig(**{"context": 300, "draft": 3, **limits}), ())


def run(e: Engine, *requests: Request) -> Found:
    """Tokens, their logprobs and the last output of requests that come together."""
    found: Found = {}
    tokens: dict[str, list[tuple[int, float]]] = {}
    for r in requests:
        e.add(r)
        tokens[r.id] = []
    while e.has_work():
        for out in e.step():
            tokens[out.request_id] += [(t.token, t.logprob or 0.0) for t in out.tokens]
            if out.finish_reason:
                own = tokens[out.request_id]
                found[out.request_id] = [t for t, _ in own], [p for _, p in own], out
    e.scheduler.check()
    return found


def request(id: str, prompt: list[int], **params: Any) -> Request:
    settings = {"temperature": 0, "logprobs": 0, "max_tokens": 8, "ignore_eos": True, **params}
    return Request(id, prompt, SamplingParams(**settings))


def assert_same(a: Found, b: Found) -> None:
    assert a.keys() == b.keys()
    for id in a:
        assert a[id][0] == b[id][0]
        assert all(abs(p - q) < 1e-9 for p, q in zip(a[id][1], b[id][1], strict=True))


@pytest.mark.parametrize("n", [1, 3, 63, 64, 65, 127, 128, 129, 257])
def test_a7_chunks_change_nothing(n: int) -> None:
    """16 tokens after a prompt in chunks of 64, whole and, of 65, token by token; states: tests/model."""
    asked = request("a", [(7 * i + 3) % 48 for i in range(n)], max_tokens=16)
    wanted = run(engine(prefill_chunk=512), asked)
    for chunk in (64, 1) if n == 65 else (64,):
        assert_same(run(engine(prefill_chunk=chunk), asked), wanted)


@pytest.mark.parametrize("lengths", [[37, 53], [5, 40, 13, 8, 31, 21, 17, 26]])
def test_a8_prompts_of_one_step(lengths: list[int]) -> None:
    asked = [request(str(n), [(5 * i + n) % 48 for i in range(n)]) for n in lengths]
    e = engine(sequences=8, snapshots=0)
    together = run(e, *asked)
    assert e.steps < 20, "the prompts were not in one step"
    for r in asked:
        assert_same({r.id: together[r.id]}, run(engine(snapshots=0), r))


@pytest.mark.parametrize("draft", [0, 3])
def test_a14_choices(draft: int) -> None:
    """Three choices of one seed differ, and are the same again, beside a neighbour, and with drafts or without."""
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    choices = [request(str(i), prompt, temperature=1, seed=7, choice=i) for i in range(3)]
    wanted = run(engine(draft=0), *choices)
    assert len({tuple(tokens) for tokens, *_ in wanted.values()}) == 3
    neighbour = request("n", prompt, temperature=1, seed=8)
    for asked in (choices, [neighbour, *choices]):
        found = run(engine(draft=draft), *asked)
        assert_same({i: found[i] for i in wanted}, wanted)
    unseeded = [run(engine(), request("u", prompt, temperature=1, seed=None))["u"][0] for _ in range(3)]
    assert len(set(map(tuple, unseeded))) == 3


def test_a11_an_end_inside_a_verified_block() -> None:
    """A block [a, b, 248046, d] of the released vocabulary; then another request in that slot."""
    a, b, end, d = 11, 12, 248046, 13
    model = ScriptedModel(vocabulary=248320, end=end)
    e = ScriptedEngine(lambda prompt: [10, a, b, end, d], model=model, tokens_per_step=5, sequences=1)
    e.add(Request("r", [1, 2, 3], SamplingParams(temperature=0)))
    e.step()
    assert e._sequences["r"].drafts == [a, b, end, d]
    (out,) = e.step()
    assert [t.token for t in out.tokens] == [a, b]
    assert (out.finish_reason, out.stop_token) == ("stop", end)
    assert out.stats == Stats(3, 3, 0, 1, 4, 2)
    assert not e.has_work() and e.step() == []
    e.answer = lambda prompt: [20, 21]
    found = run(e, Request("next", [1, 2, 4], SamplingParams(temperature=0)))["next"]
    assert found[0] == [20, 21] and found[2].stop_token == end


def test_a15_cancelled_at_any_moment() -> None:
    """20,000 ids, cancelled in the prompt and in decode, 50 times: free at once, and the next request is served."""
    model = ScriptedModel(vocabulary=320, end=319, wrong=wrong_at(2))
    e = ScriptedEngine(
        lambda prompt: [7] * 50,
        model=model,
        tokens_per_step=4,
        context=20_100,
        sequences=2,
        prefill_chunk=8192,
        snapshot_every=8192,
    )
    cache, slots = e.scheduler.cache, e.scheduler.slots
    rng = random.Random(0)
    prompt = [rng.randrange(300) for _ in range(20_000)]
    moments = set()
    for round in range(50):
        length = 20_000 if round < 8 else 1_000
        e.add(Request("long", [round, *prompt[:length]], SamplingParams(temperature=0)))
        for _ in range(round % 8):
            e.step()
        s = e._sequences["long"]
        moments.add(s.generated > 0)
        e.cancel("long")
        assert cache.pages.free + cache.pages.idle == cache.pages.capacity and slots.free == slots.capacity
        assert [o.finish_reason for o in e.step()] == ["cancelled"] and not e.has_work()
        e.scheduler.check()
        cache.flush()
    assert moments == {True, False}
    assert cache.pages.free == cache.pages.capacity
    assert run(e, Request("next", [1], SamplingParams(temperature=0)))["next"][0] == [7] * 50


def test_b27_no_room_and_busy_callers() -> None:
    """Pages for one request, four slots, callers in other threads: everybody is served, under a watchdog."""
    model = ScriptedModel(vocabulary=320, end=319, wrong=wrong_at(3))
    e = ScriptedEngine(
        lambda prompt: [prompt[0]] * 60,
        model=model,
        tokens_per_step=4,
        context=128,
        sequences=4,
        kv_tokens=1,
        snapshots=1,
    )
    lock, found, left = threading.Lock(), dict[str, int](), set[str]()

    def caller(number: int) -> None:
        rng = random.Random(number)
        for i in range(12):
            id = f"{number} {i}"
            with lock:
                prompt = [number, *(rng.randrange(3) for _ in range(rng.randint(1, 60)))]
                e.add(Request(id, prompt, SamplingParams(temperature=0)))
            if rng.random() < 0.2:
                with lock:
                    left.add(id)
                    e.cancel(id)

    callers = [threading.Thread(target=caller, args=(n,)) for n in range(6)]
    for thread in callers:
        thread.start()
    watchdog, late = threading.Timer(60, lambda: late.append(True)), list[bool]()
    watchdog.start()
    while any(t.is_alive() for t in callers) or e.has_work():
        with lock:
            outs = e.step()
        for out in outs:
            found[out.request_id] = found.get(out.request_id, 0) + len(out.tokens)
            assert all(t.token == int(out.request_id.split()[0]) for t in out.tokens)
        assert not late, "stuck"
    watchdog.cancel()
    assert len(found) == 72 and all(n == 60 for id, n in found.items() if id not in left)
    e.scheduler.check()


@pytest.mark.parametrize("how", ["slow", "cancelled", "preempted", "twice"])
def test_b28_who_waits_for_a_prompt_is_not_left_waiting(how: str) -> None:
    """A request waits for the snapshot of another's prompt, which is late, or never comes."""
    model = ScriptedModel(vocabulary=320, end=319)
    e = ScriptedEngine(
        lambda prompt: [prompt[-1]] * 5, model=model, sequences=3, prefill_chunk=16, snapshot_every=64
    )
    shared = [(7 * i) % 300 for i in range(200)]
    e.add(Request("first", [*shared, 1], SamplingParams(temperature=0)))
    e.step()
    e.add(Request("second", [*shared, 2], SamplingParams(temperature=0)))
    first, second = e._sequences["first"], e._sequences["second"]
    found: dict[str, list[int]] = {"first": [], "second": []}
    for step in range(60):
        if how == "slow":
            model.pause = 0.002
        for out in e.step():
            found[out.request_id] += [t.token for t in out.tokens]
        if step == 5:
            assert second in e.scheduler.waiting and not first.generated
            if how == "cancelled":
                e.cancel("first")
            elif how != "slow":
                e.scheduler._preempt(first, [])
        if step == 9 and how == "twice" and first in e.scheduler.running:
            e.scheduler._preempt(first, [])
    assert not e.has_work()
    assert found["second"] == [2] * 5
    assert how == "cancelled" or found["first"] == [1] * 5


def test_b35_a_repeated_prompt_is_cached() -> None:
    """Also a short one, and also when drafting."""
    for depth in (0, 3):
        e = ScriptedEngine(lambda prompt: [7] * 9, tokens_per_step=depth + 1)
        cached: list[int] = []
        for prompt in (list(range(40)), [5] * 17, [6] * 16):
            outputs = [run(e, request("r", prompt))["r"][2] for _ in range(2)]
            cached += [o.stats.cached_tokens for o in outputs if o.stats]
        assert cached == [0, 32, 0, 16, 0, 0]
        assert e.totals().cached_tokens == 48
