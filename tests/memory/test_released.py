"""Sizes of the released model: numbers typed from spec sections 1 and 10, not from the plan's own code."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from nextfit.errors import ConfigError
from nextfit.memory.hardware import Hardware
from nextfit.memory.plan import Buffer, Limits, MemoryPlan, plan
from tests.memory.released import RELEASED, released

GiB = 1 << 30
CPU = Hardware((), 1 << 40)
PARAMS = {
    "routed experts": 120_795_955_200,
    "router": 62_914_560,
    "shared expert": 236_052_480,
    "hyper-connections": 634_060_800,
    "final mixer": 6_563_840,
    "sparse attention": 597_694_464,
    "indexer": 19_663_872,
    "delta net": 2_086_510_464,
    "n-gram layer": 32_839_680,
    "n-gram table": 51_200_245_760,
    "embedding": 635_699_200,
    "output head": 635_699_200,
    "draft experts": 2_516_582_400,
    "draft head": 90_568_448,
}
# numbers that are no matrices: norms, taps, decays; resident in float32
VECTORS = {
    "hyper-connections": 96 * 10240,
    "final mixer": 10240,
    "sparse attention": 12 * (256 + 256),
    "indexer": 12 * (128 + 128),
    "delta net": 36 * (10240 * 4 + 48 + 48 + 128),
    "n-gram layer": 3 * 10240 + 10240 * 4,
    "draft head": 2560 + 10240 + 3 * 10240 + 2 * 256 + 2 * 128,
}


def total(p: MemoryPlan | Iterable[Buffer], owner: str, *words: str, place: str = "") -> int:
    """Bytes of an owner's buffers whose description has all of `words`."""
    found = p.buffers if isinstance(p, MemoryPlan) else p
    return sum(
        b.bytes
        for b in found
        if b.owner == owner and all(w in b.what for w in words) and b.place.startswith(place)
    )


def cpu(**changes: object) -> MemoryPlan:
    limits = {"context": 262144, "sequences": 1, "draft": 4, **changes}
    return plan(RELEASED, released(), CPU, Limits(**limits))  # type: ignore[arg-type]


def gpu(gpus: int = 1, formats: str = "bf16", memory: int = 512 * GiB, **changes: object) -> MemoryPlan:
    limits = {"context": 262144, "sequences": 1, "draft": 4, **changes}
    machine = Hardware((memory,) * gpus, 512 * GiB)
    return plan(RELEASED, released(formats), machine, Limits(**limits))  # type: ignore[arg-type]


def test_parameters_of_every_component() -> None:
    sizes = released().sizes()
    assert dict(sizes.params) == PARAMS
    assert sum(n for name, n in PARAMS.items() if "draft" not in name) == 176_943_899_520
    assert PARAMS["draft experts"] + PARAMS["draft head"] == 2_607_150_848
    resident = set(PARAMS) - {"routed experts", "n-gram table", "draft experts", "draft head"}
    assert sum(PARAMS[name] for name in resident) == 4_947_698_560


def test_bytes_of_every_component_in_bf16() -> None:
    sizes = released().sizes()
    for name, n in sizes.resident.items():
        assert n == 2 * PARAMS[name] + 2 * VECTORS.get(name, 0), name
    assert sizes.experts == (2 * 4_915_200,) * 48 and sizes.draft_experts == (2 * 4_915_200,)
    assert sizes.expert_bytes == 241_591_910_400
    assert (sizes.table, sizes.table_row) == (320_001_536 * 320, 320)


@pytest.mark.parametrize(
    ("formats", "expert"),
    [
        ("f32", 19_660_800),
        ("q8_0", 4_915_200 * 34 // 32),
        ("mxfp4", 4_915_200 * 17 // 32),
        # codes and block scales, and one factor a row: 1280 rows of gate and up, 2560 of down
        ("nvfp4", 4_915_200 // 2 + 4_915_200 // 16 + 4 * (1280 + 2560)),
        # gate and up in q4_K; rows of 640 are no whole number of its blocks, so down is q5_0
        ("q4_k", 2 * 640 * 2560 * 144 // 256 + 640 * 2560 * 22 // 32),
        # one scale for every 128 of a row's numbers
        ("fp8_block", 4_915_200 + 4 * (1280 * 20 + 2560 * 5)),
    ],
)
def test_one_expert_in_other_formats(formats: str, expert: int) -> None:
    assert set(released(formats).sizes().experts) == {expert}


def test_formats_of_the_rest() -> None:
    sizes = released("nvfp4/q8_0/bf16").sizes()
    assert sizes.resident["output head"] == 635_699_200 * 34 // 32
    assert sizes.table_row == 320
    assert released("nvfp4").sizes().table_row == 320  # no loader for such a table
    assert released("q4_k").sizes().table_row == 160 // 32 * 22
    with pytest.raises(ConfigError, match="'q9' is no format"):
        released("bf16/q9")


def test_state_of_the_engine() -> None:
    """One slot's share, and one token's, as the differences that one more of it makes."""
    one, two = cpu(kv_tokens=262144), cpu(sequences=2, kv_tokens=262144)

    def slot(*words: str, owner: str = "recurrent slots") -> int:
        return total(two, owner, *words) - total(one, owner, *words)

    assert slot("matrices") == 113_246_208 == 108 << 20
    assert slot("delta-net convolution") == 2_211_840
    assert slot("n-gram convolution") == 184_320
    assert slot("token history") == 16
    # keys of open blocks: the spec counts rings of 4 (12,288 B), the engine keeps 32 to rewind in
    assert slot("trunk: raw index keys") == 8 * 12_288
    assert slot("draft head: raw index keys") == 8 * 1024


def test_what_a_token_takes() -> None:
    small, large = cpu(context=131072), cpu(context=262144)
    tokens = 131072
    grown = {o: total(large, o) - total(small, o) for o in ("K/V pages", "index keys", "draft")}
    assert grown == {"K/V pages": 24_576 * tokens, "index keys": 768 * tokens, "draft": (2048 + 64) * tokens}
    assert sum(grown.values()) == 27_456 * tokens


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_ranks_hold_the_whole_state(gpus: int) -> None:
    """Heads are split without loss; what every rank needs whole and K/V beyond two ranks are copies."""
    a = gpu(gpus, kv_tokens=262144, host_experts=512)
    b = gpu(gpus, kv_tokens=262144, host_experts=512, sequences=2)

    def slot(*words: str) -> int:
        return total(b, "recurrent slots", *words) - total(a, "recurrent slots", *words)

    assert slot("matrices") == 113_246_208
    assert slot("delta-net convolution") == 2_211_840
    assert slot("n-gram convolution") == gpus * 184_320
    assert slot("open index blocks") == gpus * (12_288 + 1024)
    small = gpu(gpus, context=131072, host_experts=512)
    copies = {1: 1, 2: 1, 4: 2}[gpus]
    tokens = 131072
    large_kv, small_kv = total(a, "K/V pages", place="pinned"), total(small, "K/V pages", place="pinned")
    assert large_kv - small_kv == copies * 24_576 * tokens
    assert total(a, "index keys") - total(small, "index keys") == 768 * tokens
    assert total(a, "draft", "block keys") - total(small, "draft", "block keys") == 64 * tokens
    grown = total(a, "draft", "keys and values") - total(small, "draft", "keys and values")
    assert grown == copies * 2048 * tokens


def test_snapshot() -> None:
    one, two = gpu(snapshots=1), gpu(snapshots=2)
    snapshot = total(two, "snapshot pool") - total(one, "snapshot pool")
    assert snapshot == 113_246_208 + 2_211_840 + 184_320 + 16 + 12_288 + 1024 + 20_480
    assert round(snapshot / 1e6) == 116


def test_commit_logs() -> None:
    """Of each verify row: keys of key heads, values, two gates, and what the windows take in; twice by parity."""
    row = 36 * ((16 * 128 + 48 * (128 + 2)) * 4 + 10240 * 2) + 10240 * 2 + 8 + 13 * 128 * 2
    assert total(gpu(), "commit logs") == 2 * 2 * 5 * row
    assert total(gpu(draft=0), "commit logs") == 2 * 2 * (row - 128 * 2)


def test_history_stage_and_hidden_states() -> None:
    assert total(gpu(), "history stage") == 262144 * 2048
    a, b = gpu(prefill_chunk=512), gpu(prefill_chunk=513)
    assert (
        total(b, "row arena") - total(a, "row arena") >= 20_480 + 20_480
    )  # streams, and what the draft gets
    assert total(gpu(draft=0, prefill_chunk=513), "row arena") < total(b, "row arena")


def test_weights_are_split_between_ranks() -> None:
    one, four = released().sizes(1), released().sizes(4)
    whole = {"hyper-connections", "final mixer", "router", "n-gram layer", "indexer"}
    for name in set(one.resident) - {"draft head"}:
        if name in whole:
            assert four.resident[name] == one.resident[name], name
        elif name in ("embedding", "output head"):
            assert four.resident[name] * 4 == one.resident[name]
        else:  # norms and gates that every rank needs, and the repeated K/V heads
            assert one.resident[name] <= 4 * four.resident[name] < 1.06 * one.resident[name], name
    assert four.experts[0] * 4 == one.experts[0]
    kv = 12 * 2 * 512 * 2560 * 2
    norms = 12 * 512 * 4
    assert 4 * four.resident["sparse attention"] == one.resident["sparse attention"] + kv + 3 * norms
    # 640 columns of down are ten blocks of 64, three for the widest of four ranks
    nvfp4 = released("nvfp4_gguf")
    assert nvfp4.sizes(4).experts[0] == 1280 // 4 * 2560 * 36 // 64 + 2560 * 3 * 36


def test_experts_are_split_between_gpu_and_host() -> None:
    p = gpu(4, "nvfp4/q8_0/bf16", 16 * GiB, sequences=8)
    assert p.world == "design" and p.fits and 0 < p.host_experts < 512
    everywhere = total(p, "experts") + total(p, "draft", "draft experts")
    sizes = released("nvfp4/q8_0/bf16").sizes(4)
    assert everywhere == 4 * 512 * (sum(sizes.experts) + sum(sizes.draft_experts))
    assert total(p, "experts", place="pinned") * 512 == p.host_experts * total(p, "experts")
    fewer = gpu(4, "nvfp4/q8_0/bf16", 16 * GiB, sequences=8, host_experts=p.host_experts - 1)
    assert set(fewer.short()) == {"gpu:0", "gpu:1", "gpu:2", "gpu:3"}
    assert gpu(4, "nvfp4/q8_0/bf16", 48 * GiB).host_experts == 0


def test_three_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 GPUs, which do not divide linear_num_key_heads=16"):
        gpu(3)
