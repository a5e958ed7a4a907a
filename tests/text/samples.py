"""Texts that tokenizers and decoders have got wrong before, and the tokenizers to try them on."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from nextfit.models import default_path
from nextfit.text import Tokenizer, load_tokenizer

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA, FAMILY = "\U0001f999", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"

TEXTS = [
    "",
    " ",
    "\n",
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\t\tand\r\nlines\r\n\r\n  \n \n\n x",
    "a    b     c\u00a0d\u2003e\u3000f",
    "12345 3.14159 1,000,000 ٣٤٥ ½ ²",
    "it's I'LL we've They'D don't 's 't",
    "def f(x):\n    return {'a': x[0], \"b\": x ** 2}  # <tag> && ||\n",
    "é è ñ ü ß Å",  # composed
    "e\u0301 n\u0303 u\u0308 a\u030a\u0327",  # decomposed: NFC joins what it can
    "क्षत्रिय हिन्दी தமிழ் ภาษาไทย",  # letters with combining marks
    "한국어 한국어",  # Hangul, composed and as jamo
    "日本語、中文。 «Русский» עברית العربية",
    f"{LLAMA} {FAMILY} \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd",
    "\u200b\ufeff\x00\x07\x7f\ufffd",
    "\ufb01 \u2126 \u212b \u1e9b\u0323",  # changed by NFC, or only by NFKC
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nyes<|endoftext|>",
    "<think><think></think> <tool_call>x</tool_call><|im_end|><|im_end|",
    "< |im_end|> <|im_end |> <|IM_END|> <|im_end|>",
    "a" * 300,
    "ab\n" * 100,
    "\\n \\u00e9 %s {0} \"quoted\" 'single' `back`",
]


def default_tokenizer() -> Tokenizer:
    return _load(default_path())


def micro_tokenizer() -> Tokenizer:
    return _load(FIXTURES / "micro-nvfp4")


@lru_cache
def _load(folder: Path) -> Tokenizer:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    return load_tokenizer(folder / "tokenizer.json", None, config)


def gguf_metadata(folder: Path, rows: int) -> dict[str, Any]:
    """What llama.cpp's converter writes for the tokenizer in `folder` and an embedding of `rows` rows."""
    content = json.loads((folder / "tokenizer.json").read_text())
    tokens = [f"[PAD{i}]" for i in range(rows)]
    types = [5] * rows
    for token, id in content["model"]["vocab"].items():
        tokens[id], types[id] = token, 1
    for added in content["added_tokens"]:
        tokens[added["id"]], types[added["id"]] = added["content"], 3 if added["special"] else 4
    key = "tokenizer.ggml."
    return {
        f"{key}model": "gpt2",
        f"{key}pre": "qwen35",
        f"{key}tokens": tokens,
        f"{key}token_type": types,
        f"{key}merges": [" ".join(pair) for pair in content["model"]["merges"]],
        f"{key}eos_token_id": tokens.index("<|im_end|>"),
        f"{key}padding_token_id": tokens.index("<|endoftext|>"),
        f"{key}bos_token_id": tokens.index("<|endoftext|>"),
        f"{key}add_bos_token": False,
        f"{key}add_eos_token": False,
    }
