"""The bundled checkpoint: made again byte for byte, complete, and readable by transformers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from safetensors import safe_open

from nextfit.checkpoint.names import Kind, draft_slots, trunk_slots
from nextfit.config import GenerationDefaults, ModelConfig
from nextfit.models import default_path
from tests.text.samples import default_tokenizer

FOLDER = default_path()
TOOL = Path(__file__).parents[2] / "tools" / "make_default.py"
FILES = {
    "MODEL_CARD.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def read_json(name: str) -> dict[str, object]:
    content = json.loads((FOLDER / name).read_text())
    assert isinstance(content, dict)
    return content


def test_made_again(tmp_path: Path) -> None:
    runpy.run_path(str(TOOL))["main"](tmp_path)
    assert {file.name for file in FOLDER.iterdir()} == {file.name for file in tmp_path.iterdir()} == FILES
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), name


def test_size_and_card() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 8_000_000
    assert "weights are random" in (FOLDER / "MODEL_CARD.md").read_text()


def test_configs() -> None:
    config = ModelConfig.from_hf(read_json("config.json"), "config.json")
    tokenizer = default_tokenizer()
    assert tokenizer.vocab_size == config.vocab_size == 1024
    assert config.max_position_embeddings == 262144
    assert config.indexer_budget == 256 and config.mtp_num_hidden_layers == 1
    assert config.layer_types == (*["linear_attention"] * 3, "full_attention") * 2
    assert config.eos_token_id == tokenizer.id_of("<|endoftext|>")  # bounds n-grams
    generation = GenerationDefaults.from_hf(read_json("generation_config.json"), "file", config)
    assert generation.eos_token_ids == tokenizer.end_ids
    assert (generation.temperature, generation.top_p, generation.top_k) == (1.0, 0.95, 20)


def test_tensors() -> None:
    """Names and shapes as in the released BF16 checkpoint, with `model.` as the prefix."""
    config = ModelConfig.from_hf(read_json("config.json"), "config.json")
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    names = {name.removeprefix("model.") for name in found}
    fused = ("experts.gate_proj", "experts.up_proj")
    expected = {
        part.name
        for slot in (*trunk_slots(config), *draft_slots(config))
        for part in slot.parts
        if slot.kind is not Kind.TABLE and not part.name.endswith(fused)
    }
    table = "layers.1.ple.ple_embedding"
    layers = [f"layers.{i}" for i in range(8)] + ["mtp.layers.0"]
    expected |= {f"{layer}.mlp.experts.gate_up_proj" for layer in layers}
    expected |= {f"{table}.ngram_embedding.shard_{k}.weight" for k in range(4)}
    constants = ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes")
    expected |= {f"{table}.{name}" for name in constants}
    assert names == expected
    assert sum(name.startswith("mtp.") for name in found) == 31
    wide = {name for name, tensor in found.items() if tensor.get_dtype() != "BF16"}
    assert wide == {f"model.{table}.{name}" for name in constants}
    assert found["model.layers.0.mlp.experts.gate_up_proj"].get_shape() == [16, 64, 128]


def test_transformers_loads_it() -> None:
    import torch
    from transformers.models.qwen4_exp import Qwen4ExpForCausalLM

    model, report = Qwen4ExpForCausalLM.from_pretrained(FOLDER, output_loading_info=True)
    assert not any(report.values())
    assert model.dtype is torch.bfloat16
    with torch.no_grad():
        logits = model(torch.arange(8)[None]).logits
    assert logits.shape == (1, 8, 1024) and bool(logits.isfinite().all())


def test_added_tokens_are_qwens() -> None:
    tokenizer = default_tokenizer()
    # distances from <|endoftext|> in the released vocabulary
    places = {
        "<|im_start|>": 1,
        "<|im_end|>": 2,
        "<|vision_start|>": 9,
        "<|vision_end|>": 10,
        "<|vision_pad|>": 11,
        "<|image_pad|>": 12,
        "<|video_pad|>": 13,
        "<tool_call>": 14,
        "</tool_call>": 15,
        "<tool_response>": 22,
        "</tool_response>": 23,
        "<think>": 24,
        "</think>": 25,
    }
    first = tokenizer.id_of("<|endoftext|>")
    assert first == 1024 - 26
    assert {name: tokenizer.id_of(name) for name in places} == {n: first + d for n, d in places.items()}
    assert tokenizer.special_ids == frozenset(range(first, first + 14))
