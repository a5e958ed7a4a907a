"""A tokenizer from the metadata of a GGUF file (spec gguf.md section 1).

GGUF keeps neither the split expression nor the normaliser, only their name in `tokenizer.ggml.pre`.
It also has no flags per added token beside control or user-defined: control tokens become special.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nextfit.errors import CheckpointError

if TYPE_CHECKING:
    import tokenizers

# digits stand alone, letters carry their combining marks
QWEN35_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_PREFIX = "tokenizer.ggml."


def build(metadata: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """The tokenizer and the named tokens for chat templates. Raises CheckpointError naming the key."""
    for key, wanted in (("model", "gpt2"), ("pre", "qwen35")):
        if (found := metadata.get(_PREFIX + key)) != wanted:
            raise CheckpointError(f"GGUF metadata: {_PREFIX}{key} is {found!r}, expected {wanted!r}")
    for key in ("add_bos_token", "add_eos_token"):
        if metadata.get(_PREFIX + key, False):
            raise CheckpointError(f"GGUF metadata: {_PREFIX}{key} is true, expected false")
    tokens, types = _list(metadata, "tokens", str), _list(metadata, "token_type", int)
    if len(tokens) != len(types):
        raise CheckpointError(
            f"GGUF metadata: {_PREFIX}token_type has {len(types)} entries, {_PREFIX}tokens has {len(tokens)}"
        )
    vocab, added = _vocabulary(tokens, types)
    backend = assemble(vocab, _merges(metadata, vocab), added)
    return backend, _named_tokens(metadata, tokens)


def assemble(
    vocab: dict[str, int], merges: list[tuple[str, str]], added: Sequence[tokenizers.AddedToken]
) -> tokenizers.Tokenizer:
    """Qwen3.5's tokenizer around a vocabulary: NFC, the split above, byte-level BPE, `added` tokens.

    An added token that `vocab` names has the id it has there; others follow the last id.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN35_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    backend.add_tokens(list(added))
    return backend


def _list(metadata: Mapping[str, Any], key: str, kind: type) -> Sequence[Any]:
    value = metadata.get(_PREFIX + key)
    if not isinstance(value, list):
        found = "missing" if value is None else type(value).__name__
        raise CheckpointError(f"GGUF metadata: {_PREFIX}{key} is {found}, expected an array")
    if not all(isinstance(entry, kind) for entry in value):
        raise CheckpointError(f"GGUF metadata: {_PREFIX}{key} is not an array of {kind.__name__}")
    return value


def _vocabulary(
    tokens: Sequence[str], types: Sequence[int]
) -> tuple[dict[str, int], list[tokenizers.AddedToken]]:
    from tokenizers import AddedToken

    vocab: dict[str, int] = {}
    added = []
    for id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind == _UNUSED:
            continue
        if token in vocab:
            raise CheckpointError(
                f"GGUF metadata: token {token!r} is given twice, as ids {vocab[token]} and {id}"
            )
        vocab[token] = id
        if kind in (_CONTROL, _USER_DEFINED):
            added.append(AddedToken(token, special=kind == _CONTROL, normalized=False))
        elif kind != _NORMAL:
            raise CheckpointError(
                f"GGUF metadata: token {id} ({token!r}) has type {kind}, expected 1 (normal), 3 (control), "
                "4 (user-defined) or 5 (unused)"
            )
    return vocab, added


def _merges(metadata: Mapping[str, Any], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for rank, line in enumerate(_list(metadata, "merges", str)):
        left, space, right = line.partition(" ")
        if not space or left not in vocab or right not in vocab or left + right not in vocab:
            raise CheckpointError(
                f"GGUF metadata: merge {rank} is {line!r}, expected two tokens that join to a third"
            )
        merges.append((left, right))
    return merges


def _named_tokens(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    named = {}
    for key, name in (("bos", "bos_token"), ("eos", "eos_token"), ("padding", "pad_token")):
        id = metadata.get(f"{_PREFIX}{key}_token_id")
        if id is None:
            continue
        if not isinstance(id, int) or not 0 <= id < len(tokens):
            raise CheckpointError(
                f"GGUF metadata: {_PREFIX}{key}_token_id is {id!r}, expected a number below {len(tokens)}"
            )
        named[name] = tokens[id]
    return named
