"""Temporaries of a step's rows: named, with lifetimes in operator order, coloured to share bytes. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nextfit.config import ModelConfig

# moments of a step; a temporary lives from one to another, both included
(
    EMBED,
    NGRAM,
    READ,
    DELTA_IN,
    DELTA,
    DELTA_OUT,
    SPARSE_IN,
    SELECT,
    ATTEND,
    SPARSE_OUT,
    WRITE_READ,
    ROUTE,
    EXPERTS_UP,
    EXPERTS_DOWN,
    WRITE,
    HEAD,
    DRAFT,
) = range(17)


@dataclass(frozen=True, slots=True)
class Temporary:
    """`bytes` of one row, alive from `first` to `last`."""

    name: str
    bytes: int
    first: int
    last: int

    def meets(self, other: Temporary) -> bool:
        """Whether both live at some moment."""
        return self.first <= other.last and other.first <= self.last


def colour(temporaries: Sequence[Temporary]) -> tuple[dict[str, int], int]:
    """Offset of each temporary, and bytes in all: those that meet never share bytes.

    Largest first, each at the lowest offset where nothing that it meets is in the way.
    """
    placed: list[tuple[int, Temporary]] = []
    for t in sorted(temporaries, key=lambda t: (-t.bytes, t.first, t.name)):
        at = 0
        for offset, other in sorted((p for p in placed if p[1].meets(t)), key=lambda p: p[0]):
            if offset >= at + t.bytes:
                break
            at = max(at, offset + other.bytes)
        placed.append((at, t))
    return {t.name: at for at, t in placed}, max((at + t.bytes for at, t in placed), default=0)


def crossing(c: ModelConfig, a: int) -> list[Temporary]:
    """What crosses operators of the reference route, for one row (`nextfit/model/buffers.py`).

    The draft head's layer comes after what it was handed is gone, so the moments of a layer are before DRAFT only.
    """
    hidden, wide = c.hidden_size * a, c.hc_count * c.hidden_size * a
    return [
        Temporary("streams", wide, EMBED, DRAFT),
        Temporary("hidden states handed to the draft", wide, DRAFT, DRAFT),
        Temporary("block inputs", hidden, READ, HEAD),
        Temporary("block outputs", hidden, DELTA_OUT, WRITE),
    ]


def temporaries(c: ModelConfig, ranks: int, a: int, draft: bool) -> Iterator[Temporary]:
    """What one row needs on one rank, with activations of `a` bytes.

    The streams are row-local: a rank keeps 1 / ranks of a step's rows of them (a chunk's rows are many).
    """
    d, wide = c.hidden_size, c.hc_count * c.hidden_size
    local = -(-wide // ranks)

    def share(n: int) -> int:
        return -(-n // ranks)

    yield Temporary("streams", local * a, EMBED, HEAD)
    yield Temporary("hidden states handed to the draft", wide * a if draft else 0, WRITE, DRAFT)
    if c.ple_layers:
        yield Temporary("n-gram rows", c.ple_embed_dim * a, EMBED, NGRAM)
        yield Temporary("n-gram keys, value, gate", share(3 * wide + d) * a, NGRAM, NGRAM)
    yield Temporary("normed streams of the first read", local * a, READ, READ)
    yield Temporary("mixer input", d * a, READ, SPARSE_IN)
    yield Temporary("rotations", c.rotary_dim * 4, EMBED, DRAFT)
    yield from _delta_net(c, ranks, a)
    yield from _sparse_attention(c, ranks, a)
    yield Temporary("mixer output", d * a, DELTA_OUT, WRITE_READ)
    yield Temporary("normed streams of the second read", local * a, WRITE_READ, WRITE_READ)
    yield Temporary("experts' input", d * a, WRITE_READ, EXPERTS_UP)
    k, f = c.num_experts_per_tok, c.moe_intermediate_size
    yield Temporary("router logits", c.num_experts * 4, ROUTE, ROUTE)
    yield Temporary("chosen experts", k * 12, ROUTE, EXPERTS_DOWN)
    inner = k * f + c.shared_expert_intermediate_size
    yield Temporary("gate and up", share(2 * inner) * a, EXPERTS_UP, EXPERTS_UP)
    yield Temporary("inner activations", share(inner) * a, EXPERTS_UP, EXPERTS_DOWN)
    yield Temporary("outputs of the chosen experts", (k + 1) * d * a, EXPERTS_DOWN, EXPERTS_DOWN)
    yield Temporary("experts' output", d * a, EXPERTS_DOWN, WRITE)


def _delta_net(c: ModelConfig, ranks: int, a: int) -> Iterator[Temporary]:
    heads, dk, dv = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    channels = 2 * c.linear_num_key_heads * dk + heads * dv
    share = -(-heads // ranks) / heads
    projected = int(share * (channels + heads * (dv + 2)))
    yield Temporary("delta-net projections", projected * a, DELTA_IN, DELTA_OUT)
    yield Temporary("convolved q, k, v", int(share * channels) * 4, DELTA, DELTA)
    yield Temporary("chunk matrices", int(share * heads * (2 * 64 + dk + dv)) * 4, DELTA, DELTA)
    yield Temporary("delta-net output", int(share * heads * dv) * 4, DELTA, DELTA_OUT)


def _sparse_attention(c: ModelConfig, ranks: int, a: int) -> Iterator[Temporary]:
    width = -(-c.num_attention_heads // ranks) * c.head_dim
    kv = max(1, -(-c.num_key_value_heads // ranks)) * c.head_dim
    blocks = c.indexer_budget // c.indexer_compress_ratio
    yield Temporary("queries and gates", 2 * width * a, SPARSE_IN, SPARSE_OUT)
    yield Temporary("new keys and values", 2 * kv * a, SPARSE_IN, ATTEND)
    index = (c.indexer_n_heads + 1) * c.indexer_head_dim
    yield Temporary("index queries and key", index * a, SPARSE_IN, SELECT)
    yield Temporary("best blocks so far, scores and ids", 2 * blocks * 8, SELECT, SELECT)
    yield Temporary("chosen blocks", blocks * 4, SELECT, ATTEND)
    yield Temporary("attention output", width * a, ATTEND, SPARSE_OUT)
