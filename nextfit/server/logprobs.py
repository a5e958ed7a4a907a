"""Token probabilities in OpenAI's two shapes."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from nextfit.engine.request import Sampled
from nextfit.text import Tokenizer


def _name(raw: bytes) -> str:
    """A token as text; one that is part of a character only is spelled like `bytes:\\xc3`, as OpenAI does."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{b:02x}" for b in raw)


def _entry(tokenizer: Tokenizer, token: int, logprob: float | None) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {"token": _name(raw), "logprob": logprob, "bytes": list(raw)}


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Sampled]) -> dict[str, Any]:
    """`choices[].logprobs` of chat completions."""
    content = [
        _entry(tokenizer, s.token, s.logprob) | {"top_logprobs": [_entry(tokenizer, *pair) for pair in s.top]}
        for s in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[Sampled], start: int, alternatives: int
) -> dict[str, Any]:
    """`choices[].logprobs` of completions; the first token begins `start` characters into the text.

    The first token of a prompt has no log-probability, as nothing is before it, and no alternatives.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets = []
    for sampled in tokens:
        offsets.append(start)
        start += len(decoder.decode(tokenizer.token_bytes(sampled.token)))
    top = [{_name(tokenizer.token_bytes(token)): p for token, p in s.top} or None for s in tokens]
    return {
        "tokens": [_name(tokenizer.token_bytes(s.token)) for s in tokens],
        "token_logprobs": [s.logprob for s in tokens],
        "top_logprobs": top if alternatives else None,
        "text_offset": offsets,
    }
