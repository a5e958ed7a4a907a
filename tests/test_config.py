"""Configurations: what released files leave out, what is refused and how, agreement with transformers."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from transformers.models.qwen4_exp import Qwen4ExpTextConfig

import nextfit.config_hf
from nextfit.config import GenerationDefaults, ModelConfig
from nextfit.config_rules import validate
from nextfit.errors import ConfigError
from tests.support.checkpoint_writer import config_json
from tests.support.random_model import small_config
from tests.support.refusals import reached, sites, spell

FIXTURE = Path(__file__).parent / "fixtures/micro-nvfp4/config.json"
ABSENT = object()


def released() -> dict[str, Any]:
    """The released model's config.json as spec section 1 describes it."""
    layers = ["linear_attention"] * 3 + ["full_attention"]
    text = {
        "model_type": "qwen4_exp_text",
        "hidden_size": 2560,
        "num_hidden_layers": 48,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "layer_types": layers * 12,
        "full_attention_interval": 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
        },
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 128,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "output_gate_type": "sigmoid",
        "mamba_ssm_dtype": "float32",
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 640,
        "shared_expert_intermediate_size": 640,
        "hc_count": 4,
        "hc_lowrank": 320,
        "ple_layer_ids": [2],
        "ple_embed_dim": 2560,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 8,
        "ngram_vocab_size_base": 20000000,
        "make_ngram_vocab_size_divisible_by": 128,
        "split_ngram_parts": 128,
        "bos_token_id": 248044,
        "eos_token_id": 248044,
        "mtp_num_hidden_layers": 1,
        "mtp": {"hybrid": True, "layer_types": ["full_attention"], "num_hidden_layers": 1, "rope_theta": 1e7},
        "mtp_use_dedicated_embeddings": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "image_token_id": 248056,
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": {"model_type": "qwen4_exp"},
    }


def edited(raw: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with the field at the dotted `path` set, or removed."""
    raw = copy.deepcopy(raw)
    *above, name = path.split(".")
    at = raw
    for step in above:
        at = at[step]
    if value is ABSENT:
        del at[name]
    else:
        at[name] = value
    return raw


def test_released_config() -> None:
    c = ModelConfig.from_hf(released(), "config.json")
    assert (c.hidden_size, c.num_hidden_layers, c.rotary_dim, c.rope_theta) == (2560, 48, 64, 1e7)
    assert [i for i, t in enumerate(c.layer_types) if t == "full_attention"] == list(range(3, 48, 4))
    assert c.ple_layers == (1,) and c.ngram_heads == 16 and c.ngram_head_dim == 160
    # left out by the file
    assert c.norm_topk_prob is True and c.seed == 1234
    assert c.value_heads_tiled is False and c.mtp_num_hidden_layers == 1


def test_flat_config_of_the_fixture() -> None:
    c = ModelConfig.from_hf(json.loads(FIXTURE.read_text()), FIXTURE)
    assert (c.hidden_size, c.num_experts, c.eos_token_id, c.dtype) == (256, 4, 496, "bfloat16")


@pytest.mark.parametrize("nested", [False, True])
def test_written_config_comes_back(nested: bool) -> None:
    c = small_config(norm_topk_prob=False, seed=7, output_gate_type="silu", ple_layers=(1, 4))
    assert ModelConfig.from_hf(config_json(c, nested), "config.json") == c


@pytest.mark.parametrize(
    ("path", "value", "field", "expected"),
    [
        ("layer_types", ABSENT, "layer_types", ("linear_attention",) * 3 + ("full_attention",)),
        ("layer_types", None, "layer_types", ("linear_attention",) * 3 + ("full_attention",)),
        ("layer_types", ["linear_attention"] * 3 + ["indexed_attention"], "layer_types", None),
        ("output_gate_type", ABSENT, "output_gate_type", "silu"),
        ("norm_topk_prob", ABSENT, "norm_topk_prob", True),
        ("seed", ABSENT, "seed", 1234),
        ("seed", None, "seed", 1234),
        ("split_ngram_parts", ABSENT, "split_ngram_parts", 512),
        ("ple_embed_dim", ABSENT, "ple_embed_dim", 256),
        ("eos_token_id", [496, 498], "eos_token_id", 496),
        ("eos_token_id", [498, 496], "eos_token_id", 498),
        ("ple_layer_ids", [3, 1, 3], "ple_layers", (0, 2)),
        ("ple_layer_ids", None, "ple_layers", ()),
        ("rms_norm_eps", ABSENT, "rms_norm_eps", 1e-6),
        ("mtp_num_hidden_layers", 0, "mtp_num_hidden_layers", 0),
        ("dtype", ABSENT, "dtype", "bfloat16"),
        ("rope_parameters", {"rope_theta": 5e6, "partial_rotary_factor": 0.5}, "rotary_dim", 32),
        ("rope_parameters.rope_theta", ABSENT, "rope_theta", 10_000.0),
    ],
)
def test_fields_that_files_leave_out(path: str, value: object, field: str, expected: object) -> None:
    raw = json.loads(FIXTURE.read_text())
    c = ModelConfig.from_hf(edited(raw, path, value), "config.json")
    default = ("linear_attention",) * 3 + ("full_attention",)
    assert getattr(c, field) == (default if expected is None else expected)


def test_older_spellings() -> None:
    raw = json.loads(FIXTURE.read_text())
    del raw["rope_parameters"], raw["dtype"]
    raw |= {"rope_theta": 3e5, "partial_rotary_factor": 0.25, "torch_dtype": "float16"}
    c = ModelConfig.from_hf(raw, "config.json")
    assert (c.rope_theta, c.rotary_dim, c.dtype) == (3e5, 16, "float16")
    raw["rope_scaling"] = {"type": "default", "rope_theta": 2e5}
    assert ModelConfig.from_hf(raw, "config.json").rope_theta == 2e5


# field of the flat fixture, value, words of the message beside the file and the field
REFUSED: list[tuple[str, object, str]] = [
    ("model_type", ABSENT, "is '', expected qwen4_exp"),
    ("model_type", "qwen3_next", "'qwen3_next', expected qwen4_exp or qwen4_exp_text"),
    ("architectures", ["LlamaForCausalLM"], "LlamaForCausalLM"),
    ("architectures", "Qwen4ExpForCausalLM", "expected one of"),
    ("hidden_size", 0, "is 0, expected an integer from 1"),
    ("hidden_size", -256, "is -256"),
    ("hidden_size", "256", "is '256', expected an integer"),
    ("hidden_size", 256.0, "is 256.0, expected an integer"),
    ("hidden_size", True, "is True, expected an integer"),
    ("hidden_size", 1 << 40, "expected an integer from 1 to"),
    ("num_hidden_layers", 5, "expected one entry for each of num_hidden_layers=5"),
    ("vocab_size", 0, "is 0"),
    ("max_position_embeddings", 0, "is 0"),
    ("layer_types", "linear_attention", "expected a list of layer types"),
    ("layer_types", ["linear_attention"] * 3 + ["sliding_attention"], "is 'sliding_attention'"),
    ("layer_types", ["linear_attention"] * 3 + [4], "is 4"),
    ("rms_norm_eps", 0, "expected a positive number"),
    ("rms_norm_eps", math.nan, "is nan, expected a finite number"),
    ("rms_norm_eps", "1e-6", "expected a finite number"),
    ("num_attention_heads", 3, "expected a multiple of num_key_value_heads=2"),
    ("num_key_value_heads", 0, "is 0"),
    ("head_dim", 0, "is 0"),
    ("rope_parameters", [], "expected an object"),
    ("rope_parameters.rope_type", "yarn", "is 'yarn', expected default"),
    ("rope_parameters.rope_theta", -1.0, "expected a positive number"),
    ("rope_parameters.rope_theta", math.inf, "expected a finite number"),
    ("rope_parameters.partial_rotary_factor", 0, "expected more than 0 and at most 1"),
    ("rope_parameters.partial_rotary_factor", 1.5, "expected more than 0 and at most 1"),
    ("rope_parameters.partial_rotary_factor", 1.0, "is 64, expected at most indexer_head_dim=32"),
    ("rope_parameters.partial_rotary_factor", 0.3, "is 19, expected an even number"),
    ("rope_parameters.partial_rotary_factor", 0.001, "is 0, expected an integer from 1"),
    ("indexer_n_heads", ABSENT, "is missing, expected an integer"),
    ("indexer_n_heads", 0, "is 0"),
    ("indexer_kv_heads", 2, "is 2, expected 1"),
    ("indexer_head_dim", 8, "at most indexer_head_dim=8"),
    ("indexer_budget", 66, "expected a multiple of indexer_compress_ratio=4"),
    ("indexer_compress_ratio", 0, "is 0"),
    ("linear_num_value_heads", 5, "expected a multiple of linear_num_key_heads=2"),
    ("linear_num_key_heads", 0, "is 0"),
    ("linear_key_head_dim", 0, "is 0"),
    ("linear_value_head_dim", -32, "is -32"),
    ("linear_conv_kernel_dim", 0, "is 0, expected an integer from 1"),
    ("output_gate_type", "relu", "is 'relu', expected sigmoid or silu"),
    ("hidden_act", "gelu", "is 'gelu', expected silu"),
    ("attention_bias", True, "is True, expected false"),
    ("attention_bias", "no", "is 'no', expected true or false"),
    ("num_experts", 0, "is 0"),
    ("num_experts_per_tok", 0, "is 0"),
    ("num_experts_per_tok", 5, "is 5, expected at most num_experts=4"),
    ("moe_intermediate_size", 0, "is 0"),
    ("shared_expert_intermediate_size", 0, "is 0"),
    ("norm_topk_prob", 1, "is 1, expected true or false"),
    ("hc_count", 1, "is 1, expected an integer from 2"),
    ("hc_lowrank", 0, "is 0"),
    ("ple_layer_ids", [0], "expected layer numbers from 1 to 4"),
    ("ple_layer_ids", [5], "is 5, expected layer numbers from 1 to 4"),
    ("ple_layer_ids", [4], "is 4, expected linear_attention layers only (layer 4 is full_attention)"),
    ("ple_layer_ids", ["2"], "expected an integer or a list of integers"),
    ("ple_embed_dim", 255, "expected a multiple of (ngram_size - 1) * heads_per_ngram = 8"),
    ("ple_conv_kernel_size", 0, "is 0"),
    ("ngram_size", 1, "is 1, expected an integer from 2"),
    ("heads_per_ngram", 0, "is 0"),
    ("ngram_vocab_size_base", 0, "is 0"),
    ("ngram_vocab_size_base", 1 << 60, "expected an integer from 1"),
    ("make_ngram_vocab_size_divisible_by", 0, "is 0"),
    ("split_ngram_parts", 0, "is 0"),
    ("seed", -1, "is -1"),
    ("eos_token_id", ABSENT, "is missing"),
    ("eos_token_id", None, "is missing"),
    ("eos_token_id", [], "expected at least one token id"),
    ("eos_token_id", 512, "is 512, expected an integer from 0 to 511"),
    ("eos_token_id", "496", "expected an integer or a list of integers"),
    ("mtp_num_hidden_layers", 2, "is 2, expected an integer from 0 to 1"),
    ("mtp_use_dedicated_embeddings", True, "expected false"),
    ("mtp", {"rope_theta": 1e6}, "rope_theta is 1000000.0, expected the model's own"),
    ("mtp", {"layer_types": ["linear_attention"]}, "expected full_attention only"),
    ("tie_word_embeddings", "false", "expected true or false"),
    ("dtype", "int8", "is 'int8', expected one of bfloat16"),
    ("dtype", 16, "is 16, expected one of bfloat16"),
]
REFUSED_NESTED: list[tuple[str, object, str]] = [
    ("text_config", ABSENT, "text_config is missing"),
    ("text_config", [], "text_config is [], expected an object"),
    ("text_config.model_type", "llama", "text_config.model_type is 'llama'"),
    ("text_config.num_experts", 3, "num_experts_per_tok is 10, expected at most num_experts=3"),
    ("text_config.indexer_budget", "2048", "text_config.indexer_budget is '2048'"),
]


def refusals() -> list[tuple[dict[str, Any], str, str]]:
    """Configuration, field, words."""
    flat = json.loads(FIXTURE.read_text())
    found = [(edited(flat, path, value), path, words) for path, value, words in REFUSED]
    found += [(edited(released(), path, value), path, words) for path, value, words in REFUSED_NESTED]
    interval = {k: v for k, v in flat.items() if k != "layer_types"}
    found.append((interval | {"full_attention_interval": 0}, "full_attention_interval", "at least 1"))
    found.append((interval | {"num_hidden_layers": 1 << 30}, "num_hidden_layers", "from 1 to 4096"))
    found.append(([], "config.json", "holds list, expected an object"))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(("raw", "field", "words"), refusals(), ids=lambda x: x if isinstance(x, str) else "")
def test_refused(raw: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_hf(raw, "some/config.json")
    message = str(error.value)
    assert "some/config.json" in message and words in message, message
    named = field.split(".")[-1].replace("partial_rotary_factor", "rotary_")
    assert named.split("_")[0] in message, message


def check_rules(**changes: object) -> ModelConfig:
    return validate(small_config(**changes), "model.gguf")


RULES: list[tuple[dict[str, object], str]] = [
    ({"value_heads_tiled": 1}, "value_heads_tiled is 1, expected true or false"),
    ({"rope_theta": "10000"}, "rope_theta is '10000', expected a positive number"),
    ({"num_experts": None}, "num_experts is None, expected an integer"),
    ({"vocab_size": None}, "vocab_size is None"),
    ({"dtype": "float8"}, "dtype is 'float8', expected one of bfloat16"),
    ({"layer_types": ("dense",) * 8}, "layer_types[0] is 'dense'"),
    ({"ple_layers": (4, 1)}, "ple_layer_ids is [5, 2], expected different layers in rising order"),
]


@pytest.mark.parametrize(("changes", "words"), RULES)
def test_rules_hold_for_every_reader(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match="model.gguf") as error:
        check_rules(**changes)
    assert words in str(error.value)


GENERATION = [
    ({"temperature": -1}, "temperature is -1.0, expected at least 0"),
    ({"temperature": "hot"}, "temperature is 'hot', expected a finite number"),
    ({"top_p": 0}, "top_p is 0.0, expected more than 0"),
    ({"top_k": -1}, "top_k is -1, expected at least 0"),
    ({"min_p": 2}, "min_p is 2.0, expected from 0 to 1"),
    ({"repetition_penalty": 0}, "repetition_penalty is 0.0, expected more than 0"),
    ({"eos_token_id": [320]}, "eos_token_id is 320, expected a token id below vocab_size=320"),
    ([], "holds list, expected an object"),
]


@pytest.mark.parametrize(("raw", "words"), GENERATION)
def test_generation_refused(raw: Any, words: str) -> None:
    with pytest.raises(ConfigError, match="generation_config.json") as error:
        GenerationDefaults.from_hf(raw, "generation_config.json", small_config())
    assert words in str(error.value)


def test_generation_defaults() -> None:
    c = small_config(vocab_size=248320, eos_token_id=248044)
    raw = {
        "temperature": 1.0,
        "top_p": 0.95,
        "top_k": 20,
        "eos_token_id": [248046, 248044],
        "do_sample": True,
    }
    assert GenerationDefaults.from_hf(raw, "g", c) == GenerationDefaults((248046, 248044), 1.0, 0.95, 20)
    # the n-gram boundary ends an answer even where the file does not say so
    assert GenerationDefaults.from_hf({"eos_token_id": 248046}, "g", c).eos_token_ids == (248046, 248044)
    assert GenerationDefaults.from_hf({}, "g", c) == GenerationDefaults((248044,))


def test_same_verdict_as_transformers() -> None:
    """What transformers' own checks refuse is refused here; what both take has the same values."""
    flat = json.loads(FIXTURE.read_text())
    refused = 0
    for path, value, _ in REFUSED:
        raw = edited(flat, path, value)
        try:
            Qwen4ExpTextConfig(**copy.deepcopy(raw)).validate_architecture()
        except Exception:  # noqa: BLE001, its checks raise many kinds of errors
            refused += 1
            with pytest.raises(ConfigError):
                ModelConfig.from_hf(raw, "config.json")
    assert refused > 20
    theirs = Qwen4ExpTextConfig(**copy.deepcopy(flat))
    ours = ModelConfig.from_hf(flat, "config.json")
    for name in ("hidden_size", "num_experts", "ple_embed_dim", "seed", "norm_topk_prob", "hc_lowrank"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_left_out_sizes_are_those_of_transformers() -> None:
    theirs = Qwen4ExpTextConfig()
    for name, value in nextfit.config_hf._SIZES.items():
        assert getattr(theirs, name) == value, name


def test_every_refusal_is_reached() -> None:
    wanted = sites(Path(str(nextfit.config_hf.__file__)).parent.glob("config*.py"))
    assert len(wanted) > 30

    def attempts() -> Any:
        for raw, _, _ in refusals():
            yield lambda raw=raw: pytest.raises(ConfigError, ModelConfig.from_hf, raw, "c")
        for settings, _ in GENERATION:
            yield lambda raw=settings: pytest.raises(
                ConfigError, GenerationDefaults.from_hf, raw, "g", small_config()
            )
        for changes, _ in RULES:
            yield lambda changes=changes: pytest.raises(ConfigError, check_rules, **changes)

    missed = wanted - reached(wanted, attempts())
    assert not missed, "\n".join(spell(missed))
