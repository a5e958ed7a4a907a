"""`config.json` and `generation_config.json` as the released checkpoints and transformers write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from nextfit.config import GenerationDefaults, LayerType, ModelConfig
from nextfit.config_rules import DTYPES, is_integer, refuse, validate
from nextfit.errors import ConfigError

ARCHITECTURES = ("Qwen4ExpForConditionalGeneration", "Qwen4ExpForCausalLM")
_ABSENT: Any = object()
_ALIASES: dict[str, LayerType] = {
    "linear_attention": "linear_attention",
    "full_attention": "full_attention",
    "indexed_attention": "full_attention",  # transformers' own name for it
}
# transformers leaves out of a nested config what equals the class's own value
_SIZES = {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "vocab_size": 248320,
    "max_position_embeddings": 32768,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "hc_count": 4,
    "hc_lowrank": 320,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 512,
    "seed": 1234,
}
_INDEXER = ("indexer_n_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio")


@dataclass(frozen=True, slots=True)
class Fields:
    """Typed reading of one JSON object; null counts as absent, as in transformers."""

    raw: Mapping[str, Any]
    file: str
    prefix: str = ""

    def get(self, name: str, default: Any = _ABSENT, expected: str = "a value") -> Any:
        value = self.raw.get(name)
        if value is not None:
            return value
        if default is _ABSENT:
            raise ConfigError(f"{self.file}: {self.prefix}{name} is missing, expected {expected}")
        return default

    def refuse(self, name: str, found: object, expected: str) -> ConfigError:
        return refuse(self.file, self.prefix + name, found, expected)

    def integer(self, name: str, default: Any = _ABSENT) -> int:
        value = self.get(name, default, "an integer")
        if not is_integer(value):
            raise self.refuse(name, value, "an integer")
        return int(value)

    def number(self, name: str, default: Any = _ABSENT) -> float:
        value = self.get(name, default, "a number")
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.refuse(name, value, "a finite number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, value, "true or false")
        return value

    def object(self, name: str) -> Fields:
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self.refuse(name, value, "an object")
        return Fields(value, self.file, f"{self.prefix}{name}.")

    def integers(self, name: str, default: Any = _ABSENT) -> list[int]:
        """A list of integers, or one integer for a list of one."""
        value = self.get(name, default, "an integer or a list of integers")
        values = value if isinstance(value, list) else [value]
        if not all(is_integer(v) for v in values):
            raise self.refuse(name, value, "an integer or a list of integers")
        return [int(v) for v in values]


def _text_fields(top: Fields) -> Fields:
    """The object that describes the text model, after checking that it is of the right family."""
    kind = top.get("model_type", "", "qwen4_exp")
    names = top.get("architectures", [])
    if not isinstance(names, list) or (names and not any(n in ARCHITECTURES for n in names)):
        raise top.refuse("architectures", names, "one of " + ", ".join(ARCHITECTURES))
    if kind not in ("qwen4_exp", "qwen4_exp_text"):
        raise top.refuse("model_type", kind, "qwen4_exp or qwen4_exp_text")
    if kind == "qwen4_exp_text" or ("Qwen4ExpForCausalLM" in names and "text_config" not in top.raw):
        return top
    top.get("text_config", expected="an object that describes the text model")
    text = top.object("text_config")
    if text.get("model_type", "qwen4_exp_text") not in ("qwen4_exp_text", "qwen4_exp"):
        raise text.refuse("model_type", text.raw["model_type"], "qwen4_exp_text")
    return text


def _rope(t: Fields, head_dim: int) -> tuple[float, int]:
    """Base and rotary dimensions, from `rope_scaling` (older) or `rope_parameters`, else top-level fields."""
    name = "rope_scaling" if t.get("rope_scaling", None) else "rope_parameters"
    rope = t.object(name)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise rope.refuse("rope_type", kind, "default (no other kind of rotary scaling is supported)")
    theta = rope.number("rope_theta", t.number("rope_theta", 10_000.0))
    factor = rope.number("partial_rotary_factor", t.number("partial_rotary_factor", 1.0))
    if not 0 < factor <= 1:
        raise rope.refuse("partial_rotary_factor", factor, "more than 0 and at most 1")
    return theta, int(head_dim * factor)


def _layer_types(t: Fields, layers: int) -> tuple[LayerType, ...]:
    listed = t.get("layer_types", None)
    if listed is None:
        interval = t.integer("full_attention_interval", 4)
        if interval < 1:
            raise t.refuse("full_attention_interval", interval, "at least 1")
        if not 1 <= layers <= 4096:
            raise t.refuse("num_hidden_layers", layers, "an integer from 1 to 4096")
        return tuple("linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers))
    if not isinstance(listed, list):
        raise t.refuse("layer_types", listed, "a list of layer types")
    for i, kind in enumerate(listed):
        if not isinstance(kind, str) or kind not in _ALIASES:
            raise t.refuse(f"layer_types[{i}]", kind, "one of " + ", ".join(_ALIASES))
    return tuple(_ALIASES[kind] for kind in listed)


def _check_fixed(t: Fields) -> None:
    """Values that the model's arithmetic takes for granted."""
    if t.get("hidden_act", "silu") != "silu":
        raise t.refuse("hidden_act", t.raw["hidden_act"], "silu")
    if t.flag("attention_bias", False):
        raise t.refuse("attention_bias", True, "false (the model has no biases)")
    if t.integer("indexer_kv_heads") != 1:
        raise t.refuse("indexer_kv_heads", t.raw["indexer_kv_heads"], "1")
    if t.flag("mtp_use_dedicated_embeddings", False):
        raise t.refuse("mtp_use_dedicated_embeddings", True, "false (the draft head shares the embedding)")


def _draft(t: Fields, theta: float) -> int:
    """Layers of the draft head; 1 unless the file says otherwise, then the tensors decide."""
    mtp = t.object("mtp")
    layers = t.integer("mtp_num_hidden_layers", mtp.integer("num_hidden_layers", 1))
    if mtp.number("rope_theta", theta) != theta:
        raise mtp.refuse("rope_theta", mtp.raw["rope_theta"], f"the model's own rope_theta={theta}")
    kinds = mtp.get("layer_types", ["full_attention"])
    if not isinstance(kinds, list) or any(k not in ("full_attention", "indexed_attention") for k in kinds):
        raise mtp.refuse("layer_types", kinds, "full_attention only")
    return layers


def _dtype(top: Fields, text: Fields) -> str:
    for fields in (text, top):
        for name in ("dtype", "torch_dtype"):
            value = fields.get(name, None)
            if value is not None:
                if not isinstance(value, str) or value not in DTYPES:
                    raise fields.refuse(name, value, "one of " + ", ".join(DTYPES))
                return value
    return "bfloat16"


def model_config(raw: Mapping[str, Any], file: str) -> ModelConfig:
    """See `ModelConfig.from_hf`."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{file}: the file holds {type(raw).__name__}, expected an object")
    top = Fields(raw, file)
    t = _text_fields(top)
    _check_fixed(t)
    sizes = {name: t.integer(name, default) for name, default in _SIZES.items()}
    sizes |= {name: t.integer(name) for name in _INDEXER}
    theta, rotary = _rope(t, sizes["head_dim"])
    eos = t.integers("eos_token_id")
    if not eos:
        raise t.refuse("eos_token_id", [], "at least one token id")
    gate = t.get("output_gate_type", t.get("hidden_act", "silu"))
    tied = top.flag("tie_word_embeddings", t.flag("tie_word_embeddings", False))
    return validate(
        ModelConfig(
            **sizes,
            layer_types=_layer_types(t, sizes["num_hidden_layers"]),
            rms_norm_eps=t.number("rms_norm_eps", 1e-6),
            rotary_dim=rotary,
            rope_theta=theta,
            output_gate_type=cast(Any, gate),
            value_heads_tiled=False,
            norm_topk_prob=t.flag("norm_topk_prob", True),
            ple_layers=tuple(i - 1 for i in sorted(set(t.integers("ple_layer_ids", [])))),
            ple_embed_dim=t.integer("ple_embed_dim", sizes["hidden_size"]),
            eos_token_id=eos[0],
            mtp_num_hidden_layers=_draft(t, theta),
            tie_word_embeddings=tied,
            dtype=_dtype(top, t),
        ),
        file,
    )


def generation_defaults(raw: Mapping[str, Any], file: str, config: ModelConfig) -> GenerationDefaults:
    """See `GenerationDefaults.from_hf`."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{file}: the file holds {type(raw).__name__}, expected an object")
    g = Fields(raw, file)
    eos = g.integers("eos_token_id", [])
    for token in eos:
        if not 0 <= token < config.vocab_size:
            raise g.refuse("eos_token_id", token, f"a token id below vocab_size={config.vocab_size}")
    found = GenerationDefaults(
        eos_token_ids=tuple(dict.fromkeys([*eos, config.eos_token_id])),
        temperature=g.number("temperature", 1.0),
        top_p=g.number("top_p", 1.0),
        top_k=g.integer("top_k", 0),
        min_p=g.number("min_p", 0.0),
        repetition_penalty=g.number("repetition_penalty", 1.0),
    )
    if found.temperature < 0:
        raise g.refuse("temperature", found.temperature, "at least 0")
    if not 0 < found.top_p <= 1:
        raise g.refuse("top_p", found.top_p, "more than 0 and at most 1")
    if found.top_k < 0:
        raise g.refuse("top_k", found.top_k, "at least 0 (0: off)")
    if not 0 <= found.min_p <= 1:
        raise g.refuse("min_p", found.min_p, "from 0 to 1")
    if found.repetition_penalty <= 0:
        raise g.refuse("repetition_penalty", found.repetition_penalty, "more than 0")
    return found
