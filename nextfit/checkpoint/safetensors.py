"""Headers of safetensors files, single and sharded. Nothing is read beyond them, and they are checked first.

File: 8 bytes header length (little endian), a JSON object name -> {dtype, shape, data_offsets}, the data.

A checkpoint with one tensor for each expert has 300 thousand entries, so headers and the index are decoded
straight into types. What that refuses is decoded once more, slowly, to say which entry is wrong and why.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import repeat
from math import prod
from operator import attrgetter
from pathlib import Path
from reprlib import repr as brief
from typing import Annotated, Any, Literal, get_args

import msgspec

from nextfit.checkpoint.formats import FORMATS
from nextfit.checkpoint.source import Source
from nextfit.errors import CheckpointError

INDEX = "model.safetensors.index.json"
_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit
_LONGEST_JSON = 64 << 20  # bytes of a file beside the tensors

_Dtype = Literal[
    "F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "U8", "F8_E8M0", "I8", "I16", "I32", "I64"
]
_Size = Annotated[int, msgspec.Meta(ge=0)]
_FORMATS = {dtype: dtype.lower() for dtype in get_args(_Dtype)} | {"F8_E8M0": "u8"}


class _Entry(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A tensor as the header has it."""

    dtype: _Dtype
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]  # from the start of the data


class _Index(msgspec.Struct, forbid_unknown_fields=True):
    """The index of a sharded checkpoint: tensor -> file."""

    weight_map: dict[str, str]
    metadata: dict[str, int | float | str | None] | None = None


_KIND = attrgetter("format", "shape", "nbytes")
_ENTRIES = msgspec.json.Decoder(dict[str, _Entry])
_METADATA = re.compile(rb'\{\s*"__metadata__"\s*:\s*(\{[^{}]*\})\s*,\s*(?=")')


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise CheckpointError(f"{twice} is there twice")
    return found


def parse_json(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object without double keys. Raises CheckpointError naming `what`."""
    try:
        found = json.loads(text, object_pairs_hook=_object)
    except CheckpointError as error:
        raise CheckpointError(f"{what}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what}: no valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{what}: holds a {type(found).__name__}, expected an object")
    return found


def _read(file: Path) -> bytes:
    """A file beside the tensors, if it is not too long."""
    try:
        size = file.stat().st_size
        if size > _LONGEST_JSON:
            raise CheckpointError(f"{file}: {size} bytes, expected at most {_LONGEST_JSON}")
        return file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from None


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError."""
    return parse_json(_read(file), str(file))


def _header(file: Path) -> tuple[bytes, int, int]:
    """The header's text, where the data begins, and the file's size."""
    try:
        with file.open("rb") as f:
            size = os.fstat(f.fileno()).st_size
            length = int.from_bytes(f.read(8), "little")
            if size < 8 or length > size - 8:
                raise CheckpointError(
                    f"{file}: the header says it is {length} bytes long, the file has "
                    f"{max(size - 8, 0)} bytes for it; it is truncated or damaged"
                )
            if length > _LONGEST_HEADER:
                raise CheckpointError(
                    f"{file}: the header says it is {length} bytes long, expected at most {_LONGEST_HEADER}"
                )
            if f.read(1) != b"{" or os.pread(f.fileno(), 1, 7 + length) not in (b"}", b" "):
                raise CheckpointError(f"{file}: the header is no JSON object of {length} bytes")
            return b"{" + f.read(length - 1), 8 + length, size
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from None


def _usual_entries(text: bytes) -> dict[str, _Entry] | None:
    """The entries of a header with nothing unusual in it, else None.

    Every key of a JSON object has a colon after it. If there are no more colons than keys that were found, then
    no key was there twice (a decoder keeps the last), and none was left out.
    """
    metadata = b"{}"
    if found := _METADATA.match(text):
        metadata, text = found[1], b"{" + text[found.end() :]
    try:
        if len(msgspec.json.decode(metadata, type=dict[str, str])) != metadata.count(b":"):
            return None
        entries = _ENTRIES.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    keys = len(entries) * (1 + len(_Entry.__struct_fields__))
    return None if text.count(b":") != keys or "__metadata__" in entries else entries


def _is_sizes(value: object) -> bool:
    """Whether `value` is a list of non-negative integers."""
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def _entry(file: Path, name: str, entry: Any) -> _Entry:
    """One tensor of a header. Raises CheckpointError naming it and its field."""

    def refuse(what: str, found: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{file}: {name}: {what} is {brief(found)}, expected {expected}")

    if not isinstance(entry, dict) or entry.keys() != set(_Entry.__struct_fields__):
        raise refuse("the entry", entry, "an object of dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _FORMATS:
        raise refuse("dtype", dtype, f"one of {', '.join(_FORMATS)}")
    if not _is_sizes(shape):
        raise refuse("shape", shape, "a list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2:
        raise refuse("data_offsets", offsets, "a start and an end")
    return msgspec.convert(entry, _Entry)


def _entries(file: Path, text: bytes) -> dict[str, _Entry]:
    """Name -> entry, however the header is written. Raises CheckpointError naming what is wrong."""
    found = parse_json(text, f"{file}: header")
    found.pop("__metadata__", None)
    return {name: _entry(file, name, entry) for name, entry in found.items()}


def _check_sizes(sources: Collection[Source]) -> None:
    """Every tensor has as many bytes as its shape needs."""
    kinds = dict(zip(map(_KIND, sources), sources, strict=True))  # few, however many tensors there are
    for (format, shape, nbytes), s in kinds.items():
        wanted = prod(shape) * FORMATS[format].block_bytes
        if nbytes != wanted:
            raise CheckpointError(
                f"{s.file}: {s.name}: {nbytes} bytes of data, but shape {brief(list(shape))} of "
                f"{format.upper()} needs {wanted}"
            )


def _check_places(file: Path, entries: Mapping[str, _Entry], start: int, size: int) -> None:
    """The tensors fill the data without overlap, hole or rest, and end where the file ends."""
    placed = sorted((entry.data_offsets, name) for name, entry in entries.items())
    for (_, end), name in placed:
        if start + end > size:
            raise CheckpointError(
                f"{file}: {name} ends at byte {start + end}, past the end of the file ({size} bytes); "
                "it is truncated or damaged"
            )
    at, before = 0, "the header"
    for (first, end), name in placed:
        if first < at:
            raise CheckpointError(f"{file}: {name} overlaps {before} by {at - first} bytes")
        if first > at:
            raise CheckpointError(f"{file}: a hole of {first - at} bytes between {before} and {name}")
        at, before = end, name
    if start + at != size:
        raise CheckpointError(f"{file}: {size - start - at} bytes after the last tensor belong to nothing")


def read_header(file: Path) -> dict[str, Source]:
    """The tensors of one file by name, in the header's order. Raises CheckpointError for any lie in the header."""
    text, start, size = _header(file)
    entries = _usual_entries(text) or _entries(file, text)
    sources = []
    at, in_order = 0, True
    for name, entry in entries.items():
        first, end = entry.data_offsets
        sources.append(Source(name, _FORMATS[entry.dtype], entry.shape, file, start + first, end - first))
        in_order = in_order and first == at
        at = end
    _check_sizes(sources)
    if not in_order or start + at != size:
        _check_places(file, entries, start, size)
    return dict(zip(entries, sources, strict=True))


def read_metadata(file: Path) -> dict[str, Any]:
    """The text that a file's writer put beside the tensors. Raises CheckpointError."""
    found = parse_json(_header(file)[0], f"{file}: header").get("__metadata__", {})
    return found if isinstance(found, dict) else {}


def _usual_index(text: bytes) -> dict[str, str] | None:
    """The map of an index with nothing unusual in it, else None; see `_usual_entries`."""
    try:
        index = msgspec.json.decode(text, type=_Index)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    keys = 1 + len(index.weight_map) + (0 if index.metadata is None else 1 + len(index.metadata))
    return index.weight_map if text.count(b":") == keys else None


def _index(file: Path) -> dict[str, str]:
    """Tensor -> shard file that the index says holds it."""
    text = _read(file)
    if usual := _usual_index(text):
        return usual
    weights = parse_json(text, str(file)).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise CheckpointError(f"{file}: weight_map is {brief(weights)}, expected an object tensor -> file")
    for name, shard in weights.items():
        if not isinstance(shard, str):
            raise CheckpointError(f"{file}: {name} is in {brief(shard)}, expected the name of a file")
    return weights


def _sharded(index: Path) -> dict[str, Source]:
    """All tensors of the shards, which must hold exactly what the index says."""
    expected = _index(index)
    found: dict[str, Source] = {}
    for shard in sorted(set(expected.values())):
        file = index.parent / shard
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(f"{index}: {shard!r} is not the name of a safetensors file")
        if not file.is_file():
            name = next(name for name, of in expected.items() if of == shard)
            raise CheckpointError(f"{file}: the shard is missing; {index.name} puts {name} in it")
        held = read_header(file)
        if set(map(expected.pop, held, repeat(None))) - {shard}:
            name = next(name for name in held if _index(index).get(name) != shard)
            raise CheckpointError(f"{file}: {name} is in this file, which {index.name} does not say")
        found |= held
    for name, shard in expected.items():
        raise CheckpointError(f"{index.parent / shard}: {name} is missing; {index.name} puts it in this file")
    return found


def read_safetensors(path: Path) -> dict[str, Source]:
    """The tensors of a `.safetensors` file or of a folder of them, by name. Raises CheckpointError.

    A folder's index file says which shards belong to it; without one all its safetensors files do.
    """
    if path.is_file():
        return read_header(path)
    if (path / INDEX).is_file():
        return _sharded(path / INDEX)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{path}: no safetensors file and no {INDEX} in this folder")
    found: dict[str, Source] = {}
    for file in files:
        held = read_header(file)
        for name in held.keys() & found.keys():
            raise CheckpointError(f"{file}: {name} is in {found[name].file.name} too; there is no {INDEX}")
        found |= held
    return found
