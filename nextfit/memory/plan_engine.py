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
    sparse = c.layer_types.count("full_attention")
    yield from _pages(c, limits, sparse, "K/V pages", "index keys", "trunk")
    if c.mtp_num_hidden_layers:
        yield from _pages(c, limits, 1, "draft", "draft", "draft head")
    slots, total = limits.sequences + 1, 0
    for owner, what, nbytes, words in (*_slot(c, limits, sparse), *_slot_logs(c, limits, sparse)):
        lifetime = "until the next step commits" if owner == "commit logs" else ALWAYS
        yield Buffer(owner, what, HOST, slots * nbytes, lifetime, f"{slots} slots x {words}")
        total += nbytes
    if limits.snapshots:
        words = f"{limits.snapshots} snapshots x {total:,} B, all that a slot has"
        yield Buffer("snapshot pool", "snapshots", HOST, limits.snapshots * total, ALWAYS, words)


_Part = tuple[str, str, int, str]  # owner, what, bytes of one slot, the formula of these


def _slot(c: ModelConfig, limits: Limits, sparse: int) -> Iterator[_Part]:
    """What the tokens of a sequence leave in its recurrent slot."""
    a, linear = ACTIVATION[limits.dtype], c.num_hidden_layers - sparse
    w, owner = max(a, 4), "recurrent slots"
    heads, dk, dv = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    channels, reach = conv_channels(c), c.linear_conv_kernel_dim - 1
    ngram, columns, wide = len(c.ple_layers), (c.ple_conv_kernel_size - 1) * c.ngram_size, _wide(c)
    words = f"{linear} layers x {heads} heads x {dk} x {dv} x {w} B"
    yield owner, "delta-net matrices", linear * heads * dk * dv * w, words
    words = f"{linear} layers x {reach} columns x {channels} x {a} B"
    yield owner, "delta-net convolution tails", linear * reach * channels * a, words
    words = f"{ngram} layers x {columns} columns x {wide} x {a} B"
    yield owner, "n-gram convolution tails", ngram * columns * wide * a, words
    yield owner, "streams of the last row", wide * a, f"{wide} x {a} B"
    yield owner, "token history", (c.ngram_size - 1) * 8, f"{c.ngram_size - 1} ids x 8 B"
    d = c.indexer_head_dim
    rings = [(owner, "trunk", sparse)] + [("draft", "draft head", 1)] * bool(c.mtp_num_hidden_layers)
    for owner, whose, layers in rings:
        words = f"{layers} layers x {RING} keys x {d} x {a} B"
        yield owner, f"{whose}: raw index keys of open blocks", layers * RING * d * a, words


def _slot_logs(c: ModelConfig, limits: Limits, sparse: int) -> Iterator[_Part]:
    """What verify rows leave in a recurrent slot until they are committed."""
    a, linear, n = ACTIVATION[limits.dtype], c.num_hidden_layers - sparse, limits.window
    w, wide, ngram = max(a, 4), _wide(c), len(c.ple_layers)
    heads, dk, dv = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    channels = conv_channels(c)
    for what, nbytes, words in (
        (
            "delta-net inputs",
            linear * heads * (dk + dv + 2) * w,
            f"{linear} layers x {heads} heads x ({dk} + {dv} + 2) x {w} B",
        ),
        ("delta-net convolution columns", linear * channels * a, f"{linear} layers x {channels} x {a} B"),
        ("n-gram convolution columns", ngram * wide * a, f"{ngram} layers x {wide} x {a} B"),
        ("streams", wide * a, f"{wide} x {a} B"),
        ("token ids", 8, "8 B"),
    ):
        yield "commit logs", what, n * nbytes, f"{n} verify rows x {words}"


def _pages(c: ModelConfig, limits: Limits, layers: int, kv: str, index: str, what: str) -> Iterator[Buffer]:
    a, pages, p = ACTIVATION[limits.dtype], limits.pages() + 1, limits.page_size
    heads, dim, d = c.num_key_value_heads, c.head_dim, c.indexer_head_dim
    blocks = p // c.indexer_compress_ratio
    at = f"{layers} layers x {pages} pages x "
    words = f"{at}{p} tokens x 2 x {heads} heads x {dim} x {a} B"
    nbytes = layers * pages * p * 2 * heads * dim * a
    yield Buffer(kv, f"{what}: keys and values", HOST, nbytes, ALWAYS, words)
    words = f"{at}{blocks} blocks x {d} x {a} B"
    yield Buffer(index, f"{what}: block keys", HOST, layers * pages * blocks * d * a, ALWAYS, words)


def _wide(c: ModelConfig) -> int:
    """Numbers of a row's streams."""
    return c.hc_count * c.hidden_size


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
    wide, rows = _wide(c), limits.rows
    words = f"{rows} rows x 4 x {wide} x {a} B: before and after a write, and for the draft"
    yield Buffer("scratch", "streams", HOST, rows * 4 * wide * a, STEP, words)
    found = _stages(c, limits, a, m)
    name = max(found, key=lambda n: found[n][0])
    nbytes, words = found[name]
    yield Buffer("scratch", f"the largest stage, {name}", HOST, nbytes, LAYER, words)
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


def _stages(c: ModelConfig, limits: Limits, a: int, m: int) -> dict[str, tuple[int, str]]:
    """Stage of a layer -> most bytes that its temporaries take at once, and how many of what that is."""
    rows, wide, d = limits.rows, _wide(c), c.hidden_size
    pairs, e = c.num_experts_per_tok * d, c.num_experts
    each = {
        "hyper-connections": wide * (4 * a + 5 * m),
        "experts": pairs * (2 * a + 3 * m) + e * (4 * m + 24) + d * 4 * m,
    }
    if c.ple_layers:
        each["n-gram layer"] = wide * (c.ple_conv_kernel_size * (a + m) + 3 * m + 8 * a)
    out = {name: (rows * n, f"{rows} rows x {n:,} B") for name, n in each.items()}
    out["delta net"] = _delta_net(c, limits, a, m)
    out["sparse attention"] = _sparse_attention(c, limits, a, m)
    return out


def _delta_net(c: ModelConfig, limits: Limits, a: int, m: int) -> tuple[int, str]:
    heads, dk, dv = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    channels = conv_channels(c)
    row = channels * (c.linear_conv_kernel_dim * (a + m) + 3 * m + 4 * a)
    row += heads * (2 * dk + 4 * dv) * (a + 2 * m)
    padded = limits.rows + 2 * CHUNK * limits.sequences
    inner = heads * m * (10 * dk + 8 * dv + 6 * CHUNK)
    matrix = heads * dk * dv * m
    words = (
        f"{limits.rows} rows x {row:,} B, {padded} rows of padded chunks x {inner:,} B, "
        f"{limits.sequences} sequences x 4 matrices x {matrix:,} B"
    )
    return limits.rows * row + padded * inner + limits.sequences * 4 * matrix, words


def _sparse_attention(c: ModelConfig, limits: Limits, a: int, m: int) -> tuple[int, str]:
    """Rows, and the larger of the three tiles: index scores, masks, one sequence's chosen tokens."""
    rows, width = limits.rows, c.num_key_value_heads * c.head_dim
    row = c.num_attention_heads * c.head_dim * (6 * a + 6 * m) + 4 * width * (a + m)
    blocks, ratio = c.indexer_budget // c.indexer_compress_ratio, c.indexer_compress_ratio
    tile = max(0, min(TILE, limits.context // ratio - blocks))
    scores = rows * ((2 * c.indexer_n_heads * m + 3 * m + 32) * tile + (3 * m + 32) * blocks) if tile else 0
    masks = min(MASK_ELEMENTS + limits.context, rows * limits.context) * (m + 6)
    chosen = limits.window * (c.indexer_budget + ratio) * width * 2 * (a + 2 * m)
    best = max(scores, masks, chosen)
    words = (
        f"{rows} rows x {row:,} B, and {best:,} B, the largest of index scores ({tile} blocks a tile), "
        f"masks of a tile and the tokens that verify rows chose"
    )
    return rows * row + best, words
