"""A checkpoint's tokenizer and chat template."""

from __future__ import annotations

from pathlib import Path

from nextfit.checkpoint import Checkpoint
from nextfit.checkpoint.safetensors import read_json
from nextfit.text.template import ChatTemplate
from nextfit.text.tokenizer import Tokenizer, load_tokenizer


def load_text(checkpoint: Checkpoint) -> tuple[Tokenizer, ChatTemplate | None]:
    """The checkpoint's tokenizer and, if it has one, its chat template."""
    source = checkpoint.tokenizer
    if isinstance(source, Path):
        file = source.with_name("tokenizer_config.json")
        tokenizer = load_tokenizer(source, None, read_json(file) if file.exists() else None)
    else:
        tokenizer = load_tokenizer(None, source)
    template = checkpoint.chat_template
    return tokenizer, ChatTemplate(template, tokenizer.template_variables) if template else None
