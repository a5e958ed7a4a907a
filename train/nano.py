"""The small model: its configuration, its tokenizer, and the folder that both are written to."""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from nextfit.config import ModelConfig
from nextfit.models import default_path
from nextfit.text.template import ChatTemplate
from nextfit.text.tokenizer import Tokenizer, load_tokenizer

FOLDER = default_path().parent / "nano"  # where the trained model lies; its tokenizer comes first
VOCABULARY = 2048
LAYERS = 8
ADDED = 26  # Qwen's added tokens, in the order and with the flags of the bundled tokenizer


def config() -> dict[str, Any]:
    """config.json: the bundled model's fields with other sizes."""
    raw: dict[str, Any] = json.loads((default_path() / "config.json").read_text("utf-8"))
    first = VOCABULARY - ADDED
    raw |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), first)
    raw |= {
        "vocab_size": VOCABULARY,
        "hidden_size": 192,
        "num_hidden_layers": LAYERS,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (LAYERS // 4),
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "indexer_n_heads": 4,
        "indexer_head_dim": 32,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 6,
        "num_experts": 12,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "ple_embed_dim": 192,
        "heads_per_ngram": 3,
        "ngram_vocab_size_base": 1300,
    }
    raw["rope_parameters"] |= {"partial_rotary_factor": 0.5, "mrope_section": [4, 2, 2]}
    return raw


@lru_cache
def template() -> ChatTemplate:
    return ChatTemplate((default_path() / "chat_template.jinja").read_text("utf-8"))


@lru_cache
def tokenizer() -> Tokenizer:
    settings = json.loads((FOLDER / "tokenizer_config.json").read_text("utf-8"))
    return load_tokenizer(FOLDER / "tokenizer.json", None, settings)


@lru_cache
def pieces() -> list[str]:
    """Tokens that are lower-case letters, two or more, at the beginning of a word or inside."""
    vocabulary = json.loads((FOLDER / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    found = {t.lstrip("\u0120") for t in vocabulary}
    return sorted(t for t in found if len(t) > 1 and t.isascii() and t.isalpha() and t.islower())


def model_config() -> ModelConfig:
    return ModelConfig.from_hf(config(), "config.json")


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def make_tokenizer(seed: int = 1) -> None:
    """Train the byte-level BPE on conversations of the tasks and write it to FOLDER."""
    from tokenizers import AddedToken, pre_tokenizers, trainers

    from nextfit.text.gguf_tokenizer import assemble
    from train.stream import render
    from train.tasks import draw

    random = Random(seed)
    texts = [render(draw(random, 1024, 0.05)) for _ in range(6000)]
    bundled = json.loads((default_path() / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    settings = json.loads((default_path() / "tokenizer_config.json").read_text("utf-8"))
    for token in bundled:  # they would be learned as text
        texts = [t.replace(token["content"], "\n") for t in texts]
    trained = assemble({}, [], [])
    trained.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - ADDED,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    for token in bundled:
        trained.add_tokens([AddedToken(token["content"], special=token["special"], normalized=False)])
    if trained.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"{trained.get_vocab_size()} tokens, expected {VOCABULARY}")
    FOLDER.mkdir(exist_ok=True)
    trained.save(str(FOLDER / "tokenizer.json"))
    added = settings["added_tokens_decoder"]
    first = min(map(int, added))
    settings["added_tokens_decoder"] = {str(int(k) - first + VOCABULARY - ADDED): v for k, v in added.items()}
    write_json(FOLDER / "tokenizer_config.json", settings)


def write_folder(out: Path) -> None:
    """Everything of a checkpoint but its weights."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", config())
    first = VOCABULARY - ADDED
    ends = {"bos_token_id": first, "eos_token_id": [first + 2, first], "pad_token_id": first}
    write_json(
        out / "generation_config.json",
        ends | {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20},
    )
    shutil.copyfile(default_path() / "chat_template.jinja", out / "chat_template.jinja")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(FOLDER / name, out / name)


if __name__ == "__main__":
    make_tokenizer()
