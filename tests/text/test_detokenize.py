"""Characters cut into byte tokens in every way; nothing broken may ever be seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextfit.text import Detokenizer, TextStream
from tests.text.samples import FAMILY, LLAMA, default_tokenizer

SPECIAL = 1000


class Bytes:
    """Token b is the byte b; token 1000 is special."""

    special_ids = frozenset({SPECIAL})

    def token_bytes(self, id: int) -> bytes:
        return bytes([id]) if id < 256 else b"<special>"


class Chunks:
    """Token k is the k-th chunk."""

    special_ids: frozenset[int] = frozenset()

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    def token_bytes(self, id: int) -> bytes:
        return self.chunks[id]


def partitions(data: bytes) -> Iterator[list[bytes]]:
    """Every way to cut `data` in chunks."""
    for cuts in range(1 << (len(data) - 1)):
        chunks, begin = [], 0
        for end in range(1, len(data) + 1):
            if end == len(data) or cuts >> (end - 1) & 1:
                chunks.append(data[begin:end])
                begin = end
        yield chunks


@pytest.mark.parametrize("text", [LLAMA, "é", "한", "e\u0301", f"a{LLAMA}é", "\U0001f44d\U0001f3fd"])
def test_every_cut(text: str) -> None:
    for chunks in partitions(text.encode()):
        stream = Detokenizer(Chunks(chunks))
        given_out, data = "", b""
        for k, chunk in enumerate(chunks):
            given_out += stream.push([k])
            data += chunk
            assert given_out == data.decode(errors="ignore")  # all that is complete, at once
            assert stream.open == (given_out.encode() != data)
        assert given_out == text


@pytest.mark.parametrize("text", [FAMILY, "한국어를 씁니다", f"x{LLAMA}{FAMILY}é\n"])
def test_two_cuts_and_single_bytes(text: str) -> None:
    data = text.encode()
    cuts = [(i, j) for i in range(len(data)) for j in range(i, len(data))]
    for chunks in [[data[:i], data[i:j], data[j:]] for i, j in cuts] + [[bytes([b]) for b in data]]:
        stream = Detokenizer(Chunks(chunks))
        pieces = [stream.push([k]) for k in range(len(chunks))]
        assert "".join(pieces) == text and "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("text", [LLAMA, FAMILY, "é", "한"])
def test_cut_off(text: str) -> None:
    """Generation ends inside a character: its bytes are dropped, in a stream and in a full decode."""
    data = text.encode()
    tokenizer = default_tokenizer()
    byte = {tokenizer.token_bytes(i): i for i in range(256)}
    for end in range(len(data)):
        expected = data[:end].decode(errors="ignore")
        ids = [byte[bytes([b])] for b in data[:end]]
        assert Detokenizer(Bytes()).push(data[:end]) == expected
        assert tokenizer.decode(ids) == expected
        stream = TextStream(tokenizer, ["never"])
        assert stream.push(ids).text + stream.finish().text == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=4) | st.text(max_size=2).map(str.encode), max_size=8))
def test_bytes_that_are_no_text(chunks: list[bytes]) -> None:
    """U+FFFD stands for bytes that nothing can complete, as in one decode of the whole."""
    chunks.append(b".")
    stream = Detokenizer(Chunks(chunks))
    pieces = [stream.push([k]) for k in range(len(chunks))]
    whole = b"".join(chunks).decode(errors="replace")
    assert "".join(pieces) == whole
    assert Detokenizer(Chunks(chunks)).push(range(len(chunks))) == whole


def test_special_tokens() -> None:
    llama = list(LLAMA.encode())
    cut = [*llama[:2], SPECIAL, *llama[2:]]
    assert Detokenizer(Bytes()).push(cut) == LLAMA
    assert Detokenizer(Bytes(), skip_special=False).push(cut) == "\ufffd<special>\ufffd\ufffd"
    assert Detokenizer(Bytes(), skip_special=False).push([65, SPECIAL]) == "A<special>"
