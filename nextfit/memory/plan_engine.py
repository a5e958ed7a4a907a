"""The buffers of the engine as it is: everything in the host's memory, the n-gram table mapped. No torch.

`arena` is what start-up allocates in one piece (`nextfit/memory/arena.py`): `state` follows `nextfit/model/state.py`
tensor by tensor, `_rows` follows `nextfit/model/buffers.py`. `scratch` bounds the inner temporaries of the PyTorch
reference route from above; its counts per row follow the operators' references.
"""

from __future__ import annotations

from collections.abc import Iterator

from nextfit.checkpoint.names import Kind, draft_slots, trunk_slots
from nextfit.config import ModelConfig
from nextfit.memory.hardware import MiB
from nextfit.memory.plan_rows import colour, crossing
from nextfit.memory.plan_values import ACTIVATION, ALWAYS, HOST, LAYER, MAPPED, STEP, Buffer, Limits
from nextfit.memory.plan_weights import DRAFT, Weights

RING = 32  # raw index keys of a slot (ops/sparse_attention)
CHUNK = 64  # rows of a delta-net chunk
CHUNKS_TOGETHER = 8
TILE = 1024  # index blocks scored at a time
WEIGHT_TILE = 1 << 22  # numbers of a weight that are widened at a time (ops/linear)
ALIGNMENT = 64  # bytes of a cache line
HISTORY_STAGE = 1024  # tokens of a history that rows attend to at a time
ROWS_ATTENDING = 128  # of a sequence, at a time
ROWS_SCORED = 32
MODULES = 256 * MiB  # Python, torch and NextFit in memory; measured (docs/memory.md)


def buffers(c: ModelConfig, weights: Weights, limits: Limits) -> Iterator[Buffer]:
    """All buffers of an engine on the CPU."""
    yield from _weights(c, weights, limits)
    yield from arena(c, limits)
    yield from host_tier(c, limits)
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


def arena(c: ModelConfig, limits: Limits) -> Iterator[Buffer]:
    """All that the engine allocates before its first step and keeps."""
    yield from state(c, limits)
    yield from _rows(c, limits)
    yield _alignment(c)


def _alignment(c: ModelConfig) -> Buffer:
    sparse = c.layer_types.count("full_attention")
    tensors = 4 * (sparse + bool(c.mtp_num_hidden_layers)) + 7 * (c.num_hidden_layers - sparse)
    tensors += 2 * len(c.ple_layers) + 8
    words = f"{tensors} tensors x {ALIGNMENT} B: each begins on a cache line"
    return Buffer("alignment", "between tensors", HOST, tensors * ALIGNMENT, ALWAYS, words)


def _rows(c: ModelConfig, limits: Limits) -> Iterator[Buffer]:
    """What crosses operators within a step."""
    a, rows = ACTIVATION[limits.dtype], limits.rows
    _, each = colour(crossing(c, a))
    words = f"{rows} rows x {each:,} B, coloured by lifetime"
    yield Buffer("row arena", "streams, block inputs and outputs", HOST, rows * each, STEP, words)
    n, v = limits.decode_rows, c.vocab_size
    yield Buffer("logits and sampler", "logits", HOST, n * v * a, STEP, f"{n} rows x {v} x {a} B")
    n, width = 2 * limits.sequences + 1, table_width(limits)
    words = f"{n} tables x {width} pages x 8 B: of slots, and of a step's sequences"
    yield Buffer("page tables", "page tables", HOST, n * width * 8, ALWAYS, words)
    numbers, m = widened_numbers(c), max(4, a)
    words = f"{numbers:,} numbers x {m} B, widened for a product"
    yield Buffer("BLAS scratch", "a tile of a weight", HOST, numbers * m, "one product", words)


def table_width(limits: Limits) -> int:
    """Pages of a sequence of the full context; a draft row lies one slot later."""
    return -(-(limits.context + 1) // limits.page_size)


def widened_numbers(c: ModelConfig) -> int:
    """Numbers of the largest tile of a weight that `ops/linear` widens."""
    slots = [*trunk_slots(c), *(draft_slots(c) if c.mtp_num_hidden_layers else ())]
    shapes = [s.shape[-2:] for s in slots if s.kind in (Kind.MATRIX, Kind.EXPERTS)]
    return max(min(n, max(1, WEIGHT_TILE // columns)) * columns for n, columns in shapes)


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


def host_tier(c: ModelConfig, limits: Limits) -> Iterator[Buffer]:
    """The second thing that start-up allocates: a place for pages that the prefix cache moves out of the way."""
    if limits.host_kv_tokens:
        layers = c.layer_types.count("full_attention") + bool(c.mtp_num_hidden_layers)
        pages, each = limits.host_pages() + 1, layers * sum(_page(c, limits))  # number 0 is nobody's
        words = f"{pages} pages x {each:,} B: of {layers} layers, one after another"
        yield Buffer("host pages", "cold pages of the prefix cache", HOST, pages * each, ALWAYS, words)


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
    for whose, layers in (("trunk", sparse), ("draft head", int(c.mtp_num_hidden_layers > 0))):
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
    history, keys = _page(c, limits)
    words = f"{at}{p} tokens x 2 x {heads} heads x {dim} x {a} B"
    yield Buffer(kv, f"{what}: keys and values", HOST, layers * pages * history, ALWAYS, words)
    words = f"{at}{blocks} blocks x {d} x {a} B"
    yield Buffer(index, f"{what}: block keys", HOST, layers * pages * keys, ALWAYS, words)


def _page(c: ModelConfig, limits: Limits) -> tuple[int, int]:
    """Bytes of a page of one layer: of its keys and values, of its block keys."""
    a, p = ACTIVATION[limits.dtype], limits.page_size
    blocks = p // c.indexer_compress_ratio
    return p * 2 * c.num_key_value_heads * c.head_dim * a, blocks * c.indexer_head_dim * a


def _wide(c: ModelConfig) -> int:
    """Numbers of a row's streams."""
    return c.hc_count * c.hidden_size


def conv_channels(c: ModelConfig) -> int:
    """Channels of a delta-net convolution: queries, keys and values of all heads."""
    keys = c.linear_num_key_heads * c.linear_key_head_dim
    return 2 * keys + c.linear_num_value_heads * c.linear_value_head_dim


def _temporaries(c: ModelConfig, weights: Weights, limits: Limits) -> Iterator[Buffer]:
    """What operators need inside, from above."""
    a, m = ACTIVATION[limits.dtype], max(4, ACTIVATION[limits.dtype])
    tokens = min(limits.context, HISTORY_STAGE) + 2 * limits.page_size
    each = 2 * c.num_key_value_heads * c.head_dim * (a if a == m else a + m)
    words = f"{tokens} tokens, whole pages, x {each} B, gathered from pages and widened for the products"
    yield Buffer("scratch", "history stage", HOST, tokens * each, LAYER, words)
    found = _stages(c, limits, a, m)
    name = max(found, key=lambda n: found[n][0])
    nbytes, words = found[name]
    yield Buffer("scratch", f"the largest stage, {name}", HOST, nbytes, LAYER, words)
    numbers = min(WEIGHT_TILE, weights.sizes(draft=limits.draft > 0).decoded)
    if numbers:
        words, nbytes = f"{numbers:,} numbers x ({m} + 8) B at most", numbers * (m + 8)
        yield Buffer("scratch", "a tile of a weight, decoded", HOST, nbytes, "one product", words)


def _stages(c: ModelConfig, limits: Limits, a: int, m: int) -> dict[str, tuple[int, str]]:
    """Stage of a step -> most bytes that its temporaries take at once, and how many of what that is."""
    rows, wide, d, v = limits.rows, _wide(c), c.hidden_size, c.vocab_size
    k, e, f = c.num_experts_per_tok, c.num_experts, c.moe_intermediate_size
    inner = f + c.shared_expert_intermediate_size
    each = {
        "hyper-connections": wide * 5 * m + d * m,
        "experts": k * (d * m + 64) + d * (5 * m + 3 * a) + e * (4 * m + 24) + inner * 4 * m,
    }
    out = {name: (rows * n, f"{rows} rows x {n:,} B") for name, n in each.items()}
    if c.ple_layers:
        row = wide * (5 * a + 2 * m) + c.ple_embed_dim * 3 * m + c.ngram_heads * 64
        tails = limits.sequences * (c.ple_conv_kernel_size - 1) * c.ngram_size * wide * a
        words = f"{rows} rows x {row:,} B, and {tails:,} B of all sequences' tails"
        out["n-gram layer"] = rows * row + tails, words
    n = limits.decode_rows
    out["sampler"] = (n * v * (9 * m + 24), f"{n} rows x {v} x {9 * m + 24} B")
    out["delta net"] = _delta_net(c, limits, a, m)
    out["sparse attention"] = _sparse_attention(c, limits, a, m)
    return out


def _delta_net(c: ModelConfig, limits: Limits, a: int, m: int) -> tuple[int, str]:
    heads, dk, dv = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    channels, values = conv_channels(c), heads * dv
    projected = (channels + values + 2 * heads) * a
    convolving = projected + channels * (2 * a + 2 * m)
    inputs = (
        projected + channels * a + 2 * c.linear_num_key_heads * dk * m + heads * (2 * dk + 2 * dv + 4) * m
    )
    norming = inputs + values * (3 * m + 3 * a)
    inner = heads * m * (8 * dk + 3 * dv + 4 * CHUNK + 8)
    rows, chunks, matrix = limits.rows, CHUNKS_TOGETHER * CHUNK, heads * dk * dv * m
    nbytes = max(rows * max(convolving, norming), rows * inputs + chunks * inner)
    words = (
        f"the larger of {rows} rows x {max(convolving, norming):,} B and {rows} rows x {inputs:,} B with {chunks} "
        f"rows of chunks x {inner:,} B; {limits.sequences} sequences x 4 matrices x {matrix:,} B"
    )
    return nbytes + limits.sequences * 4 * matrix, words


def _sparse_attention(c: ModelConfig, limits: Limits, a: int, m: int) -> tuple[int, str]:
    """All rows' queries, keys and values; and the larger of what rows that attend at a time need and verify rows."""
    width, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    index = (c.indexer_n_heads + 1) * c.indexer_head_dim
    row = width * (5 * a + 3 * m) + 4 * kv * a + 3 * index * m
    ratio = c.indexer_compress_ratio
    blocks = min(c.indexer_budget, limits.context) // ratio
    tile = max(0, min(TILE, limits.context // ratio - blocks))
    scores = (2 * c.indexer_n_heads * m + 3 * m + 32) * tile + (3 * m + 48) * blocks
    masks = (m + 8) * min(limits.context, HISTORY_STAGE) + 32 * blocks + 6 * width * m
    chosen = (c.indexer_budget + ratio) * (kv * 2 * (a + 2 * m) + 32)
    scoring = min(limits.rows, ROWS_SCORED) * scores
    attending = min(limits.rows, ROWS_ATTENDING) * masks
    largest = max(scoring, attending, limits.window * chosen)
    words = (
        f"{limits.rows} rows x {row:,} B, and {largest:,} B, the largest of index scores "
        f"({tile} blocks a tile), masks and the tokens that verify rows chose"
    )
    return limits.rows * row + largest, words
