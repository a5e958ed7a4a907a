"""The plan against what the engine really allocates: state and weights to the byte, scratch as a bound."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nextfit.checkpoint import open_checkpoint
from nextfit.checkpoint.load import load_weights
from nextfit.checkpoint.packed import Packed, Stack
from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine, plan_limits
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.llm import load_model
from nextfit.memory.arena import IN_SLOTS
from nextfit.memory.hardware import Hardware
from nextfit.memory.plan import Limits, plan
from nextfit.memory.plan_engine import host_tier, state
from nextfit.memory.plan_weights import from_checkpoint, from_format
from nextfit.model.state import State, StateShape
from nextfit.models import default_path
from tests.memory.storages import Peak
from tests.support.gguf_writer import write_gguf
from tests.support.random_model import random_parts, small_config

FIXTURES = Path(__file__).parents[1] / "fixtures"


def storages(value: Any) -> dict[int, int]:
    """Address -> bytes of every tensor storage inside a value."""
    if isinstance(value, Tensor):
        s = value.untyped_storage()
        return {s.data_ptr(): s.nbytes()} if s.nbytes() else {}
    if isinstance(value, dict):
        children = list(value.values())
    elif isinstance(value, list | tuple):
        children = list(value)
    elif is_dataclass(value):
        children = [getattr(value, f.name) for f in fields(value)]
    elif hasattr(value, "__dict__"):
        children = list(vars(value).values())
    else:
        return {}
    return {k: n for child in children for k, n in storages(child).items()}


@pytest.mark.parametrize(
    ("changes", "limits", "dtype"),
    [
        (
            {},
            {"context": 300, "sequences": 3, "draft": 4, "snapshots": 5, "host_kv_tokens": 99},
            "float32",
        ),
        ({"mtp_num_hidden_layers": 0}, {"context": 1000, "sequences": 8, "draft": 0}, "bfloat16"),
        (
            {"ple_layers": (), "indexer_compress_ratio": 8, "num_key_value_heads": 1},
            {"context": 64, "sequences": 1, "draft": 8, "page_size": 24, "kv_tokens": 500, "snapshots": 0},
            "float64",
        ),
        ({"ple_layers": (1, 2), "ngram_size": 2}, {"context": 4096, "sequences": 5, "draft": 1}, "bfloat16"),
    ],
)
def test_state_to_the_byte(changes: dict[str, Any], limits: dict[str, Any], dtype: str) -> None:
    c = small_config(**changes)
    lim = Limits(**limits, dtype=dtype)
    assert lim == plan_limits(EngineConfig(**limits), getattr(torch, dtype))
    slots = lim.sequences + lim.snapshots + 1
    shape = StateShape(slots, lim.pages() + 1, lim.page_size, lim.window)
    own: dict[str, list[Tensor]] = defaultdict(list)

    def take(owner: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        own[owner].append(torch.zeros(shape, dtype=dtype))
        return own[owner][-1]

    real = State(c, shape, getattr(torch, dtype), take)
    assert sum(b.bytes for b in state(c, lim)) == sum(storages(real).values())
    cold = sum(t[0].nbytes for t in real.paged()) * (lim.host_pages() + 1) if lim.host_kv_tokens else 0
    assert sum(b.bytes for b in host_tier(c, lim)) == cold
    planned = {o: sum(b.bytes for b in state(c, lim) if b.owner == o) for o in (*own, "snapshot pool")}
    for owner in own:
        used = slice(lim.sequences + 1) if owner in IN_SLOTS else slice(None)
        assert planned[owner] == sum(t[used].nbytes for t in own[owner]), owner


@pytest.mark.parametrize("sequences", [1, 2, 7, 100])
@pytest.mark.parametrize("context", [2, 17, 8192, 100_000])
@pytest.mark.parametrize("kv_tokens", [None, 1, 50_000])
def test_pages_are_the_engines(sequences: int, context: int, kv_tokens: int | None) -> None:
    given = {"sequences": sequences, "context": context, "kv_tokens": kv_tokens, "page_size": 16}
    assert Limits(**given).pages() == EngineConfig(**given).pages()  # type: ignore[arg-type]
    cold: dict[str, Any] = dict(context=context, host_kv_tokens=kv_tokens or 0)
    assert Limits(**cold).host_pages() == EngineConfig(**cold).host_pages() == -(-(kv_tokens or 0) // 16)


def resident(weight: Any) -> int:
    if isinstance(weight, Stack):
        return sum(resident(p) for p in weight.parts)
    if isinstance(weight, Packed):
        return sum(x.nbytes for x in weight.parts.values())
    return weight.nbytes if isinstance(weight, Tensor) else 0


@pytest.mark.parametrize("draft", [True, False])
@pytest.mark.parametrize(
    "path",
    [
        default_path(),
        *(FIXTURES / f"micro-{n}" for n in ("nvfp4", "Q4_K_M.gguf", "IQ4_XS.gguf", "Q2_K.gguf")),
    ],
    ids=lambda p: p.name,
)
def test_weights_to_the_byte(path: Path, draft: bool) -> None:
    checkpoint = open_checkpoint(path)
    weights = from_checkpoint(checkpoint)
    limits = Limits(context=64, draft=4 if draft else 0)
    found = plan(checkpoint.config, weights, Hardware((), 1 << 40), limits).buffers
    planned = sum(
        b.bytes for b in found if b.place == "host" and "types" in b.formula or "experts," in b.formula
    )
    assert planned == sum(resident(w) for w in load_weights(checkpoint, draft=draft).values())
    mapped = sum(b.bytes for b in found if b.place == "mapped file")
    assert mapped == weights.sizes().table > 0


def test_weights_with_optional_factors_to_the_byte(tmp_path: Path) -> None:
    """GGUF's NVFP4 may have one more factor for each expert; then all rows of the run have a place for it."""
    c = small_config()
    for name, extra in (
        ("plain", {}),
        ("factors", {"blk.0.ffn_gate_exps.scale": np.full(16, 0.5, np.float32)}),
    ):
        path = write_gguf(tmp_path / f"{name}.gguf", c, random_parts(c), kind="NVFP4", tensors=extra)
        checkpoint = open_checkpoint(path)
        sizes = from_checkpoint(checkpoint).sizes()
        experts = sum(sizes.experts) + sum(sizes.draft_experts)
        planned = sum(sizes.resident.values()) + c.num_experts * experts
        assert planned == sum(resident(w) for w in load_weights(checkpoint).values()), name


def test_the_measure_sees_temporaries() -> None:
    with Peak() as peak:
        x = torch.zeros(1000)
        y = (x + 1) * 2
        del x
        z = y.view(10, 100) + 0
    assert peak.peak == 3 * 4000
    del y, z
    assert peak.now == 0


@pytest.mark.parametrize(
    ("limits", "prompts", "dtype"),
    [
        ({"context": 700, "sequences": 4, "draft": 4, "prefill_chunk": 256}, [64, 70, 100, 300], "bfloat16"),
        ({"context": 700, "sequences": 4, "draft": 1, "prefill_chunk": 256}, [600], "float32"),
        ({"context": 1500, "sequences": 2, "draft": 0, "prefill_chunk": 128}, [1400, 90], "float32"),
        ({"context": 90000, "sequences": 8, "draft": 8, "prefill_chunk": 2048}, [2100], "bfloat16"),
    ],
)
def test_temporaries_stay_below_their_bound(limits: dict[str, Any], prompts: list[int], dtype: str) -> None:
    """And the bound is worth something: not three times what is used."""
    checkpoint = open_checkpoint(default_path())
    weights = from_checkpoint(checkpoint)
    found = plan(checkpoint.config, weights, Hardware((), 1 << 40), Limits(**limits, dtype=dtype)).buffers
    bound = sum(b.bytes for b in found if b.owner == "scratch")
    model = load_model(checkpoint, dtype, "cpu", limits["draft"] > 0)
    engine = Engine(model, EngineConfig(**limits), ())
    for i, n in enumerate(prompts):
        params = SamplingParams(max_tokens=2, temperature=1.0, seed=1)
        engine.add(Request(str(i), [(7 * j + i) % 900 for j in range(n)], params))
    with torch.no_grad(), Peak() as peak:
        while engine.has_work():
            engine.step()
    assert peak.peak <= bound < 3 * peak.peak, (peak.peak, bound)


def test_formats_agree_with_files() -> None:
    """A model written in one format takes what the format's name says."""
    checkpoint = open_checkpoint(default_path())
    files, named = from_checkpoint(checkpoint).sizes(), from_format(checkpoint.config, "bf16").sizes()
    for name in files.resident:
        assert files.resident[name] == named.resident[name], name
    assert (files.experts, files.table) == (named.experts, named.table)
