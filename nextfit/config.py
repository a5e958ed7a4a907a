"""The model's configuration: one frozen value, merged and validated once.

Field names are those of the released `config.json` where it has one. Values that real files leave
out get their default in `config_hf` (spec section 1), and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LayerType = Literal["linear_attention", "full_attention"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Qwen3.8-Flash-Next text model (`qwen4_exp`)."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    max_position_embeddings: int
    layer_types: tuple[LayerType, ...]
    rms_norm_eps: float
    # sparse attention (QSA)
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    indexer_n_heads: int
    indexer_head_dim: int
    indexer_budget: int  # tokens
    indexer_compress_ratio: int  # tokens per block
    # gated delta net
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    output_gate_type: Literal["sigmoid", "silu"]
    value_heads_tiled: bool  # GGUF: value head v reads key head v % n_k; otherwise v // (n_v / n_k)
    # experts
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    norm_topk_prob: bool
    # hyper-connections
    hc_count: int
    hc_lowrank: int
    # hashed n-gram embedding (PLE)
    ple_layers: tuple[int, ...]  # 0-based; config.json's ple_layer_ids are 1-based
    ple_embed_dim: int
    ple_conv_kernel_size: int
    ngram_size: int
    heads_per_ngram: int
    ngram_vocab_size_base: int
    make_ngram_vocab_size_divisible_by: int
    split_ngram_parts: int
    seed: int
    eos_token_id: int  # n-gram boundary; not the chat stop token
    # draft head
    mtp_num_hidden_layers: int
    tie_word_embeddings: bool
    dtype: str  # "bfloat16", ...: the activation dtype the model was trained in

    @property
    def ngram_heads(self) -> int:
        """Hash heads of one n-gram layer: `heads_per_ngram` for each n of 2..ngram_size."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def ngram_head_dim(self) -> int:
        """Values per table row."""
        return self.ple_embed_dim // self.ngram_heads

    @staticmethod
    def from_hf(raw: Mapping[str, Any], file: str | Path) -> ModelConfig:
        """The checked configuration of a `config.json`'s object; `file` names it in errors.

        Raises ConfigError naming file, field, what was found and what was expected.
        """
        from nextfit.config_hf import model_config

        return model_config(raw, str(file))


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling settings that a checkpoint recommends; what it leaves out has the neutral value."""

    eos_token_ids: tuple[int, ...]  # every one of them ends an answer
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @staticmethod
    def from_hf(raw: Mapping[str, Any], file: str | Path, config: ModelConfig) -> GenerationDefaults:
        """The checked settings of a `generation_config.json`'s object (an empty one if there is no file).

        The n-gram boundary token ends an answer too, whether or not the file lists it.
        """
        from nextfit.config_hf import generation_defaults

        return generation_defaults(raw, str(file), config)
