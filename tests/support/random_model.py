"""Small random models under the released tensor names, scaled so that every branch matters to the logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nextfit.checkpoint.names import Kind, Slot, draft_slots, trunk_slots
from nextfit.config import ModelConfig

SMALL = dict(
    hidden_size=64,
    num_hidden_layers=8,
    vocab_size=320,
    max_position_embeddings=4096,
    rms_norm_eps=1e-6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rotary_dim=8,
    rope_theta=1e7,
    indexer_n_heads=2,
    indexer_head_dim=16,
    indexer_budget=16,
    indexer_compress_ratio=4,
    linear_num_key_heads=2,
    linear_num_value_heads=6,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    linear_conv_kernel_dim=4,
    output_gate_type="sigmoid",
    value_heads_tiled=False,
    num_experts=16,
    num_experts_per_tok=3,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
    norm_topk_prob=True,
    hc_count=4,
    hc_lowrank=16,
    ple_layers=(1,),
    ple_embed_dim=64,
    ple_conv_kernel_size=4,
    ngram_size=3,
    heads_per_ngram=4,
    ngram_vocab_size_base=101,
    make_ngram_vocab_size_divisible_by=128,
    split_ngram_parts=4,
    seed=1234,
    eos_token_id=304,
    mtp_num_hidden_layers=1,
    tie_word_embeddings=False,
    dtype="float32",
)


def small_config(**changes: object) -> ModelConfig:
    """A model of 8 layers (two sparse ones) with a sparse budget of 16 tokens; `changes` override fields."""
    values = {**SMALL, **changes}
    n = int(values["num_hidden_layers"])  # type: ignore[call-overload]
    values.setdefault(
        "layer_types", tuple("full_attention" if i % 4 == 3 else "linear_attention" for i in range(n))
    )
    return ModelConfig(**values)  # type: ignore[arg-type]


def _values(slot: Slot, part: str, shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=g, dtype=torch.float32)
    match slot.kind:
        case Kind.DECAY:
            return torch.log(torch.rand(shape, generator=g) * 3 + 0.02)  # A_log
        case Kind.VECTOR:
            return noise * 0.5 - 2 if part.endswith("dt_bias") else noise * 0.1 + 1
        case Kind.GAIN:
            return noise * 0.1  # stored as w, used as 1 + w
        case Kind.CONV:
            return noise * 0.5
        case Kind.TABLE:
            return noise
    if part in ("embed_tokens.weight", "lm_head.weight"):
        return noise if part.startswith("embed") else noise / math.sqrt(shape[-1])
    return noise * (1.5 if part.endswith("mlp.gate.weight") else 1) / math.sqrt(shape[-1])


def random_parts(c: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Part name -> float32 values as the released checkpoint stores them (w not 1 + w, A_log), fused shapes.

    The n-gram table is one tensor; expert projections are [experts, rows, columns] each.
    """
    g = torch.Generator().manual_seed(seed)
    out = {}
    slots = [*trunk_slots(c), *(draft_slots(c) if c.mtp_num_hidden_layers else ())]
    for slot in slots:
        for part in slot.parts:
            axis = len(slot.shape) - 2 if slot.kind in (Kind.MATRIX, Kind.EXPERTS) else 0
            shape = (*slot.shape[:axis], part.rows, *slot.shape[axis + 1 :])
            out[part.name] = _values(slot, part.name, shape, g)
    return out


def resident_weights(
    c: ModelConfig, parts: dict[str, Tensor], dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Slot name -> resident weight, as the loader would make them from `parts` (see `random_parts`)."""
    out = {}
    for slot in [*trunk_slots(c), *(draft_slots(c) if c.mtp_num_hidden_layers else ())]:
        axis = len(slot.shape) - 2 if slot.kind in (Kind.MATRIX, Kind.EXPERTS) else 0
        x = torch.cat([parts[p.name] for p in slot.parts], axis)
        if slot.kind is Kind.GAIN:
            x = 1 + x
        elif slot.kind is Kind.DECAY:
            x = -x.exp()
        wide = torch.promote_types(dtype, torch.float32)
        out[slot.name] = x.to(dtype if slot.kind in (Kind.MATRIX, Kind.EXPERTS, Kind.TABLE) else wide)
    return out


def random_weights(c: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Slot name -> resident weight of `random_parts`."""
    return resident_weights(c, random_parts(c, seed), dtype)
