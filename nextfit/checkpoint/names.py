"""The tensors a model consists of: what must be in a checkpoint, and where each part of it comes to lie.

A `Slot` is one resident weight that the model reads. A slot made of several `Part`s is a stack of
output rows that share their input (q, k, v ...), so one product serves them all. Part names are those
of the released checkpoint without its prefix (spec/model.md section 8); readers of other formats
translate to them. No torch here: the audit, the planner and `inspect` read this table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.config import ModelConfig


class Kind(Enum):
    MATRIX = "matrix"  # [rows, columns] in the file's own type
    EXPERTS = "experts"  # [experts, rows, columns] in the file's own type
    GAIN = "gain"  # RMSNorm factor 1 + w, float32
    VECTOR = "vector"  # plain values, float32
    DECAY = "decay"  # -exp(A_log), float32
    CONV = "conv"  # depthwise taps [channels, taps], float32, the last tap is the current token
    TABLE = "table"  # n-gram rows, mapped from the file and never copied


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    rows: int  # of the slot's second last axis (MATRIX, EXPERTS) or first axis (others)


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    kind: Kind
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


def _single(name: str, kind: Kind, shape: tuple[int, ...], part: str) -> Slot:
    rows = shape[-2] if kind in (Kind.MATRIX, Kind.EXPERTS) else shape[0]
    return Slot(name, kind, shape, (Part(part, rows),))


def _stack(name: str, kind: Kind, lead: tuple[int, ...], columns: int, *parts: tuple[str, int]) -> Slot:
    rows = sum(n for _, n in parts)
    return Slot(name, kind, (*lead, rows, columns), tuple(Part(p, n) for p, n in parts))


def _hyper(c: ModelConfig, name: str, source: str, inject: bool) -> Iterator[Slot]:
    wide = c.hc_count * c.hidden_size
    yield _single(f"{name}.norm", Kind.GAIN, (wide,), f"{source}.hc_norm.weight")
    down = [(f"{source}.input_mix_weight_down.weight", c.hc_lowrank)]
    if inject:
        down.append((f"{source}.block_inject_weight.weight", c.hc_count))
    yield _stack(f"{name}.down", Kind.MATRIX, (), wide, *down)
    yield _single(f"{name}.up", Kind.MATRIX, (wide, c.hc_lowrank), f"{source}.input_mix_weight_up.weight")


def _linear_attention(c: ModelConfig, p: str) -> Iterator[Slot]:
    heads, width = c.linear_num_value_heads, c.linear_num_value_heads * c.linear_value_head_dim
    qkv = 2 * c.linear_num_key_heads * c.linear_key_head_dim + width
    a = f"{p}linear_attn"
    yield _stack(
        f"{a}.in_proj",
        Kind.MATRIX,
        (),
        c.hidden_size,
        (f"{a}.in_proj_qkv.weight", qkv),
        (f"{a}.in_proj_z.weight", width),
        (f"{a}.in_proj_b.weight", heads),
        (f"{a}.in_proj_a.weight", heads),
    )
    yield _single(f"{a}.conv", Kind.CONV, (qkv, c.linear_conv_kernel_dim), f"{a}.conv1d.weight")
    yield _single(f"{a}.decay", Kind.DECAY, (heads,), f"{a}.A_log")
    yield _single(f"{a}.dt_bias", Kind.VECTOR, (heads,), f"{a}.dt_bias")
    yield _single(f"{a}.norm", Kind.VECTOR, (c.linear_value_head_dim,), f"{a}.norm.weight")
    yield _single(f"{a}.out_proj", Kind.MATRIX, (c.hidden_size, width), f"{a}.out_proj.weight")


def _sparse_attention(c: ModelConfig, p: str) -> Iterator[Slot]:
    a = f"{p}self_attn"
    kv = c.num_key_value_heads * c.head_dim
    yield _stack(
        f"{a}.in_proj",
        Kind.MATRIX,
        (),
        c.hidden_size,
        (f"{a}.q_proj.weight", 2 * c.num_attention_heads * c.head_dim),
        (f"{a}.k_proj.weight", kv),
        (f"{a}.v_proj.weight", kv),
        (f"{a}.indexer.index_qk_proj.weight", (c.indexer_n_heads + 1) * c.indexer_head_dim),
    )
    for name, source, width in (
        ("q_norm", "q_norm", c.head_dim),
        ("k_norm", "k_norm", c.head_dim),
        ("index_q_norm", "indexer.q_layernorm", c.indexer_head_dim),
        ("index_k_norm", "indexer.k_layernorm", c.indexer_head_dim),
    ):
        yield _single(f"{a}.{name}", Kind.GAIN, (width,), f"{a}.{source}.weight")
    width = c.num_attention_heads * c.head_dim
    yield _single(f"{a}.o_proj", Kind.MATRIX, (c.hidden_size, width), f"{a}.o_proj.weight")


def _experts(c: ModelConfig, p: str) -> Iterator[Slot]:
    m, f, s = f"{p}mlp", c.moe_intermediate_size, c.shared_expert_intermediate_size
    yield _stack(
        f"{m}.in_proj",
        Kind.MATRIX,
        (),
        c.hidden_size,
        (f"{m}.gate.weight", c.num_experts),
        (f"{m}.shared_expert_gate.weight", 1),
        (f"{m}.shared_expert.gate_proj.weight", s),
        (f"{m}.shared_expert.up_proj.weight", s),
    )
    down = f"{m}.shared_expert.down_proj.weight"
    yield _single(f"{m}.shared_down", Kind.MATRIX, (c.hidden_size, s), down)
    yield _stack(
        f"{m}.experts.gate_up",
        Kind.EXPERTS,
        (c.num_experts,),
        c.hidden_size,
        (f"{m}.experts.gate_proj", f),
        (f"{m}.experts.up_proj", f),
    )
    shape = (c.num_experts, c.hidden_size, f)
    yield _single(f"{m}.experts.down", Kind.EXPERTS, shape, f"{m}.experts.down_proj")


def _ngram(c: ModelConfig, p: str, layer: int) -> Iterator[Slot]:
    e, wide = f"{p}ple", c.hc_count * c.hidden_size
    yield _stack(
        f"{e}.key_value",
        Kind.MATRIX,
        (),
        c.ple_embed_dim,
        (f"{e}.key_proj.weight", wide),
        (f"{e}.value_proj.weight", c.hidden_size),
    )
    for name in ("norm_key", "norm_query", "norm_conv"):
        yield _single(f"{e}.{name}", Kind.GAIN, (wide,), f"{e}.{name}.weight")
    yield _single(f"{e}.conv", Kind.CONV, (wide, c.ple_conv_kernel_size), f"{e}.conv1d.weight")
    table = f"{e}.ple_embedding.ngram_embedding"
    rows = ngram_hash(c, layer).rows
    yield _single(f"{e}.table", Kind.TABLE, (rows, c.ngram_head_dim), table)


def _layer(c: ModelConfig, p: str, linear: bool, ngram: int | None = None) -> Iterator[Slot]:
    if ngram is not None:
        yield from _ngram(c, p, ngram)
    yield from _hyper(c, f"{p}attn_hyper", f"{p}attn_hyper_connection", inject=True)
    yield from _linear_attention(c, p) if linear else _sparse_attention(c, p)
    yield from _hyper(c, f"{p}mlp_hyper", f"{p}mlp_hyper_connection", inject=True)
    yield from _experts(c, p)


def trunk_slots(c: ModelConfig) -> Iterator[Slot]:
    """Slots of the model itself, in the order a forward pass reads them."""
    shape = (c.vocab_size, c.hidden_size)
    yield _single("embed_tokens", Kind.MATRIX, shape, "embed_tokens.weight")
    for i, kind in enumerate(c.layer_types):
        yield from _layer(c, f"layers.{i}.", kind == "linear_attention", i if i in c.ple_layers else None)
    yield from _hyper(c, "mixer", "hyper_connection_mixer", inject=False)
    if not c.tie_word_embeddings:
        yield _single("lm_head", Kind.MATRIX, shape, "lm_head.weight")


def draft_slots(c: ModelConfig) -> Iterator[Slot]:
    """Slots of the MTP draft head; it shares `embed_tokens` and `lm_head` with the trunk."""
    d, wide = c.hidden_size, c.hc_count * c.hidden_size
    yield _single("mtp.fc_embedding", Kind.MATRIX, (d, d), "mtp.fc_embedding.weight")
    yield _single("mtp.fc_hidden", Kind.MATRIX, (d, d), "mtp.fc_hidden.weight")
    yield _single("mtp.norm_embedding", Kind.GAIN, (d,), "mtp.pre_fc_norm_embedding.weight")
    yield _single("mtp.norm_hidden", Kind.GAIN, (wide,), "mtp.pre_fc_norm_hidden.weight")
    yield from _layer(c, "mtp.layers.0.", linear=False)
    yield from _hyper(c, "mtp.mixer", "mtp.hyper_connection_mixer", inject=False)
