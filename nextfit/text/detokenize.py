"""Token ids to text as they arrive, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol


class Vocabulary(Protocol):
    """What detokenising needs to know of a tokenizer."""

    @property
    def special_ids(self) -> frozenset[int]: ...

    def token_bytes(self, id: int) -> bytes: ...


class Detokenizer:
    """Bytes of tokens through an incremental UTF-8 decoder.

    A character is given out with the token that completes it. Bytes that no continuation can make
    valid become U+FFFD, one per maximal invalid piece, as every UTF-8 decoder writes them: the model
    really said them. Bytes that are still open when the generation ends are dropped. With
    `skip_special`, special tokens add nothing; `<think>`, `<tool_call>` and the like are not special.
    """

    def __init__(self, vocabulary: Vocabulary, *, skip_special: bool = True) -> None:
        self._bytes_of = vocabulary.token_bytes
        self._skipped = vocabulary.special_ids if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Text that is complete after `ids` and was not before."""
        bytes_of, skipped = self._bytes_of, self._skipped
        return self._decoder.decode(b"".join(bytes_of(id) for id in ids if id not in skipped))

    @property
    def open(self) -> bool:
        """Whether a character has begun and waits for its last bytes."""
        return bool(self._decoder.getstate()[0])
