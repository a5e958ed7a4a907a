"""When a plan does not fit: what is too big, and how little of one setting would have to change. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from nextfit.checkpoint.formats import FORMATS, row_bytes
from nextfit.config import ModelConfig
from nextfit.memory.hardware import Hardware
from nextfit.memory.plan import plan
from nextfit.memory.plan_values import ACTIVATION, Limits, MemoryPlan, flag, size
from nextfit.memory.plan_weights import Weights

# not up to any setting
_FIXED = ("reserve", "modules and context", "BLAS scratch", "graph pools", "communicator")


@dataclass(frozen=True, slots=True)
class TooBig:
    """A memory (or equal ones) too small for its share, and the owner that takes most of it."""

    memory: str
    needed: int
    capacity: int
    owner: str
    owner_bytes: int

    def __str__(self) -> str:
        whole = ", alone more than there is" if self.owner_bytes > self.capacity else ""
        more = size(self.needed - self.capacity)
        return (
            f"{self.memory} has {size(self.capacity)} and needs {size(self.needed)}, {more} too much; "
            f"the largest owner is {self.owner} with {size(self.owner_bytes)}{whole}"
        )


@dataclass(frozen=True, slots=True)
class Change:
    """The smallest change of one setting alone after which the plan fits; `value` None: there is none."""

    setting: str
    now: int | str
    value: int | str | None

    def __str__(self) -> str:
        if self.value is None:
            return f"{flag(self.setting)}: no value of it alone would fit (now {self.now})"
        return f"{flag(self.setting)} {self.value} would fit (now {self.now})"

    def apply(self, limits: Limits) -> Limits:
        return _with(limits, self.setting, self.value)


def too_big(p: MemoryPlan) -> list[TooBig]:
    """The memories that do not suffice, each with its largest owner; GPUs that are alike together."""
    out = []
    for name, members in p.alike().items():
        memory, capacity = members[0], p.places()[members[0]]
        if p.used(memory) > capacity:
            owners = p.by_owner(memory)
            owner = max(owners, key=lambda o: (o not in _FIXED, owners[o]))
            out.append(TooBig(name, p.used(memory), capacity, owner, owners[owner]))
    return out


def _with(limits: Limits, name: str, value: Any) -> Limits:
    return replace(limits, **{name: value})


def smallest_changes(c: ModelConfig, weights: Weights, hardware: Hardware, limits: Limits) -> list[Change]:
    """For each setting the value nearest to its present one that fits when all others stay as they are.

    Every number but the host's share of experts is searched downwards: none of them needs more when it is
    smaller (tested), so the answer is exact to one token, sequence or row.
    """

    def fits(name: str, value: Any) -> bool:
        return plan(c, weights, hardware, _with(limits, name, value)).fits

    return list(_changes(c, limits, bool(hardware.gpus), fits))


def _changes(
    c: ModelConfig, limits: Limits, gpus: bool, fits: Callable[[str, Any], bool]
) -> Iterator[Change]:
    tokens = max(limits.total_tokens(), limits.context)
    downwards = [
        ("context", limits.context, 2),
        ("sequences", limits.sequences, 1),
        ("draft", limits.draft, 0),
        ("prefill_chunk", limits.prefill_chunk, 1),
        ("kv_tokens", tokens, limits.context),
        ("snapshots", limits.snapshots, 0),
        *([("host_kv_tokens", limits.host_kv_tokens, 0)] if limits.host_kv_tokens else ()),
    ]
    for name, now, low in downwards:
        yield Change(name, now, _highest(low, now - 1, lambda v, name=name: fits(name, v)))  # type: ignore[misc]
    if not gpus:
        return
    if limits.host_experts is None:
        yield Change("host_experts", "as few as fit", None)
    else:
        now = limits.host_experts
        others = sorted(range(c.num_experts + 1), key=lambda h: (abs(h - now), h))
        yield Change("host_experts", now, next((h for h in others[1:] if fits("host_experts", h)), None))
    place = limits.kv or "host"
    other = "gpu" if place == "host" else "host"
    yield Change("kv", place, other if fits("kv", other) else None)
    yield _smaller_kv(c, limits, fits)


def _highest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest value of low..high that fits, where all below one that fits do too."""
    if low > high or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _smaller_kv(c: ModelConfig, limits: Limits, fits: Callable[[str, Any], bool]) -> Change:
    now = limits.kv_format or {8: "f64", 4: "f32", 2: "bf16"}[ACTIVATION[limits.dtype]]
    bytes_now = row_bytes(now, c.head_dim)
    smaller = [f for f in ("f32", "bf16", "q8_0", "f8_e4m3") if _row(f, c.head_dim) < bytes_now]
    return Change("kv_format", now, next((f for f in smaller if fits("kv_format", f)), None))


def _row(format: str, columns: int) -> int:
    """Bytes of a row; without end where the format cannot hold it."""
    return row_bytes(format, columns) if columns % FORMATS[format].block == 0 else 1 << 62


def explain(p: MemoryPlan, changes: list[Change]) -> str:
    """The refusal, for people."""
    lines = ["this does not fit:", *(str(t) for t in too_big(p)), "changing one setting alone:"]
    return "\n  ".join([*lines, *(str(x) for x in changes)])


def as_json(p: MemoryPlan, changes: list[Change]) -> dict[str, Any]:
    """The plan, what is too big and what would help, as plain values."""
    return {
        **p.as_json(),
        "too_big": [asdict(t) for t in too_big(p)],
        "changes": [asdict(x) for x in changes],
    }
