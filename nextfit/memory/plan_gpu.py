"""The placement on GPUs: one tensor-parallel rank per GPU, experts and K/V shared with the host. No torch.

This is the arrangement the engine is being built for; what exists today is `plan_engine`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nextfit.checkpoint.formats import row_bytes
from nextfit.config import ModelConfig
from nextfit.memory.hardware import MiB
from nextfit.memory.plan_engine import conv_channels
from nextfit.memory.plan_rows import colour, temporaries
from nextfit.memory.plan_values import (
    ACTIVATION,
    ALWAYS,
    HOST,
    LAYER,
    MAPPED,
    PINNED,
    STEP,
    Buffer,
    Limits,
    size,
)
from nextfit.memory.plan_weights import DRAFT, Weights, WeightSizes

BLAS = 32 * MiB
# assumptions until there is an engine on GPUs to measure
CONTEXT = 512 * MiB
COMMUNICATOR = 256 * MiB
GRAPH_NODE = 4096  # bytes of one captured kernel
KERNELS = 20  # of one layer (design figure)
DEPTHS = 3  # draft depths that are captured: 0, 2, 4
HOST_PROCESS = 1024 * MiB
ROW_CACHE = 64 * MiB  # of n-gram rows read from the file
POOL = 2  # expert pool of a layer, in experts that one row uses
HOT = 2  # hot K/V of a sequence and layer, in index budgets
RING_ENTRIES = 4
TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """Sizes that several owners share; all of one rank, `ranks` of them being equal."""

    c: ModelConfig
    limits: Limits
    sizes: WeightSizes
    ranks: int
    host_experts: int

    @property
    def draft(self) -> bool:
        return self.limits.draft > 0 and self.c.mtp_num_hidden_layers > 0

    @property
    def activation(self) -> int:
        return ACTIVATION[self.limits.dtype]

    @property
    def sparse(self) -> int:
        """Sparse-attention layers of the trunk."""
        return self.c.layer_types.count("full_attention")

    @property
    def linear(self) -> int:
        return self.c.num_hidden_layers - self.sparse

    @property
    def pages(self) -> int:
        return self.limits.pages() + 1

    def heads(self, n: int) -> int:
        """Heads of one rank, of `n` in all."""
        return max(1, -(-n // self.ranks))

    @property
    def kv_token(self) -> int:
        """Bytes of keys and values of one token and layer on one rank."""
        default = {8: "f64", 4: "f32", 2: "bf16"}[self.activation]
        format = self.limits.kv_format or default
        return 2 * self.heads(self.c.num_key_value_heads) * row_bytes(format, self.c.head_dim)

    @property
    def index_page(self) -> int:
        """Bytes of index keys of one page and layer."""
        c = self.c
        return self.limits.page_size // c.indexer_compress_ratio * c.indexer_head_dim * self.activation


def buffers(
    c: ModelConfig, weights: Weights, limits: Limits, gpus: int, host_experts: int
) -> Iterator[Buffer]:
    """All buffers of `gpus` equal ranks, with `host_experts` of each layer's experts on the host."""
    g = Gpu(c, limits, weights.sizes(gpus, limits.draft > 0), gpus, host_experts)
    once = list(_rank(g))
    for k in range(gpus):
        for b in once:
            place = f"gpu:{k}" if b.place == "gpu" else b.place
            what = b.what if b.place == "gpu" or gpus == 1 else f"{b.what}, rank {k}"
            yield Buffer(b.owner, what, place, b.bytes, b.lifetime, b.formula)
    if g.sizes.table:
        table = weights.sizes(1, False)
        yield Buffer(
            "n-gram table",
            "rows",
            MAPPED,
            table.table,
            ALWAYS,
            f"rows of {table.table_row} B, read where they lie",
        )
        yield Buffer("n-gram table", "row cache", HOST, ROW_CACHE, ALWAYS, "a fixed size")
        heads = c.ngram_heads * len(c.ple_layers)
        yield Buffer(
            "n-gram table",
            "rows on their way to the GPUs",
            PINNED,
            limits.rows * heads * table.table_row,
            STEP,
            f"{limits.rows} rows x {heads} table rows x {table.table_row} B",
        )
    yield Buffer("modules and context", "processes", HOST, HOST_PROCESS, ALWAYS, "assumed")


def fewest_on_host(c: ModelConfig, weights: Weights, limits: Limits, gpus: int, capacity: int) -> int:
    """The smallest host share, in experts of a layer, whose ranks fit `capacity`; all of them if none does.

    A GPU needs less with each expert that leaves it, once the pool and the stream buffers that the first one
    brings with it are paid for: below the pool's size it needs more than with none.
    """
    g = Gpu(c, limits, weights.sizes(gpus, limits.draft > 0), gpus, 0)
    others = sum(b.bytes for b in _rank(g) if b.place == "gpu") - _expert_bytes(g, 0)

    def holds(h: int) -> bool:
        return others + _expert_bytes(g, h) <= capacity

    if holds(0):
        return 0
    low, high = min(c.num_experts, POOL * c.num_experts_per_tok), c.num_experts
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def _expert_bytes(g: Gpu, host_experts: int) -> int:
    """What the experts take on a GPU."""
    return sum(b.bytes for b in _experts(replace(g, host_experts=host_experts)) if b.place == "gpu")


def _rank(g: Gpu) -> Iterator[Buffer]:
    """Buffers of one rank; place "gpu" is its own card."""
    yield from _weights(g)
    yield from _experts(g)
    yield from _kv(g, g.sparse, draft=False)
    if g.draft:
        yield from _kv(g, 1, draft=True)
    yield from _hot(g)
    yield from _slots(g)
    yield from _step(g)
    yield from _fixed(g)


def _buffer(owner: str, what: str, place: str, nbytes: int, lifetime: str, formula: str) -> Iterator[Buffer]:
    if nbytes:
        yield Buffer(owner, what, place, nbytes, lifetime, formula)


def _weights(g: Gpu) -> Iterator[Buffer]:
    for name, nbytes in g.sizes.resident.items():
        words = f"this rank's share of {g.sizes.params[name]:,} numbers"
        yield from _buffer("draft" if name == DRAFT else "weights", name, "gpu", nbytes, ALWAYS, words)


def _experts(g: Gpu) -> Iterator[Buffer]:
    n, h = g.c.num_experts, g.host_experts
    pool = min(h, POOL * g.c.num_experts_per_tok)
    for owner, each in (("experts", g.sizes.experts), ("draft", g.sizes.draft_experts)):
        total = sum(each)
        layers = f"{len(each)} layers x "
        what = "routed experts" if owner == "experts" else "draft experts"
        words = f"{layers}{n - h} of {n} experts x {max(each, default=0):,} B at most"
        yield from _buffer(owner, what, "gpu", (n - h) * total, ALWAYS, words)
        words = f"{layers}{h} of {n} experts x {max(each, default=0):,} B at most"
        yield from _buffer(owner, what, PINNED, h * total, ALWAYS, words)
        words = f"{layers}{pool} slots, the smaller of {h} and {POOL} x {g.c.num_experts_per_tok}"
        yield from _buffer("expert pool", f"slots for {what}", "gpu", pool * total, ALWAYS, words)
    largest = max((*g.sizes.experts, *g.sizes.draft_experts), default=0)
    words = f"2 layers' host share: 2 x {h} experts x {largest:,} B"
    yield from _buffer("stream buffers", "expert streams", "gpu", 2 * h * largest, "prefill steps", words)


def _kv(g: Gpu, layers: int, draft: bool) -> Iterator[Buffer]:
    p, kv = g.limits.page_size, g.c.num_key_value_heads
    name = "draft head" if draft else "trunk"
    copies = g.ranks * g.heads(kv) / kv
    replicated = f"; {copies:g} copies of the whole in all" if copies > 1 else ""
    yield from _buffer(
        "draft" if draft else "K/V pages",
        f"{name}: keys and values",
        "gpu" if g.limits.kv == "gpu" else PINNED,
        layers * g.pages * p * g.kv_token,
        ALWAYS,
        f"{layers} layers x {g.pages} pages x {p} tokens x {g.kv_token} B, {g.heads(kv)} of {kv} heads{replicated}",
    )
    if g.limits.kv == "gpu" and g.limits.host_kv_tokens:
        cold, each = g.limits.host_pages() + 1, p * g.kv_token + g.index_page
        words = f"{layers} layers x {cold} pages x {each:,} B"
        yield from _buffer("host pages", f"{name}: cold pages", PINNED, layers * cold * each, ALWAYS, words)
    pages = -(-g.pages // g.ranks)
    yield from _buffer(
        "draft" if draft else "index keys",
        f"{name}: block keys",
        "gpu",
        layers * pages * g.index_page,
        ALWAYS,
        f"{layers} layers x {pages} of {g.pages} pages x {g.index_page} B, split by history",
    )


def _hot(g: Gpu) -> Iterator[Buffer]:
    if g.limits.kv == "gpu":
        return
    layers = g.sparse + g.draft
    tokens = min(HOT * g.c.indexer_budget, g.limits.context)
    n = g.limits.sequences
    yield from _buffer(
        "hot K/V",
        "recently chosen tokens",
        "gpu",
        layers * n * tokens * g.kv_token,
        ALWAYS,
        f"{layers} layers x {n} sequences x {tokens} tokens x {g.kv_token} B",
    )
    p = g.limits.page_size
    context = -(-g.limits.context // p) * p
    yield from _buffer(
        "history stage",
        "one layer's visible history",
        "gpu",
        context * g.kv_token,
        "prefill steps",
        f"{context} tokens, whole pages, x {g.kv_token} B; one for all layers and the draft",
    )


def _slot(g: Gpu) -> Iterator[tuple[str, int, str]]:
    """What a sequence's slot holds on one rank: (what, bytes, formula)."""
    c, a = g.c, g.activation
    w = max(a, 4)
    heads, dk, dv = g.heads(c.linear_num_value_heads), c.linear_key_head_dim, c.linear_value_head_dim
    reach = c.linear_conv_kernel_dim - 1
    channels = -(-conv_channels(c) * heads // c.linear_num_value_heads)
    wide = c.hc_count * c.hidden_size
    columns = (c.ple_conv_kernel_size - 1) * c.ngram_size
    n, ratio, d = len(c.ple_layers), c.indexer_compress_ratio, c.indexer_head_dim
    yield (
        "delta-net matrices",
        g.linear * heads * dk * dv * w,
        f"{g.linear} layers x {heads} heads x {dk} x {dv} x {w} B",
    )
    yield (
        "delta-net convolution tails",
        g.linear * reach * channels * a,
        f"{g.linear} layers x {reach} columns x {channels} x {a} B",
    )
    yield (
        "n-gram convolution tails",
        n * columns * wide * a,
        f"{n} layers x {columns} columns x {wide} x {a} B",
    )
    yield "token history", (c.ngram_size - 1) * 8, f"{c.ngram_size - 1} ids x 8 B"
    layers = g.sparse + g.draft
    yield "open index blocks", layers * ratio * d * a, f"{layers} layers x ring of {ratio} x {d} x {a} B"


def snapshot_bytes(g: Gpu) -> int:
    """A snapshot on one rank: a slot's content and the streams of its last row."""
    return sum(n for _, n, _ in _slot(g)) + g.c.hc_count * g.c.hidden_size * g.activation


def _slots(g: Gpu) -> Iterator[Buffer]:
    slots = g.limits.sequences + 1
    for what, nbytes, words in _slot(g):
        yield from _buffer("recurrent slots", what, "gpu", slots * nbytes, ALWAYS, f"{slots} slots x {words}")
    c, a = g.c, g.activation
    w = max(a, 4)
    keys, values = g.heads(c.linear_num_key_heads), g.heads(c.linear_num_value_heads)
    channels = -(-conv_channels(c) * values // c.linear_num_value_heads)
    row = g.linear * (
        (keys * c.linear_key_head_dim + values * (c.linear_value_head_dim + 2)) * w + channels * a
    )
    row += len(c.ple_layers) * c.hc_count * c.hidden_size * a + 8
    row += (g.sparse + g.draft) * c.indexer_head_dim * a
    window = g.limits.window
    yield from _buffer(
        "commit logs",
        "inputs of verify rows",
        "gpu",
        2 * slots * window * row,
        "until the next round commits",
        f"2 parities x {slots} slots x {window} verify rows x {row:,} B",
    )
    count, each = g.limits.snapshots, snapshot_bytes(g)
    yield from _buffer(
        "snapshot pool", "snapshots", PINNED, count * each, ALWAYS, f"{count} snapshots x {each:,} B"
    )


def _step(g: Gpu) -> Iterator[Buffer]:
    c, lim = g.c, g.limits
    _, each = colour(list(temporaries(c, g.ranks, g.activation, g.draft)))
    words = (
        f"{lim.rows} rows ({lim.prefill_chunk} of a chunk, {lim.decode_rows} of verify steps) x {each:,} B"
    )
    yield from _buffer("row arena", "coloured temporaries", "gpu", lim.rows * each, LAYER, words)
    tokens = lim.sequences * (lim.window + 1)
    v = -(-c.vocab_size // g.ranks)
    words = f"{tokens} rows x {v} x 4 B, and {lim.sequences} sequences' counts of 4 B"
    nbytes = (tokens + lim.sequences) * v * 4
    yield from _buffer("logits and sampler", "logits and penalties' counts", "gpu", nbytes, STEP, words)
    mask = lim.decode_rows * -(-v // 32) * 4
    yield from _buffer(
        "logits and sampler", "token masks", "gpu", mask, STEP, "a bit for each token and verify row"
    )
    width = -(-(lim.context + 1) // lim.page_size)
    words = f"{lim.sequences} sequences x {width} pages x 4 B"
    yield from _buffer("page tables", "page tables", "gpu", lim.sequences * width * 4, ALWAYS, words)
    entry = lim.decode_rows * (12 + 12 * TOP_LOGPROBS)
    words = f"{RING_ENTRIES} rounds x {lim.decode_rows} rows x (token, logprob, {TOP_LOGPROBS} alternatives)"
    yield from _buffer("result ring", "results of rounds", PINNED, RING_ENTRIES * entry, ALWAYS, words)


def _fixed(g: Gpu) -> Iterator[Buffer]:
    yield from _buffer("BLAS scratch", "workspace", "gpu", BLAS, ALWAYS, "a fixed size")
    buckets = (g.limits.sequences - 1).bit_length() + 1
    nodes = 2 * buckets * DEPTHS * (g.c.num_hidden_layers + g.draft) * KERNELS
    words = f"2 graphs x {buckets} batch sizes x {DEPTHS} depths: {nodes} kernels x {GRAPH_NODE} B, assumed"
    yield from _buffer("graph pools", "captured rounds", "gpu", nodes * GRAPH_NODE, ALWAYS, words)
    words = f"assumed {size(CONTEXT)}; to be measured at start-up"
    yield from _buffer("modules and context", "driver and kernels", "gpu", CONTEXT, ALWAYS, words)
    if g.ranks > 1:
        words = f"assumed {size(COMMUNICATOR)}"
        yield from _buffer("communicator", "rings between GPUs", "gpu", COMMUNICATOR, ALWAYS, words)
    words = "never planned away (--reserve)"
    yield from _buffer("reserve", "reserve", "gpu", g.limits.reserve, ALWAYS, words)
