"""The values that planning takes and makes. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from nextfit.config import ModelConfig
from nextfit.errors import ConfigError
from nextfit.memory.hardware import Hardware, MiB

# whose bytes they are; the order of the table
OWNERS = (
    "weights",
    "experts",
    "expert pool",
    "stream buffers",
    "n-gram table",
    "index keys",
    "K/V pages",
    "hot K/V",
    "history stage",
    "recurrent slots",
    "commit logs",
    "snapshot pool",
    "host pages",
    "draft",
    "row arena",
    "scratch",
    "logits and sampler",
    "result ring",
    "page tables",
    "BLAS scratch",
    "graph pools",
    "modules and context",
    "communicator",
    "alignment",
    "reserve",
)
HOST, PINNED, MAPPED = "host", "pinned", "mapped file"
ALWAYS, STEP, LAYER = "as long as the engine", "one step", "one layer of a step"
ACTIVATION = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
KV_FORMATS = ("f64", "f32", "bf16", "f16", "q8_0", "f8_e4m3")
MAX_DRAFT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the engine shall be able to do; the settings that decide how much memory it takes.

    None leaves a choice to the planner.
    """

    context: int  # tokens of one request, prompt and answer together
    sequences: int = 8  # requests in the state at once
    draft: int = 4  # tokens drafted per round
    prefill_chunk: int = 2048  # prompt rows of one step
    page_size: int = 16  # tokens
    kv_tokens: int | None = None  # tokens all requests' pages hold; None: one full context or 8,192 each
    dtype: str = "bfloat16"  # what the model computes in
    kv: Literal["host", "gpu"] | None = (
        None  # where K/V pages lie, None: host; index keys are on the GPU anyway
    )
    kv_format: str | None = None  # of K/V in pages; None: as `dtype`
    host_experts: int | None = None  # of each layer, experts whose place is the host; None: as few as fit
    snapshots: int = 16  # recurrent states that the prefix cache keeps
    host_kv_tokens: int = 0  # tokens of cached prefixes that host memory holds when pages are full
    reserve: int = 512 * MiB  # on each GPU, never planned away

    def pages(self) -> int:
        """Pages that can be handed out; one request of the full context always fits."""
        tokens = max(self.total_tokens(), self.context)
        return -(-(tokens + self.sequences) // self.page_size) + self.sequences

    def host_pages(self) -> int:
        """Pages of the prefix cache's host tier."""
        return -(-self.host_kv_tokens // self.page_size)

    def total_tokens(self) -> int:
        """Tokens all requests' pages hold together."""
        return self.kv_tokens or max(self.context, self.sequences * min(self.context, 8192))

    @property
    def window(self) -> int:
        """Rows of a verify step."""
        return 1 + self.draft

    @property
    def rows(self) -> int:
        """Rows of the largest step: a chunk, and every sequence's verify rows."""
        return self.prefill_chunk + self.decode_rows

    @property
    def decode_rows(self) -> int:
        return self.sequences * self.window


# settings of the placement on GPUs
GPU_ONLY = ("kv", "kv_format", "host_experts")


def flag(name: str) -> str:
    """The command line's spelling of a setting."""
    return "--" + name.replace("_", "-")


def check_limits(limits: Limits, c: ModelConfig, gpus: bool) -> None:
    """Raises ConfigError naming the setting, what was found and what was expected, and the flag."""
    bounds: tuple[tuple[str, int | None, int, int | None], ...] = (
        ("context", limits.context, 2, c.max_position_embeddings),
        ("sequences", limits.sequences, 1, None),
        ("draft", limits.draft, 0, MAX_DRAFT),
        ("prefill_chunk", limits.prefill_chunk, 1, None),
        ("kv_tokens", limits.kv_tokens, 1, None),
        ("host_experts", limits.host_experts, 0, c.num_experts),
        ("snapshots", limits.snapshots, 0, None),
        ("host_kv_tokens", limits.host_kv_tokens, 0, None),
        ("reserve", limits.reserve, 0, None),
    )
    for name, value, low, high in bounds:
        if value is not None and (value < low or (high is not None and value > high)):
            expected = f"at least {low}" if high is None else f"{low} to {high}"
            raise ConfigError(f"{name} is {value}; expected {expected} ({flag(name)})")
    for name in () if gpus else GPU_ONLY:
        if getattr(limits, name) is not None:
            raise ConfigError(
                f"{flag(name)} is {getattr(limits, name)}, but there is no GPU to plan for (--gpu)"
            )
    if limits.page_size < 1 or limits.page_size % c.indexer_compress_ratio:
        ratio = c.indexer_compress_ratio
        raise ConfigError(f"page_size is {limits.page_size}; expected a multiple of {ratio} (--page-size)")
    if limits.dtype not in ACTIVATION:
        raise ConfigError(f"dtype is {limits.dtype}; expected one of {', '.join(ACTIVATION)} (--dtype)")
    if limits.kv not in (None, "host", "gpu"):
        raise ConfigError(f"kv is {limits.kv}; expected host or gpu (--kv)")
    if limits.kv_format not in (None, *KV_FORMATS):
        expected = ", ".join(KV_FORMATS)
        raise ConfigError(f"kv_format is {limits.kv_format}; expected one of {expected} (--kv-format)")


@dataclass(frozen=True, slots=True)
class Buffer:
    """One allocation, or equal ones of several layers together."""

    owner: str  # one of OWNERS
    what: str
    place: str  # "gpu:k", HOST, PINNED or MAPPED
    bytes: int
    lifetime: str
    formula: str  # in words and numbers


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Every buffer of one configuration on one machine; nothing else is ever allocated for long.

    `world` says whose arrangement it is: "engine" is what the engine allocates today, "design" the placement
    on GPUs that is planned and not built yet.
    """

    world: Literal["engine", "design"]
    limits: Limits
    hardware: Hardware
    buffers: tuple[Buffer, ...]
    notes: tuple[str, ...]
    host_experts: int  # of each layer
    experts: int  # of each layer, in all
    weights: str  # where their sizes come from

    def places(self) -> dict[str, int]:
        """Memories with their capacity: every GPU, and the host's, which pinned buffers are a part of."""
        return {**{f"gpu:{k}": n for k, n in enumerate(self.hardware.gpus)}, HOST: self.hardware.host}

    def alike(self) -> dict[str, list[str]]:
        """Name for people -> memories of one size with one content, such as "gpu:0 to gpu:3"."""
        groups: dict[int, list[str]] = {}
        for k, capacity in enumerate(self.hardware.gpus):
            groups.setdefault(capacity, []).append(f"gpu:{k}")
        named: dict[str, list[str]] = {}
        for members in groups.values():
            consecutive = int(members[-1][4:]) - int(members[0][4:]) == len(members) - 1 > 0
            named[f"{members[0]} to {members[-1]}" if consecutive else ", ".join(members)] = members
        return {**named, HOST: [HOST]}

    def inside(self, memory: str) -> Iterator[Buffer]:
        """Buffers that take bytes of one of `places`."""
        return (b for b in self.buffers if b.place == memory or (memory == HOST and b.place == PINNED))

    def used(self, memory: str) -> int:
        return sum(b.bytes for b in self.inside(memory))

    def by_owner(self, memory: str) -> dict[str, int]:
        """Owner -> bytes in one of `places`, in the order of OWNERS."""
        found: Counter[str] = Counter()
        for b in self.inside(memory):
            found[b.owner] += b.bytes
        return {o: found[o] for o in OWNERS if found[o]}

    def owners(self) -> dict[str, int]:
        """Owner -> bytes in all places."""
        found: Counter[str] = Counter()
        for b in self.buffers:
            found[b.owner] += b.bytes
        return dict(found)

    def short(self) -> dict[str, int]:
        """Memories that are too small, and how many bytes they lack."""
        lacking = {m: self.used(m) - capacity for m, capacity in self.places().items()}
        return {m: n for m, n in lacking.items() if n > 0}

    @property
    def fits(self) -> bool:
        return not self.short()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "world": self.world,
            "fits": self.fits,
            "weights": self.weights,
            "limits": {n: getattr(self.limits, n) for n in self.limits.__slots__},
            "host_experts": self.host_experts,
            "experts": self.experts,
            "memories": [
                {
                    "name": m,
                    "capacity": capacity,
                    "used": self.used(m),
                    "free": capacity - self.used(m),
                    "owners": self.by_owner(m),
                }
                for m, capacity in self.places().items()
            ],
            "buffers": [{n: getattr(b, n) for n in b.__slots__} for b in self.buffers],
            "notes": list(self.notes),
        }


def size(nbytes: int) -> str:
    """Bytes for people, in the units that memory is sold in; sizes below 1 KiB are exact."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{nbytes} B" if unit == "B" else f"{value:.2f} {unit}"
