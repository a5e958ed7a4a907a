"""The header of one GGUF file: metadata and where each tensor lies. Nothing in it is trusted.

Layout (versions 2 and 3, little endian): "GGUF", u32 version, u64 tensors, u64 metadata entries; each
entry is a key string, a u32 value type and the value; each tensor a name string, u32 axes, u64 sizes
(fastest axis first), u32 type and u64 offset from the start of the data, which begins at the next
multiple of `general.alignment`. A string is a u64 length and UTF-8 bytes.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from nextfit.checkpoint.formats import FORMATS, GGML_TYPES, data_bytes
from nextfit.checkpoint.source import Source
from nextfit.errors import CheckpointError

Metadata = dict[str, Any]  # int, float, bool, str, or a list of one of these

_VERSIONS = (2, 3)
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")

# Far above any real file (the released model: 60 entries, 1300 tensors, 250 thousand tokens), and small
# enough that a header which lies cannot make the reader allocate much before it is caught.
_MOST_ENTRIES = 1 << 16
_LONGEST_ARRAY = 1 << 20
_LONGEST_STRING = 1 << 24
_LONGEST_NAME = 1 << 10
_MOST_AXES = 4
_LONGEST_HEADER = 1 << 28
_LARGEST_ALIGNMENT = 1 << 20


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What one file (or one shard) declares."""

    path: Path
    metadata: Metadata
    tensors: list[Source]  # in the order of the header


class _Cursor:
    """Reads values one after the other; every read is checked against the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = min(len(data), _LONGEST_HEADER)
        self.at = 0

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {message}")

    def end(self, what: str) -> CheckpointError:
        if len(self.data) > self.size:
            return self.error(f"the header is longer than {self.size} bytes; it has not ended with {what}")
        return self.error(f"the file ends at byte {self.size}, inside {what}")

    def number(self, form: struct.Struct, what: str) -> Any:
        if self.at + form.size > self.size:
            raise self.end(what)
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def string(self, what: str, longest: int = _LONGEST_STRING) -> str:
        return self.strings(1, what, longest)[0]

    def strings(self, count: int, what: str, longest: int = _LONGEST_STRING) -> list[str]:
        """`count` strings; written for arrays of hundreds of thousands."""
        data, size, at, length_at = self.data, self.size, self.at, _U64.unpack_from
        out = []
        for _ in range(count):
            start = at + 8
            if start > size:
                raise self.end(what)
            (length,) = length_at(data, at)
            at = start + length
            if at > size or length > longest:
                if length > longest:
                    raise self.error(f"a string of {length} bytes in {what} (at most {longest})")
                raise self.end(what)
            out.append(data[start:at])
        self.at = at
        try:
            return [x.decode() for x in out]
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8 text") from error

    def array(self, what: str) -> list[Any]:
        kind = self.number(_U32, what)
        count = self.number(_U64, what)
        if count > _LONGEST_ARRAY:
            raise self.error(f"an array of {count} values in {what} (at most {_LONGEST_ARRAY})")
        if kind == _STRING:
            return self.strings(count, what)
        if kind not in _SCALARS:
            raise self.error(f"{what} is an array of values of type {kind}, which is none or not supported")
        code = _SCALARS[kind].format[1:]
        form = struct.Struct(f"<{count}{code}")
        if self.at + form.size > self.size:
            raise self.end(what)
        values = list(form.unpack_from(self.data, self.at))
        self.at += form.size
        return values

    def value(self, what: str) -> Any:
        kind = self.number(_U32, what)
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what)
        if kind not in _SCALARS:
            raise self.error(f"{what} has the unknown value type {kind}")
        return self.number(_SCALARS[kind], what)


def read_header(path: Path) -> GgufFile:
    """Metadata and tensors of the file at `path`, every offset and size checked against the file.

    Raises CheckpointError naming the file, the key or tensor, what was found and what was expected.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size < 24:
                raise CheckpointError(f"{path}: {path.stat().st_size} bytes are too few for a GGUF header")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(_Cursor(path, data))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error


def _parse(c: _Cursor) -> GgufFile:
    if c.data[:4] != b"GGUF":
        raise c.error(f"not a GGUF file: it starts with {c.data[:4]!r}")
    c.at = 4
    version = c.number(_U32, "the header")
    if version not in _VERSIONS:
        if int.from_bytes(struct.pack("<I", version), "big") in _VERSIONS:
            raise c.error("the file is big endian; only little endian GGUF files are read")
        raise c.error(f"GGUF version {version}; versions 2 and 3 are read")
    tensors = c.number(_U64, "the header")
    entries = c.number(_U64, "the header")
    for count, what in ((tensors, "tensors"), (entries, "metadata entries")):
        if count > _MOST_ENTRIES:
            raise c.error(f"the header announces {count} {what} (at most {_MOST_ENTRIES})")
    metadata: Metadata = {}
    for _ in range(entries):
        key = c.string("a metadata key", _LONGEST_NAME)
        if key in metadata:
            raise c.error(f"the metadata key {key} appears twice")
        metadata[key] = c.value(f"the metadata value {key}")
    infos = [_tensor_info(c) for _ in range(tensors)]
    return GgufFile(c.path, metadata, _place(c, infos, _alignment(c, metadata)))


def _alignment(c: _Cursor, metadata: Metadata) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 0 < value <= _LARGEST_ALIGNMENT or value & (value - 1):
        raise c.error(f"general.alignment is {value!r}, expected a power of two up to {_LARGEST_ALIGNMENT}")
    return value


def _tensor_info(c: _Cursor) -> tuple[str, tuple[int, ...], str, int]:
    """Name, shape (outermost axis first), format and offset of the next tensor."""
    name = c.string("a tensor name", _LONGEST_NAME)
    what = f"the header of tensor {name}"
    axes = c.number(_U32, what)
    if not 1 <= axes <= _MOST_AXES:
        raise c.error(f"tensor {name} has {axes} axes, expected 1 to {_MOST_AXES}")
    shape = tuple(c.number(_U64, what) for _ in range(axes))[::-1]
    kind = c.number(_U32, what)
    offset = c.number(_U64, what)
    if kind not in GGML_TYPES:
        raise c.error(f"tensor {name} has the unknown type number {kind}")
    if GGML_TYPES[kind] not in FORMATS:
        raise c.error(f"tensor {name} has type {GGML_TYPES[kind].upper()}, which is not supported")
    if 0 in shape or prod(shape) > 1 << 48:
        raise c.error(f"tensor {name} has the impossible shape {list(shape)}")
    return name, shape, GGML_TYPES[kind], offset


def _place(c: _Cursor, infos: list[tuple[str, tuple[int, ...], str, int]], alignment: int) -> list[Source]:
    """Tensors at their place in the file. They fill it: a gap is an offset, shape or type that lies."""
    start = _up(c.at, alignment)
    out: dict[str, Source] = {}
    for name, shape, format, offset in infos:
        try:
            size = data_bytes(format, shape)
        except CheckpointError as error:
            raise c.error(f"tensor {name}: {error}") from error
        if name in out:
            raise c.error(f"tensor {name} appears twice")
        end = start + offset + size
        if end > len(c.data):
            raise c.error(f"tensor {name} ends at byte {end}, but the file has {len(c.data)} bytes")
        out[name] = Source(name, format, shape, c.path, start + offset, size)
    at = start
    for source in sorted(out.values(), key=lambda s: s.offset):
        if source.offset != at:
            raise c.error(f"tensor {source.name} begins at byte {source.offset}, expected {at}")
        at = _up(at + source.nbytes, alignment)
    if out and len(c.data) > at:
        raise c.error(f"{len(c.data) - at} bytes after the last tensor belong to nothing")
    return list(out.values())


def _up(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
