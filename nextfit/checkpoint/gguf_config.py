"""ModelConfig from the metadata of a GGUF file (spec/gguf.md section 1).

What the format does not carry has one possible value: the output gate is sigmoid, the chosen experts'
weights are normalised, value heads are tiled over key heads, and the hash seed is the released one.
"""

from __future__ import annotations

import struct
from collections.abc import Set
from pathlib import Path
from typing import Any

from nextfit.checkpoint.gguf_header import Metadata
from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.config import GenerationDefaults, LayerType, ModelConfig
from nextfit.config_rules import is_integer, refuse, validate
from nextfit.errors import ConfigError

ARCHITECTURE = "qwen4exp"
_SEED = 1234
_TABLE_ROWS_MULTIPLE = 128
_RELEASED_RATIO = 4  # tokens per block, for files whose converter lost it


class Fields:
    """Typed reading of `qwen4exp.*` metadata; errors name the file, the key, what was found and expected."""

    def __init__(self, metadata: Metadata, file: Path) -> None:
        self.metadata = metadata
        self.file = file

    def has(self, key: str) -> bool:
        return f"{ARCHITECTURE}.{key}" in self.metadata

    def error(self, key: str, expected: str) -> ConfigError:
        return refuse(str(self.file), f"{ARCHITECTURE}.{key}", self._get(key), expected)

    def _get(self, key: str) -> Any:
        if not self.has(key):
            raise ConfigError(f"{self.file}: the metadata key {ARCHITECTURE}.{key} is missing")
        return self.metadata[f"{ARCHITECTURE}.{key}"]

    def integer(self, key: str) -> int:
        value = self._get(key)
        if not is_integer(value) or value < 0:
            raise self.error(key, "an integer that is not negative")
        return int(value)

    def number(self, key: str) -> float:
        value = self._get(key)
        if not isinstance(value, float):
            raise self.error(key, "a float")
        return _shortest(value)

    def integers(self, key: str, length: int | None = None) -> list[int]:
        value = self._get(key)
        right = isinstance(value, list) and all(is_integer(x) for x in value)
        if not right or length not in (None, len(value)):
            raise self.error(key, f"a list of {'' if length is None else f'{length} '}integers")
        return list(value)


def _shortest(value: float) -> float:
    """The shortest decimal that rounds to this float32: 1e-06 for what a file holds as 9.99999997e-07."""
    for digits in range(1, 9):
        short = float(f"{value:.{digits}g}")
        if abs(short) < 3.4e38 and struct.pack("<f", short) == struct.pack("<f", value):
            return short
    return value


def trunk_layers(fields: Fields) -> tuple[int, int]:
    """Number of trunk layers, and of draft (MTP) layers that the metadata announce."""
    blocks = fields.integer("block_count")
    draft = fields.integer("nextn_predict_layers") if fields.has("nextn_predict_layers") else 0
    if draft > 1:
        raise fields.error("nextn_predict_layers", "0 or 1")
    if not draft < blocks <= 4096:
        raise fields.error("block_count", f"{draft + 1} to 4096")
    return blocks - draft, draft


def _layer_types(fields: Fields, trunk: int, draft: int) -> tuple[LayerType, ...]:
    key = "attention.recurrent_layers"
    if fields.has(key):
        flags = fields.metadata[f"{ARCHITECTURE}.{key}"]
        right = isinstance(flags, list) and len(flags) == trunk + draft
        if not right or not all(isinstance(x, bool) for x in flags):
            raise fields.error(key, f"a list of {trunk + draft} booleans")
        linear = flags[:trunk]
    else:
        interval = fields.integer("full_attention_interval")
        if not interval:
            raise fields.error("full_attention_interval", "at least 1")
        linear = [(i + 1) % interval != 0 for i in range(trunk)]
    return tuple("linear_attention" if x else "full_attention" for x in linear)


def _compress_ratio(
    fields: Fields, layers: tuple[LayerType, ...], draft: int, names: Set[str]
) -> tuple[int, str | None]:
    """Tokens per index block, and a warning if the file lost it.

    Some converters wrote 0 (dense attention) for every layer although the indexer is there; such a file
    gets the released ratio. The draft layer's entry is 0 in files of earlier converters.
    """
    key = "attention.compress_ratios"
    ratios = fields.integers(key, len(layers) + draft)
    full = {ratios[i] for i, kind in enumerate(layers) if kind == "full_attention"}
    if any(ratios[i] for i, kind in enumerate(layers) if kind == "linear_attention"):
        raise fields.error(key, "0 for every linear attention layer")
    if len(full) > 1:
        raise fields.error(key, "the same ratio for every full attention layer")
    ratio, warning = full.pop() if full else 0, None
    if not ratio:
        for i, kind in enumerate(layers):
            if kind == "full_attention" and f"blk.{i}.indexer.q_proj.weight" not in names:
                raise fields.error(key, f"a ratio, or indexer tensors in full attention layer {i}")
        ratio = _RELEASED_RATIO
        warning = (
            f"{fields.file}: {ARCHITECTURE}.{key} is 0 for every full attention layer although the indexer "
            f"is there (a converter's error); {ratio} tokens per block are used"
        )
    if ratios[len(layers) :] not in ([], [0], [ratio]):
        raise fields.error(key, f"0 or {ratio} for the draft layer")
    return ratio, warning


def _ngram(fields: Fields) -> dict[str, Any]:
    """Fields of the n-gram layer."""
    layers = fields.integers("ple.layers")
    if len(layers) != 1:
        raise fields.error("ple.layers", "one layer: the metadata hold the hash constants of one")
    size, per = fields.integer("ple.ngram_size"), fields.integer("ple.heads_per_ngram")
    heads = (size - 1) * per
    sizes = fields.integers("ple.head_vocab_sizes")
    if not heads or len(sizes) != heads:
        raise fields.error(
            "ple.head_vocab_sizes",
            f"one entry for each of (ngram_size - 1) * heads_per_ngram = {heads} heads",
        )
    return dict(
        ple_layers=tuple(layers),
        ple_embed_dim=fields.integer("embedding_length_per_layer_input") * heads,
        ple_conv_kernel_size=fields.integer("ple.conv_kernel"),
        ngram_size=size,
        heads_per_ngram=per,
        ngram_vocab_size_base=sizes[0],
        make_ngram_vocab_size_divisible_by=_TABLE_ROWS_MULTIPLE,
        split_ngram_parts=1,
        seed=_SEED,
        eos_token_id=fields.integer("ple.eos_token_id"),
    )


def _attention(fields: Fields) -> dict[str, Any]:
    if fields.has("rope.scaling.type") and fields.metadata[f"{ARCHITECTURE}.rope.scaling.type"] != "none":
        raise fields.error("rope.scaling.type", "none: position scaling is not supported")
    head = fields.integer("attention.key_length")
    if fields.integer("attention.value_length") != head:
        raise fields.error("attention.value_length", f"attention.key_length={head}")
    return dict(
        num_attention_heads=fields.integer("attention.head_count"),
        num_key_value_heads=fields.integer("attention.head_count_kv"),
        head_dim=head,
        rotary_dim=fields.integer("rope.dimension_count"),
        rope_theta=fields.number("rope.freq_base"),
        indexer_n_heads=fields.integer("attention.indexer.head_count"),
        indexer_head_dim=fields.integer("attention.indexer.key_length"),
        indexer_budget=fields.integer("attention.indexer.top_k"),
    )


def _delta_net(fields: Fields) -> dict[str, Any]:
    heads, inner = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
    if not heads or inner % heads:
        raise fields.error("ssm.inner_size", f"a multiple of ssm.time_step_rank={heads}")
    return dict(
        linear_num_key_heads=fields.integer("ssm.group_count"),
        linear_num_value_heads=heads,
        linear_key_head_dim=fields.integer("ssm.state_size"),
        linear_value_head_dim=inner // heads,
        linear_conv_kernel_dim=fields.integer("ssm.conv_kernel"),
        output_gate_type="sigmoid",
        value_heads_tiled=True,
    )


def _check_hash(config: ModelConfig, fields: Fields) -> None:
    h = ngram_hash(config, config.ple_layers[0])
    for key, derived in (
        ("ple.layer_multipliers", h.multipliers),
        ("ple.head_vocab_sizes", h.sizes),
        ("ple.head_offsets", h.offsets),
    ):
        if tuple(fields.integers(key)) != derived:
            why = f"derived for seed {_SEED} and {config.vocab_size} tokens"
            raise fields.error(key, f"{list(derived)}, {why}")


def model_config(
    fields: Fields, names: Set[str], vocab_size: int, draft: bool
) -> tuple[ModelConfig, list[str]]:
    """The checked configuration and warnings about the file.

    `names`: tensors of the file; `vocab_size`: rows of its embedding; `draft`: a draft head is there.
    Raises ConfigError.
    """
    trunk, announced = trunk_layers(fields)
    layers = _layer_types(fields, trunk, announced)
    ratio, warning = _compress_ratio(fields, layers, announced, names)
    config = ModelConfig(
        hidden_size=fields.integer("embedding_length"),
        num_hidden_layers=trunk,
        vocab_size=vocab_size,
        max_position_embeddings=fields.integer("context_length"),
        layer_types=layers,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        indexer_compress_ratio=ratio,
        num_experts=fields.integer("expert_count"),
        num_experts_per_tok=fields.integer("expert_used_count"),
        moe_intermediate_size=fields.integer("expert_feed_forward_length"),
        shared_expert_intermediate_size=fields.integer("expert_shared_feed_forward_length"),
        norm_topk_prob=True,
        hc_count=fields.integer("hyper_connection.count"),
        hc_lowrank=fields.integer("hyper_connection.low_rank"),
        mtp_num_hidden_layers=int(draft),
        tie_word_embeddings="output.weight" not in names,
        dtype="bfloat16",
        **_attention(fields),
        **_delta_net(fields),
        **_ngram(fields),
    )
    validate(config, fields.file)
    _check_hash(config, fields)
    return config, [warning] if warning else []


def generation_defaults(fields: Fields, config: ModelConfig) -> GenerationDefaults:
    """Sampling settings and the end tokens: the tokenizer's, and the n-gram boundary.

    Raises ConfigError.
    """
    raw: dict[str, Any] = {}
    for key, ours in (
        ("tokenizer.ggml.eos_token_id", "eos_token_id"),
        ("general.sampling.temp", "temperature"),
        ("general.sampling.top_p", "top_p"),
        ("general.sampling.top_k", "top_k"),
    ):
        if key in fields.metadata:
            value = fields.metadata[key]
            raw[ours] = _shortest(value) if isinstance(value, float) else value
    return GenerationDefaults.from_hf(raw, fields.file, config)
