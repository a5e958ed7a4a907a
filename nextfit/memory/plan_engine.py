"""The buffers of the engine as it is: everything in the host's memory, the n-gram table mapped. No torch.

`state` follows `nextfit/model/state.py` tensor by tensor. `scratch` bounds the inner temporaries of the PyTorch
reference route from above; its counts per row follow the operators' references.
"""

from __future__ import annotations

from collections.abc import Iterator

from nextfit.config import ModelConfig
from nextfit.memory.hardware import MiB
from nextfit.memory.plan_values import ACTIVATION, ALWAYS, HOST, LAYER, MAPPED, STEP, Buffer, Limits
from nextfit.memory.plan_weights import DRAFT, Weights

RING = 32  # raw index keys of a slot (ops/sparse_attention)
CHUNK = 64  # rows of a delta-net chunk
TILE = 1024  # index blocks scored at a time
MASK_ELEMENTS = 1 << 22  # of one masked product
MODULES = 256 * MiB  # Python, torch and NextFit in memory; measured (docs/memory.md)


def buffers(c: ModelConfig, weights: Weights, limits: Limits) -> Iterator[Buffer]:
    """All buffers of an engine on the CPU."""
    yield from _weights(c, weights, limits)
    yield from state(c, limits)
    yield from _temporaries(c, weights, limits)
    yield Buffer(
        "modules and context",
        "Python, torch and NextFit",
        HOST,
        MODULES,
        ALWAYS,
        "measured, not computed",
    )


def _weights(c: ModelConfig, weights: Weights, limits: Limits) -> Iterator[Buffer]:
    sizes = weights.sizes(draft=limits.draft > 0)
    for name, nbytes in sizes.resident.items():
        owner = "draft" if name == DRAFT else "weights"
        yield Buffer(owner, name, HOST, nbytes, ALWAYS, f"{sizes.params[name]:,} numbers in their own types")
    for owner, what, each in (
        ("experts", "routed experts", sizes.experts),
        ("draft", "draft experts", sizes.draft_experts),
    ):
        if each:
            words = f"{len(each)} layers x {c.num_experts} experts, {max(each):,} B each at most"
            yield Buffer(owner, what, HOST, c.num_experts * sum(each), ALWAYS, words)
    if sizes.table:
        words = f"rows of {sizes.table_row} B, read where they lie; the system may cache them"
        yield Buffer("n-gram table", "rows", MAPPED, sizes.table, ALWAYS, words)


def state(c: ModelConfig, limits: Limits) -> Iterator[Buffer]:
    """Exactly what `State` allocates; page 0 and slot 0 are nobody's and counted."""
    a = ACTIVATION[limits.dtype]
    slots = limits.sequences + 1
    sparse = c.layer_types.count("full_attention")
    yield from _pages(c, limits, sparse, "K/V pages", "index keys", "trunk")
    if c.mtp_num_hidden_layers:
        yield from _pages(c, limits, 1, "draft", "draft", "draft head")
    w, linear = max(a, 4), c.num_hidden_layers - sparse
    heads, dk, dv = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    channels, reach = conv_channels(c), c.linear_conv_kernel_dim - 1
    wide = c.hc_count * c.hidden_size
    ngram_reach = (c.ple_conv_kernel_size - 1) * c.ngram_size
    at, n, ngram = f"{slots} slots x ", limits.window, len(c.ple_layers)

    def slot(what: str, nbytes: int, words: str) -> Buffer:
        return Buffer("recurrent slots", what, HOST, slots * nbytes, ALWAYS, at + words)

    def log(what: str, nbytes: int, words: str) -> Buffer:
        words = f"{at}{n} verify rows x {words}"
        return Buffer("commit logs", what, HOST, slots * n * nbytes, "until the next step commits", words)

    yield slot(
        "delta-net matrices",
        linear * heads * dk * dv * w,
        f"{linear} layers x {heads} heads x {dk} x {dv} x {w} B",
    )
    yield slot(
        "delta-net convolution tails",
        linear * reach * channels * a,
        f"{linear} layers x {reach} columns x {channels} x {a} B",
    )
    yield slot(
        "n-gram convolution tails",
        ngram * ngram_reach * wide * a,
        f"{ngram} layers x {ngram_reach} columns x {wide} x {a} B",
    )
    yield slot("token history", (c.ngram_size - 1) * 8, f"{c.ngram_size - 1} ids x 8 B")
    each = heads * (dk + dv + 2) * w
    yield log(
        "delta-net inputs", linear * each, f"{linear} layers x {heads} heads x ({dk} + {dv} + 2) x {w} B"
    )
    yield log("delta-net convolution columns", linear * channels * a, f"{linear} layers x {channels} x {a} B")
    yield log("n-gram convolution columns", ngram * wide * a, f"{ngram} layers x {wide} x {a} B")
    yield log("token ids", 8, "8 B")


def _pages(c: ModelConfig, limits: Limits, layers: int, kv: str, index: str, what: str) -> Iterator[Buffer]:
    a = ACTIVATION[limits.dtype]
    pages, p, slots = limits.pages() + 1, limits.page_size, limits.sequences + 1
    heads, dim, ratio, d = (
        c.num_key_value_heads,
        c.head_dim,
        c.indexer_compress_ratio,
        c.indexer_head_dim,
    )
    at = f"{layers} layers x "
    yield Buffer(
        kv,
        f"{what}: keys and values",
        HOST,
        layers * pages * p * 2 * heads * dim * a,
        ALWAYS,
        f"{at}{pages} pages x {p} tokens x 2 x {heads} heads x {dim} x {a} B",
    )
    yield Buffer(
        index,
        f"{what}: block keys",
        HOST,
        layers * pages * (p // ratio) * d * a,
        ALWAYS,
        f"{at}{pages} pages x {p // ratio} blocks x {d} x {a} B",
    )
    yield Buffer(
        "recurrent slots" if kv != "draft" else "draft",
        f"{what}: raw index keys of open blocks",
        HOST,
        layers * slots * RING * d * a,
        ALWAYS,
        f"{at}{slots} slots x {RING} keys x {d} x {a} B",
    )


def conv_channels(c: ModelConfig) -> int:
    """Channels of a delta-net convolution: queries, keys and values of all heads."""
    keys = c.linear_num_key_heads * c.linear_key_head_dim
    return 2 * keys + c.linear_num_value_heads * c.linear_value_head_dim


def _temporaries(c: ModelConfig, weights: Weights, limits: Limits) -> Iterator[Buffer]:
    a, m = ACTIVATION[limits.dtype], max(4, ACTIVATION[limits.dtype])
    width = c.num_key_value_heads * c.head_dim
    each = 2 * width * (a if a == m else a + m) + c.indexer_head_dim * a // c.indexer_compress_ratio
    yield Buffer(
        "history stage",
        "one layer's keys and values of one sequence",
        HOST,
        limits.context * each,
        LAYER,
        f"{limits.context} tokens x {each} B, gathered from pages and widened for the products",
    )
    per_row, rows = _row_bytes(c, a, m), limits.rows
    chunk_rows = rows + 2 * CHUNK * limits.sequences
    per_chunk_row = (
        c.linear_num_value_heads * m * (10 * c.linear_key_head_dim + 8 * c.linear_value_head_dim + 6 * CHUNK)
    )
    yield Buffer(
        "scratch",
        "temporaries of the rows",
        HOST,
        rows * per_row + chunk_rows * per_chunk_row,
        LAYER,
        f"{rows} rows x {per_row:,} B, {chunk_rows} rows of padded chunks x {per_chunk_row:,} B",
    )
    yield from _tiles(c, limits, a, m)
    numbers = weights.sizes(draft=limits.draft > 0).decoded
    yield Buffer(
        "scratch",
        "the weight of one product, decoded",
        HOST,
        numbers * (m + 8),
        "one product",
        f"{numbers:,} numbers x ({m} + 8) B at most",
    )
    v, r = c.vocab_size, limits.decode_rows + limits.sequences
    yield Buffer(
        "logits and sampler",
        "logits, and one sequence's candidates",
        HOST,
        r * v * (a + m) + limits.window * v * (8 * m + 24),
        STEP,
        f"{r} rows x {v} x {a + m} B, {limits.window} rows x {v} x {8 * m + 24} B",
    )
    tables = limits.sequences * (limits.pages() + 1) * 8
    yield Buffer(
        "page tables",
        "page table of a step",
        HOST,
        tables,
        STEP,
        f"{limits.sequences} sequences x at most {limits.pages() + 1} pages x 8 B",
    )


def _row_bytes(c: ModelConfig, a: int, m: int) -> int:
    """Most bytes that one row's temporaries take at once, the streams and what the draft gets included."""
    wide, hidden = c.hc_count * c.hidden_size, c.hidden_size
    streams = 4 * wide * a
    hyper = wide * (4 * a + 5 * m)
    ngram = wide * (c.ple_conv_kernel_size * (a + m) + 3 * m + 8 * a) if c.ple_layers else 0
    channels, heads = conv_channels(c), c.linear_num_value_heads
    values = heads * (c.linear_key_head_dim * 2 + c.linear_value_head_dim * 4)
    delta = channels * (c.linear_conv_kernel_dim * (a + m) + 3 * m + 4 * a) + values * (a + 2 * m)
    queries = c.num_attention_heads * c.head_dim
    attention = queries * (6 * a + 6 * m) + 4 * c.num_key_value_heads * c.head_dim * (a + m)
    pairs = c.num_experts_per_tok * hidden
    experts = pairs * (2 * a + 3 * m) + c.num_experts * (4 * m + 24) + hidden * 4 * m
    return streams + max(hyper, ngram, delta, attention, experts)


def _tiles(c: ModelConfig, limits: Limits, a: int, m: int) -> Iterator[Buffer]:
    blocks, heads = c.indexer_budget // c.indexer_compress_ratio, c.indexer_n_heads
    each = heads * TILE * m * 2 + (blocks + TILE) * (3 * m + 8 * 4)
    yield Buffer(
        "scratch",
        "index scores of one tile",
        HOST,
        limits.rows * each,
        LAYER,
        f"{limits.rows} rows x ({heads} heads x {TILE} scores, {blocks} + {TILE} candidates) = {each:,} B",
    )
    yield Buffer(
        "scratch",
        "masks of one attention tile",
        HOST,
        MASK_ELEMENTS * (m + 6),
        LAYER,
        f"{MASK_ELEMENTS:,} pairs x {m + 6} B",
    )
    chosen = c.indexer_budget + c.indexer_compress_ratio
    each = chosen * c.num_key_value_heads * c.head_dim * 2 * (a + 2 * m)
    yield Buffer(
        "scratch",
        "chosen keys and values of one sequence's verify rows",
        HOST,
        limits.window * each,
        LAYER,
        f"{limits.window} rows x {chosen} tokens = {each:,} B a row",
    )
    matrix = c.linear_num_value_heads * c.linear_key_head_dim * c.linear_value_head_dim * m
    yield Buffer(
        "scratch",
        "delta-net matrices of one layer",
        HOST,
        limits.sequences * matrix * 4,
        LAYER,
        f"{limits.sequences} sequences x 4 x {matrix:,} B",
    )
