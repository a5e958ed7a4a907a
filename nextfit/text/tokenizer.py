"""Text to token ids and back, over the `tokenizers` library: byte-level BPE as the checkpoint defines it.

A token is a string of bytes, so text is recovered by joining bytes and decoding UTF-8; nothing here
guesses at spaces. The rebuild from GGUF metadata is in `gguf_tokenizer`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextfit.errors import CheckpointError
from nextfit.text.detokenize import Detokenizer

if TYPE_CHECKING:
    import tokenizers

END_TOKENS = ("<|im_end|>", "<|endoftext|>")  # a turn ends at the first, a document at the second
_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 characters stand for themselves, the other bytes take U+0100 and up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


_BYTE_OF = byte_alphabet()


class Tokenizer:
    """Immutable after construction and safe to share between threads.

    `template_variables` are the named special tokens (`eos_token` ...) that chat templates may read.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, template_variables: Mapping[str, str], source: str
    ) -> None:
        """Check that `backend` is what this class understands; `source` names the file in refusals."""
        from tokenizers import decoders

        if not isinstance(backend.decoder, decoders.ByteLevel):
            found = type(backend.decoder).__name__
            raise CheckpointError(f"{source}: tokenizer decoder is {found}, expected ByteLevel")
        if extra := backend.num_special_tokens_to_add(False):
            raise CheckpointError(
                f"{source}: the tokenizer adds {extra} tokens around each text, expected none"
            )
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._added = {i: token.content for i, token in added.items()}
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        strange = set("".join(vocabulary)) - _BYTE_OF.keys()
        for token, id in vocabulary.items() if strange else ():
            if id not in self._added and not strange.isdisjoint(token):
                raise CheckpointError(
                    f"{source}: token {id} ({token!r}) is not spelled in the byte-level alphabet"
                )
        self.template_variables = dict(template_variables)
        self.end_ids = tuple(i for name in END_TOKENS if (i := self.id_of(name)) is not None)

    def encode(self, text: str, *, added_tokens: bool = True) -> list[int]:
        """Token ids of `text`; nothing is put before or after them.

        With `added_tokens=False` the spelling of an added token (`<|im_end|>`, `<think>` ...) is plain
        text like any other, so a user's words cannot become control tokens.
        """
        if added_tokens:
            # the batch call releases the interpreter lock and computes no offsets
            return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        normalizer, splitter, model = (
            self._backend.normalizer,
            self._backend.pre_tokenizer,
            self._backend.model,
        )
        if normalizer is not None:
            text = normalizer.normalize_str(text)
        pieces = [piece for piece, _ in splitter.pre_tokenize_str(text)] if splitter is not None else [text]
        return [token.id for piece in pieces for token in model.tokenize(piece)]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of `ids`, equal to what a `Detokenizer` gives piece by piece (see there for open bytes)."""
        return Detokenizer(self, skip_special=skip_special).push(ids)

    def id_of(self, token: str) -> int | None:
        """Id of an added token by its name; None when there is none."""
        id = self._backend.token_to_id(token)
        return id if id in self._added else None

    def token_bytes(self, id: int) -> bytes:
        """The bytes that token `id` adds to a text; empty for an id without a token (vocabulary padding)."""
        if (name := self._added.get(id)) is not None:
            return name.encode()
        token = self._backend.id_to_token(id) if id >= 0 else None
        return bytes(map(_BYTE_OF.__getitem__, token)) if token else b""


def load_tokenizer(
    tokenizer_json: Path | None,
    gguf_metadata: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Tokenizer:
    """The checkpoint's tokenizer, from `tokenizer.json` or, without one, from GGUF metadata.

    `config` is the content of `tokenizer_config.json`. Raises CheckpointError.
    """
    if tokenizer_json is not None:
        return _from_json(tokenizer_json, config or {})
    if gguf_metadata is None:
        raise CheckpointError("the checkpoint has no tokenizer: expected tokenizer.json or GGUF metadata")
    from nextfit.text.gguf_tokenizer import build

    backend, variables = build(gguf_metadata)
    return Tokenizer(backend, variables, "GGUF metadata")


def _from_json(path: Path, config: Mapping[str, Any]) -> Tokenizer:
    import tokenizers

    try:
        text = path.read_text("utf-8")
        content = json.loads(text)
        _check_model(content["model"], path)
        backend = tokenizers.Tokenizer.from_str(text)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except CheckpointError:
        raise
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{path}: not a tokenizer: {type(error).__name__}: {error}") from None
    for token in content["added_tokens"]:
        if (id := backend.token_to_id(token["content"])) != token["id"]:
            raise CheckpointError(
                f"{path}: added token {token['content']!r} says id {token['id']}, its place in the file is id {id}"
            )
    _add_configured(backend, config, path)
    return Tokenizer(backend, _named_tokens(config), str(path))


def _check_model(model: Mapping[str, Any], path: Path) -> None:
    """Refuse what would not be byte-level BPE, some of which the library aborts the process on."""
    if (kind := model["type"]) != "BPE":
        raise CheckpointError(f"{path}: tokenizer model is {kind!r}, expected 'BPE'")
    for field in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if value := model.get(field):
            raise CheckpointError(f"{path}: tokenizer model has {field} {value!r}, expected none")


def _add_configured(backend: tokenizers.Tokenizer, config: Mapping[str, Any], path: Path) -> None:
    """Tokens that only `tokenizer_config.json` lists join the vocabulary; contradictions are refused."""
    import tokenizers

    flags = ("special", "normalized", "lstrip", "rstrip", "single_word")
    listed: dict[int, tokenizers.AddedToken] = {}
    try:
        for key, token in config.get("added_tokens_decoder", {}).items():
            given = {flag: token[flag] for flag in flags if flag in token}
            listed[int(key)] = tokenizers.AddedToken(token["content"], **given)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise CheckpointError(
            f"{path.with_name('tokenizer_config.json')}: added_tokens_decoder is not an object of tokens by id"
        ) from None
    missing = [id for id in sorted(listed) if backend.id_to_token(id) is None]
    backend.add_tokens([listed[id] for id in missing])
    for id, token in listed.items():
        if (found := backend.id_to_token(id)) != token.content:
            raise CheckpointError(
                f"{path}: token {id} is {found!r}, but tokenizer_config.json says {token.content!r}"
            )


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`eos_token` and the like, given as a string or as an object with `content`."""
    named = {}
    for key in _NAMED_TOKENS:
        value = config.get(key)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            named[key] = value
    return named
