"""Headers of GGUF files, sound ones and ones that lie."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from nextfit.checkpoint import gguf_header
from nextfit.checkpoint.gguf_header import read_header
from nextfit.errors import CheckpointError

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10
Tensor = tuple[str, Sequence[int], int, int]  # name, axes fastest first, type, offset


def text(s: str | bytes) -> bytes:
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def array(key: str, kind: int, count: int, payload: bytes) -> bytes:
    return entry(key, ARRAY, struct.pack("<IQ", kind, count) + payload)


def tensor(name: str, axes: Sequence[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, kind, offset)


def gguf(
    tmp_path: Path,
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> Path:
    """A GGUF file made of the given pieces; `counts` (tensors, entries) may lie."""
    head = b"GGUF" + struct.pack("<I2Q", version, *(counts or (len(tensors), len(entries))))
    head += b"".join(entries) + b"".join(tensors)
    path = tmp_path / "x.gguf"
    path.write_bytes(head + (bytes(-len(head) % alignment) + data if data else b""))
    return path


def test_values_of_every_type(tmp_path: Path) -> None:
    numbers = [
        (0, "B", 200),
        (1, "b", -3),
        (2, "H", 60000),
        (3, "h", -300),
        (4, "I", 1 << 31),
        (5, "i", -70000),
    ]
    numbers += [(6, "f", 1), (10, "Q", 1 << 63), (11, "q", -1), (12, "d", 1)]
    entries = [entry(f"n{t}", t, struct.pack(f"<{c}", v)) for t, c, v in numbers]
    entries += [array(f"a{t}", t, 2, struct.pack(f"<2{c}", v, v)) for t, c, v in numbers]
    entries += [entry("b", BOOL, b"\1"), array("bs", BOOL, 3, b"\0\1\0"), entry("s", STRING, text("é"))]
    entries += [array("ss", STRING, 2, text("") + text("日本")), array("none", U32, 0, b"")]
    for version in (2, 3):
        found = read_header(gguf(tmp_path, entries, version=version)).metadata
        for t, _, v in numbers:
            assert found[f"n{t}"] == v and found[f"a{t}"] == [v, v]
        assert found["b"] is True and found["bs"] == [False, True, False]
        assert (found["s"], found["ss"], found["none"]) == ("é", ["", "日本"], [])


@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_tensors_lie_where_the_alignment_puts_them(tmp_path: Path, alignment: int) -> None:
    entries = [entry("general.alignment", U32, struct.pack("<I", alignment))]
    second = -(-12 // alignment) * alignment
    tensors = [tensor("b", [256, 3], 12, second), tensor("a", [3], 0, 0)]
    path = gguf(tmp_path, entries, tensors, bytes(second) + bytes(3 * 144), alignment=alignment)
    b, a = read_header(path).tensors
    assert (a.name, a.format, a.shape, a.nbytes) == ("a", "f32", (3,), 12)
    assert (b.name, b.format, b.shape, b.nbytes) == ("b", "q4_k", (3, 256), 432)
    assert a.offset % alignment == 0 and b.offset == a.offset + second


def refused(path: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "0 bytes are too few"),
        (b"GGUF" + bytes(8), "12 bytes are too few"),
        (b"GGML" + bytes(40), "not a GGUF file: it starts with b'GGML'"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(40), "big endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(40), "GGUF version 1; versions 2 and 3"),
        (b"GGUF" + struct.pack("<I2Q", 3, 1 << 62, 0), "announces 4611686018427387904 tensors"),
        (b"GGUF" + struct.pack("<I2Q", 3, 0, 65537), "announces 65537 metadata entries"),
    ],
)
def test_starts_that_are_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    refused(path, message)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (entry("k", 13, bytes(8)), "value k has the unknown value type 13"),
        (
            entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1) + bytes(12)),
            "value k is an array of values of type 9",
        ),
        (
            entry("k", ARRAY, struct.pack("<IQ", 77, 1) + bytes(12)),
            "value k is an array of values of type 77",
        ),
        (array("k", U32, 1 << 40, bytes(8)), "array of 1099511627776 values in the metadata value k"),
        (array("k", U32, 1000, bytes(8)), "the file ends at byte .* inside the metadata value k"),
        (array("k", STRING, 1000, text("a")), "the file ends at byte .* inside the metadata value k"),
        (
            entry("k", STRING, struct.pack("<Q", 1000) + b"abc"),
            "the file ends .* inside the metadata value k",
        ),
        (
            entry("k", STRING, struct.pack("<Q", 1 << 60)),
            "a string of 1152921504606846976 bytes in the metadata",
        ),
        (entry("k", STRING, text(b"\xff\xfe")), "the metadata value k is not UTF-8 text"),
        (text(b"\xff") + bytes(8), "a metadata key is not UTF-8 text"),
        (text("k" * 2000) + bytes(8), "a string of 2000 bytes in a metadata key"),
        (entry("k", U64, bytes(4)), "the file ends .* inside the metadata value k"),
        (entry("k", U32, bytes(4)) * 2, "the metadata key k appears twice"),
    ],
)
def test_metadata_that_is_refused(tmp_path: Path, bad: bytes, message: str) -> None:
    twice = "twice" in message
    refused(gguf(tmp_path, [bad], counts=(0, 1 + twice)), message)


@pytest.mark.parametrize("value", [0, 3, 48, 1 << 21])
def test_alignments_that_are_refused(tmp_path: Path, value: int) -> None:
    entries = [entry("general.alignment", U32, struct.pack("<I", value))]
    refused(gguf(tmp_path, entries), f"general.alignment is {value}, expected a power of two")


def test_an_alignment_that_is_no_number(tmp_path: Path) -> None:
    refused(gguf(tmp_path, [entry("general.alignment", STRING, text("32"))]), "general.alignment is '32'")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([tensor("t", [], 0, 0)], "tensor t has 0 axes, expected 1 to 4"),
        ([tensor("t", [1] * 5, 0, 0)], "tensor t has 5 axes"),
        ([tensor("t", [4], 4, 0)], "tensor t has the unknown type number 4"),
        ([tensor("t", [4], 999, 0)], "tensor t has the unknown type number 999"),
        ([tensor("t", [256], 34, 0)], "tensor t has type TQ1_0, which is not supported"),
        ([tensor("t", [4, 0], 0, 0)], r"tensor t has the impossible shape \[0, 4\]"),
        ([tensor("t", [1 << 62, 8], 0, 0)], r"tensor t has the impossible shape \[8, 46"),
        ([tensor("t", [320], 12, 0)], "tensor t: rows of 320 elements are no whole number of q4_k blocks"),
        (
            [tensor("t", [8], 0, 1 << 63)],
            "tensor t ends at byte 9223372036854775904, but the file has 160 bytes",
        ),
        ([tensor("t", [25], 0, 0)], "tensor t ends at byte 164, but the file has 160 bytes"),
        ([tensor("t", [4], 0, 64)], "tensor t begins at byte 128, expected 64"),
        ([tensor("t", [4], 0, 4)], "tensor t begins at byte 68, expected 64"),
        ([tensor("t", [4], 0, 0)], "64 bytes after the last tensor belong to nothing"),
        ([tensor("t", [8], 0, 0), tensor("t", [8], 0, 32)], "tensor t appears twice"),
        ([tensor("t", [9], 0, 0), tensor("u", [8], 0, 32)], "tensor u begins at byte .*, expected"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, bad: list[bytes], message: str) -> None:
    refused(gguf(tmp_path, [], bad, bytes(96)), message)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    entries = [entry("a", U32, bytes(4)), array("b", STRING, 2, text("x") + text("y"))]
    tensors = [tensor("t", [8, 2], 0, 0), tensor("u", [256], 8, 64)]
    path = gguf(tmp_path, entries, tensors, bytes(64 + 272))
    read_header(path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="x.gguf"):
            read_header(path)


def test_a_header_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_header, "_LONGEST_HEADER", 100)
    path = gguf(tmp_path, [entry("k", STRING, text("x" * 90))], [tensor("t", [8], 0, 0)], bytes(32))
    refused(path, "the header is longer than 100 bytes; it has not ended with the metadata value k")


def test_lies_about_sizes_allocate_nothing(tmp_path: Path) -> None:
    lies = [
        gguf(tmp_path, [array("k", U64, (1 << 20), bytes(8))]),
        gguf(tmp_path, [array("k", STRING, (1 << 20), text("a"))]),
        gguf(tmp_path, [entry("k", STRING, struct.pack("<Q", (1 << 24) - 1))]),
        gguf(tmp_path, counts=(1 << 16, 1 << 16), data=bytes(32)),
    ]
    tracemalloc.start()
    for path in lies:
        with pytest.raises(CheckpointError):
            read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    refused(tmp_path / "absent.gguf", "No such file")
