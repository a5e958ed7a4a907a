"""Whoever leaves at a random moment gives everything back: 500 times in each engine, 500 times over HTTP."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import torch

from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from tests.engine.drive import CONTEXT, ENDS, tiny_model
from tests.long.server import COMPLETIONS, idle, serving
from tests.support.scripted_model import ScriptedEngine

LEAVERS = 500
DRIFT = (
    8 << 20
)  # bytes that the process may have grown by in 500 cancels: Python's own, freed and not returned
SCARCE: dict[str, Any] = dict(
    context=CONTEXT, sequences=3, prefill_chunk=16, decode_gap=16, kv_tokens=1, page_size=4, snapshots=3
)


def real() -> Engine:
    limits = EngineConfig(**SCARCE, answer_reserve=1, draft=3, answer_every=16, host_kv_tokens=200)
    return Engine(tiny_model(0), limits, ENDS)


def scripted() -> Engine:
    return ScriptedEngine(lambda prompt: prompt, tokens_per_step=4, answer_reserve=1, **SCARCE)


def held(e: Engine) -> tuple[object, ...]:
    """What is free of everything that is counted, the ledger, and the bytes of all tensors of this process."""
    cache, host = e.scheduler.cache, e.scheduler.cache.host
    gc.collect()
    storages = {
        o.untyped_storage().data_ptr(): o.untyped_storage().nbytes()
        for o in gc.get_objects()
        if issubclass(type(o), torch.Tensor)
    }
    free = cache.pages.free, e.scheduler.slots.free, host.snapshots.free, host.pages.free
    planned = {a.owner: (a.planned, a.allocated) for a in e.ledger() if a.owner != "scratch"}
    return (*free, len(e._sequences), planned, sum(storages.values()))


def grown(e: Engine) -> int:
    """Bytes of the process since the engine began, as the ledger has them."""
    return sum(a.allocated for a in e.ledger() if a.owner == "scratch")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("make", [real, scripted])
def test_cancelled(make: Callable[[], Engine]) -> None:
    """Waiting, in the prompt, while decoding, before and after the end, several at once."""
    e, rng, seen = make(), random.Random(0), Counter[str]()
    beginning = [rng.randrange(48) for _ in range(50)]

    def add(number: int) -> None:
        prompt = beginning[: rng.randrange(50)] + [rng.randrange(48) for _ in range(rng.randint(1, 40))]
        params = SamplingParams(max_tokens=rng.randint(1, 30), temperature=rng.choice([0, 1]), seed=number)
        e.add(Request(str(number), prompt, params))

    def settle() -> tuple[object, ...]:
        while e.has_work():
            e.step()
        e.scheduler.check()
        e.scheduler.cache.flush()
        e.scheduler.check()
        return held(e)

    for number in range(-40, 0):  # whatever is made once is made now
        add(number)
    start, size, number = settle(), 0, 0
    while seen["cancelled"] < LEAVERS:
        for _ in range(rng.randint(1, 4)):
            add(number)
            number += 1
        for _ in range(rng.randint(0, 6)):
            e.step()
        for s in list(e._sequences.values()):
            if rng.random() < 0.5:
                stage = (
                    "waiting" if s in e.scheduler.waiting else "decoding" if s.decoding else "in the prompt"
                )
                seen[f"cancelled {stage}"] += 1
                seen["cancelled"] += 1
                e.cancel(s.request.id)
        e.scheduler.check()
        if rng.random() < 0.05:
            assert settle() == start
            size = size or grown(e)
    assert settle() == start
    if make is real:  # the scripted model remembers all that it was ever told
        assert grown(e) - size < DRIFT
        assert e.host_pages.sent > 50
    assert min(seen[f"cancelled {stage}"] for stage in ("waiting", "decoding", "in the prompt")) > 20, seen


@pytest.mark.timeout(600)
def test_disconnected() -> None:
    """From a real server on the bundled model: before the answer, in the stream, in the middle of the prompt."""
    rng, seen = random.Random(0), Counter[str]()
    options = {
        "--context": 1024,
        "--sequences": 3,
        "--prefill-chunk": 64,
        "--kv-tokens": 1024,
        "--snapshots": 4,
    }
    with serving(options | {"--log-level": "warning"}) as server:
        before = idle(server)
        for number in range(LEAVERS):
            body = {
                "prompt": [65] * rng.choice((1, 30, 400)),
                "max_tokens": rng.choice((1, 20, 600)),
                "ignore_eos": True,
                "stream": rng.random() < 0.7,
                "n": rng.choice((1, 1, 2)),
                "seed": number,
            }
            # only streams are given time for a first line: a whole answer of 600 tokens takes a minute
            wait = httpx.Timeout(
                20, read=rng.choice((0.01, 0.1, 2.0, 2.0) if body["stream"] else (0.01, 0.1))
            )
            with httpx.Client(base_url=server.url, timeout=wait) as client:
                try:
                    with client.stream("POST", COMPLETIONS, json=body) as answer:
                        for _, _ in zip(range(rng.randint(0, 9)), answer.iter_lines(), strict=False):
                            pass
                    seen["in the stream"] += 1
                except httpx.ReadTimeout:
                    seen["while it waited"] += 1
        after = idle(server)
        closing = 8  # files of connections that are not closed yet
        assert all(after[n] <= before[n] + closing * n.endswith("files") for n in before), (before, after)
        body = {"prompt": [7], "max_tokens": 2}
        assert httpx.post(f"{server.url}{COMPLETIONS}", json=body, timeout=60).status_code == 200
    assert min(seen[what] for what in ("in the stream", "while it waited")) > 50, seen
