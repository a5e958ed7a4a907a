"""The rules that every configuration must satisfy, whichever file it came from (spec section 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from reprlib import repr as brief
from typing import Any

from nextfit.config import ModelConfig
from nextfit.errors import ConfigError

# Sizes are products of these fields: a bound on each keeps every later loop and number finite.
_LARGEST = 2**31 - 1
_AT_LEAST_ONE = {
    "hidden_size": 1 << 20,
    "num_hidden_layers": 4096,
    "vocab_size": _LARGEST,
    "max_position_embeddings": _LARGEST,
    "num_attention_heads": 1 << 16,
    "num_key_value_heads": 1 << 16,
    "head_dim": 1 << 16,
    "rotary_dim": 1 << 16,
    "indexer_n_heads": 1 << 16,
    "indexer_head_dim": 1 << 16,
    "indexer_budget": _LARGEST,
    "indexer_compress_ratio": 1 << 16,
    "linear_num_key_heads": 1 << 16,
    "linear_num_value_heads": 1 << 16,
    "linear_key_head_dim": 1 << 16,
    "linear_value_head_dim": 1 << 16,
    "linear_conv_kernel_dim": 1024,
    "num_experts": 1 << 16,
    "num_experts_per_tok": 1 << 16,
    "moe_intermediate_size": 1 << 20,
    "shared_expert_intermediate_size": 1 << 20,
    "hc_lowrank": 1 << 20,
    "ple_embed_dim": 1 << 20,
    "ple_conv_kernel_size": 1024,
    "heads_per_ngram": 256,
    "ngram_vocab_size_base": _LARGEST,
    "make_ngram_vocab_size_divisible_by": _LARGEST,
    "split_ngram_parts": _LARGEST,
}
DTYPES = ("bfloat16", "float16", "float32", "float64")


def refuse(file: str, field: str, found: object, expected: str) -> ConfigError:
    """The one form of a configuration error."""
    return ConfigError(f"{file}: {field} is {brief(found)}, expected {expected}")


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ranges(c: ModelConfig, file: str) -> None:
    bounds = {name: (1, high) for name, high in _AT_LEAST_ONE.items()}
    bounds |= {
        "hc_count": (2, 64),
        "ngram_size": (2, 16),
        "seed": (0, 2**63 - 1),
        "mtp_num_hidden_layers": (0, 1),
        "eos_token_id": (0, c.vocab_size - 1 if is_integer(c.vocab_size) else _LARGEST),
    }
    for name, (low, high) in bounds.items():
        value = getattr(c, name)
        if not is_integer(value) or not low <= value <= high:
            raise refuse(file, name, value, f"an integer from {low} to {high}")
    for name in ("rms_norm_eps", "rope_theta"):
        value = getattr(c, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise refuse(file, name, value, "a positive number")
    for name in ("value_heads_tiled", "norm_topk_prob", "tie_word_embeddings"):
        if not isinstance(getattr(c, name), bool):
            raise refuse(file, name, getattr(c, name), "true or false")


def _choices(c: ModelConfig, file: str) -> None:
    if c.output_gate_type not in ("sigmoid", "silu"):
        raise refuse(file, "output_gate_type", c.output_gate_type, "sigmoid or silu")
    if c.dtype not in DTYPES:
        raise refuse(file, "dtype", c.dtype, "one of " + ", ".join(DTYPES))


def _layers(c: ModelConfig, file: str) -> None:
    if len(c.layer_types) != c.num_hidden_layers:
        expected = f"one entry for each of num_hidden_layers={c.num_hidden_layers}"
        raise refuse(file, "layer_types", f"a list of {len(c.layer_types)}", expected)
    for i, kind in enumerate(c.layer_types):
        if kind not in ("linear_attention", "full_attention"):
            raise refuse(file, f"layer_types[{i}]", kind, "linear_attention or full_attention")
    if list(c.ple_layers) != sorted(set(c.ple_layers)):
        raise refuse(file, "ple_layer_ids", [i + 1 for i in c.ple_layers], "different layers in rising order")
    for i in c.ple_layers:
        if not is_integer(i) or not 0 <= i < c.num_hidden_layers:
            raise refuse(file, "ple_layer_ids", i + 1, f"layer numbers from 1 to {c.num_hidden_layers}")
        if c.layer_types[i] != "linear_attention":
            raise refuse(
                file,
                "ple_layer_ids",
                i + 1,
                f"linear_attention layers only (layer {i + 1} is {c.layer_types[i]})",
            )


def _divides(c: ModelConfig, file: str, whole: str, part: str) -> None:
    value, unit = getattr(c, whole), getattr(c, part)
    if value % unit:
        raise refuse(file, whole, value, f"a multiple of {part}={unit}")


def _relations(c: ModelConfig, file: str) -> None:
    _divides(c, file, "num_attention_heads", "num_key_value_heads")
    _divides(c, file, "linear_num_value_heads", "linear_num_key_heads")
    _divides(c, file, "indexer_budget", "indexer_compress_ratio")
    if c.num_experts_per_tok > c.num_experts:
        raise refuse(
            file, "num_experts_per_tok", c.num_experts_per_tok, f"at most num_experts={c.num_experts}"
        )
    if c.rotary_dim % 2:
        raise refuse(file, "rotary_dim", c.rotary_dim, "an even number of rotary dimensions")
    for limit in ("head_dim", "indexer_head_dim"):
        if c.rotary_dim > getattr(c, limit):
            raise refuse(file, "rotary_dim", c.rotary_dim, f"at most {limit}={getattr(c, limit)}")
    if c.ple_layers and c.ple_embed_dim % c.ngram_heads:
        heads = f"(ngram_size - 1) * heads_per_ngram = {c.ngram_heads}"
        raise refuse(file, "ple_embed_dim", c.ple_embed_dim, f"a multiple of {heads}")


_RULES: Sequence[Callable[[ModelConfig, str], None]] = (_ranges, _choices, _layers, _relations)


def validate(config: ModelConfig, file: Any) -> ModelConfig:
    """`config` itself if it is usable. Raises ConfigError naming `file`, the field, found and expected."""
    for rule in _RULES:
        rule(config, str(file))
    return config
