"""What an engine really takes, as torch's dispatcher and the kernel see it, against the plan."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.memory.hardware import Hardware
from nextfit.memory.plan import Limits, plan
from nextfit.memory.plan_weights import from_format
from nextfit.model import Model
from nextfit.model.state import LinearState
from nextfit.ops import linear as linear_module
from nextfit.ops.sparse_attention import KVPages
from tests.memory.storages import Peak
from tests.support.random_model import random_weights, small_config

# a layer of each kind, of sizes at which every kind of temporary matters
CONFIG = small_config(
    hidden_size=128,
    num_hidden_layers=2,
    layer_types=("linear_attention", "full_attention"),
    ple_layers=(0,),
    num_attention_heads=2,
    head_dim=64,
    indexer_budget=128,
    max_position_embeddings=65536,
)
LIMITS: list[dict[str, Any]] = [
    dict(context=65536, sequences=8, prefill_chunk=512, draft=4, snapshots=16, page_size=16),
    dict(
        context=30000,
        sequences=3,
        prefill_chunk=2048,
        draft=0,
        snapshots=40,
        page_size=64,
        kv_tokens=70000,
        host_kv_tokens=50000,
    ),
    dict(context=9000, sequences=40, prefill_chunk=100, draft=8, snapshots=0, page_size=8),
]
DTYPES = {"bfloat16": "bf16", "float32": "f32"}


def model(dtype: str) -> Model:
    computed = getattr(torch, dtype)
    return Model(CONFIG, random_weights(CONFIG, dtype=computed), computed)


def planned(limits: dict[str, Any], dtype: str) -> Counter[str]:
    """Owner -> bytes."""
    weights = from_format(CONFIG, DTYPES[dtype])
    return Counter(plan(CONFIG, weights, Hardware((), 1 << 40), Limits(**limits, dtype=dtype)).owners())


def covered(tensors: Iterable[Tensor]) -> int:
    """Bytes of memory that belong to at least one of the tensors."""
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if t.nbytes)
    total = end = 0
    for a, b in spans:
        total += max(0, b - max(a, end))
        end = max(end, b)
    return total


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors inside the parts of a state."""
    if isinstance(value, Tensor):
        yield value
    elif hasattr(value, "__slots__"):
        for name in value.__slots__:
            yield from tensors(getattr(value, name))


def by_owner(e: Engine) -> Counter[str]:
    """Bytes of each owner's tensors, by where they lie."""
    state, b, c = e.state, e.memory.buffers, e.config
    sparse = [s for s in state.layers if isinstance(s, KVPages)]
    linear = [s for s in state.layers if isinstance(s, LinearState)]
    histories = [*(s.conv for s in linear), *state.ngram.values(), state.tokens, state.streams]
    slots = [*(s.delta.matrix for s in linear), *(h.tail for h in histories)]
    slots += [s.ring for s in (*sparse, *([state.draft] if state.draft else []))]
    logs = [getattr(s.delta, n) for s in linear for n in ("key", "value", "decay", "beta")]
    logs += [h.log for h in histories]
    return Counter(
        {
            "K/V pages": covered(t for s in sparse for t in (s.key, s.value)),
            "index keys": covered(s.block for s in sparse),
            "recurrent slots": covered(t[: c.sequences + 1] for t in slots),
            "commit logs": covered(t[: c.sequences + 1] for t in logs),
            "snapshot pool": covered(t[c.sequences + 1 :] for t in slots + logs),
            "row arena": covered([b.streams, b.handed, b.inputs, b.outputs]),
            "logits and sampler": covered([b.logits]),
            "page tables": covered([b.tables]),
            "BLAS scratch": covered([b.space]),
            "host pages": covered([e.memory.cold]),
        }
    )


@pytest.mark.parametrize("limits", LIMITS, ids=("long", "few", "many"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_owner(limits: dict[str, Any], dtype: str) -> None:
    """Within 1 % each; and all storages that the engine made are the two arenas' alone."""
    m, wanted = model(dtype), planned(limits, dtype)
    with Peak() as seen:
        e = Engine(m, EngineConfig(**limits), ())
    found = by_owner(e)
    draft = e.state.draft
    assert draft is not None
    found["draft"] = covered([draft.key, draft.value, draft.block])
    for owner, n in found.items():
        expected = wanted[owner]
        if owner == "draft":
            expected -= draft_weights(m) if limits["draft"] else 0
        assert abs(n - expected) <= 0.01 * expected, (owner, n, expected)
    assert seen.now == seen.peak
    assert 0 <= seen.now - sum(found.values()) <= 0.01 * seen.now, "somebody else has memory"
    resident = {k: w for k, w in m.weights.items() if not k.startswith("mtp.") and not k.endswith(".table")}
    experts = covered(w for k, w in resident.items() if ".experts." in k)
    assert abs(experts - wanted["experts"]) <= 0.01 * experts
    others = covered(resident.values()) - experts
    assert abs(others - wanted["weights"]) <= 0.01 * others


def draft_weights(m: Model) -> int:
    return covered(w for k, w in m.weights.items() if k.startswith("mtp."))


def last_chunk(e: Engine, lengths: list[int]) -> None:
    """The last chunk of prompts of these lengths; what came before counts as computed, as zeros."""
    chunk = e.config.prefill_chunk // len(lengths)
    for i, n in enumerate(lengths):
        params = SamplingParams(max_tokens=2, temperature=0)
        e.add(Request(f"{n}-{i}", [(7 * j + i) % 300 for j in range(n)], params))
    e.scheduler.schedule()
    for s in e.scheduler.running:
        s.computed = s.prompt_length - chunk
    e.step()
    assert all(s.decoding for s in e.scheduler.running) and len(e.scheduler.running) == len(lengths)
    for s in list(e.scheduler.running):
        e.cancel(s.request.id)


def prefill_peak(m: Model, lengths: list[int]) -> int:
    """Bytes of all storages that a step allocates, at their most."""
    limits = EngineConfig(
        context=65536, sequences=8, prefill_chunk=512, draft=0, snapshots=0, kv_tokens=65536
    )
    e = Engine(m, limits, ())
    with Peak() as seen:
        last_chunk(e, lengths)
    return seen.peak


@pytest.mark.parametrize(("dtype", "context"), [("bfloat16", 65534), ("float32", 6000)])
def test_a_prefill_step_does_not_grow(dtype: str, context: int) -> None:
    """From 1K to 64K of context, index scores included; from 1 to 8 prompts, of whole chunks and ragged."""
    m = model(dtype)
    short = prefill_peak(m, [1024])
    assert short > 512 * 4 * 128 * 4  # a chunk's streams, once: something is measured
    assert prefill_peak(m, [context]) <= 1.01 * short
    assert prefill_peak(m, [1024] * 8) <= 1.01 * short
    assert prefill_peak(m, [1024 + 7 * i for i in range(8)]) <= 1.01 * short


def leftovers(m: Model) -> list[int]:
    """Sizes of the storages that an engine has besides its arenas, in the middle of its work."""
    with Peak() as seen:
        e = Engine(m, EngineConfig(context=2000, sequences=4, prefill_chunk=128, draft=2, snapshots=4), ())
        arenas = [m.storage.untyped_storage() for m in (e.memory.arena, e.memory.host)]
        for i, n in enumerate((150, 20, 300)):
            params = SamplingParams(max_tokens=8, temperature=1, presence_penalty=0.5, seed=i, logprobs=2)
            e.add(Request(str(i), [(7 * j + i) % 300 for j in range(n)], params))
        for _ in range(7):
            e.step()
        assert e.has_work() and seen.peak > len(arenas[0]) > 0
        planned = {storage._cdata for storage in arenas}
        return sorted((n for key, n in seen.alive.items() if key not in planned), reverse=True)


def test_nothing_lives_long_outside_the_arena() -> None:
    assert leftovers(model("bfloat16")) == []


def test_memory_that_is_kept_outside_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Tensor] = []
    plain = linear_module.reference._values

    def values(*args: Any) -> Tensor:
        out = plain(*args)
        kept[:] = [out + 0]
        return out

    monkeypatch.setattr(linear_module.reference, "_values", values)
    assert len(leftovers(model("bfloat16"))) == 1


PROGRAM = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from tests.memory.test_reality import LIMITS, model, take

def own():  # bytes of memory that no file backs
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10

m = model("bfloat16")
for limits in LIMITS:
    read, write = os.pipe()
    if not os.fork():
        os.write(write, b"%d" % take(m, limits, own))
        os._exit(0)
    os.wait()
    print(int(os.read(read, 32)))
"""


def take(m: Model, limits: dict[str, Any], own: Any) -> int:
    """Bytes that the process grows by when an engine starts."""
    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, so that taking it again shows
    before = own()
    e = Engine(m, EngineConfig(**limits), ())
    grown = own() - before
    assert e
    return grown


@pytest.mark.skipif(sys.platform != "linux", reason="smaps is Linux")
def test_the_kernel_agrees() -> None:
    """The process grows by the planned bytes, within 1 %, before the first step."""
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for limits, grown in zip(LIMITS, map(int, done.stdout.split()), strict=True):
        wanted = planned(limits, "bfloat16")
        mine = sum(wanted.values()) - sum(
            wanted[o] for o in ("weights", "experts", "n-gram table", "scratch")
        )
        mine -= wanted["modules and context"] + (draft_weights(model("bfloat16")) if limits["draft"] else 0)
        assert abs(grown - mine) <= 0.01 * mine, (limits, grown, mine)
