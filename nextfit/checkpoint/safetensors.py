"""Headers of safetensors files, single and sharded. Nothing is read beyond them, and they are checked first.

File: 8 bytes header length (little endian), a JSON object name -> {dtype, shape, data_offsets}, the data.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from nextfit.checkpoint.formats import FORMATS
from nextfit.checkpoint.source import Source
from nextfit.errors import CheckpointError

INDEX = "model.safetensors.index.json"
_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit
_LONGEST_JSON = 64 << 20  # bytes of a file beside the tensors
_FIELDS = {"dtype", "shape", "data_offsets"}
_DTYPES = {
    "F64": "f64",
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "F8_E4M3": "f8_e4m3",
    "F8_E5M2": "f8_e5m2",
    "U8": "u8",
    "F8_E8M0": "u8",
    "I8": "i8",
    "I16": "i16",
    "I32": "i32",
    "I64": "i64",
}


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


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError."""
    try:
        size = file.stat().st_size
        if size > _LONGEST_JSON:
            raise CheckpointError(f"{file}: {size} bytes, expected at most {_LONGEST_JSON}")
        return parse_json(file.read_bytes(), str(file))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from None


def _header(file: Path) -> tuple[dict[str, Any], int, int]:
    """The header's object, where the data begins, and the file's size."""
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
            f.seek(8)
            return parse_json(f.read(length), f"{file}: header"), 8 + length, size
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from None


def _is_sizes(value: object) -> bool:
    """Whether `value` is a list of non-negative integers."""
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def _source(file: Path, name: str, entry: Any, start: int) -> Source:
    """One tensor of the header, its byte count checked against shape and dtype."""

    def refuse(what: str, found: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{file}: {name}: {what} is {brief(found)}, expected {expected}")

    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        raise refuse("the entry", entry, "an object of dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise refuse("dtype", dtype, f"one of {', '.join(_DTYPES)}")
    if not _is_sizes(shape):
        raise refuse("shape", shape, "a list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise refuse("data_offsets", offsets, "a start and an end")
    format, nbytes = _DTYPES[dtype], offsets[1] - offsets[0]
    wanted = prod(shape) * FORMATS[format].block_bytes
    if nbytes != wanted:
        raise CheckpointError(
            f"{file}: {name}: {nbytes} bytes of data, but shape {brief(shape)} of {dtype} needs {wanted}"
        )
    return Source(name, format, tuple(shape), file, start + offsets[0], nbytes)


def _check_coverage(file: Path, sources: list[Source], start: int, size: int) -> None:
    """The tensors fill the data without overlap, hole or rest, and end where the file ends."""
    at, before = start, "the header"
    for s in sources:
        if s.offset + s.nbytes > size:
            raise CheckpointError(
                f"{file}: {s.name} ends at byte {s.offset + s.nbytes}, past the end of the file "
                f"({size} bytes); it is truncated or damaged"
            )
    for s in sorted(sources, key=lambda s: (s.offset, s.nbytes)):
        if s.offset < at:
            raise CheckpointError(f"{file}: {s.name} overlaps {before} by {at - s.offset} bytes")
        if s.offset > at:
            raise CheckpointError(f"{file}: a hole of {s.offset - at} bytes between {before} and {s.name}")
        at, before = s.offset + s.nbytes, s.name
    if at != size:
        raise CheckpointError(f"{file}: {size - at} bytes after the last tensor belong to nothing")


def read_header(file: Path) -> list[Source]:
    """The tensors of one file, in the header's order. Raises CheckpointError for any lie in the header."""
    header, start, size = _header(file)
    header.pop("__metadata__", None)
    sources = [_source(file, name, entry, start) for name, entry in header.items()]
    _check_coverage(file, sources, start, size)
    return sources


def read_metadata(file: Path) -> dict[str, Any]:
    """The text that a file's writer put beside the tensors. Raises CheckpointError."""
    found = _header(file)[0].get("__metadata__", {})
    return found if isinstance(found, dict) else {}


def _index(file: Path) -> dict[str, list[str]]:
    """Shard file -> tensors that the index says it holds."""
    weights = read_json(file).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise CheckpointError(f"{file}: weight_map is {brief(weights)}, expected an object tensor -> file")
    shards: dict[str, list[str]] = {}
    for name, shard in weights.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{file}: {name} is in {brief(shard)}, expected the name of a safetensors file"
            )
        shards.setdefault(shard, []).append(name)
    return shards


def _sharded(index: Path) -> Iterator[Source]:
    """All tensors of the shards, which must hold exactly what the index says."""
    for shard, names in sorted(_index(index).items()):
        file = index.parent / shard
        if not file.is_file():
            raise CheckpointError(f"{file}: the shard is missing; {index.name} puts {names[0]} in it")
        sources = read_header(file)
        held = {s.name for s in sources}
        for name in names:
            if name not in held:
                raise CheckpointError(f"{file}: {name} is missing; {index.name} puts it in this file")
        listed = set(names)
        for name in held:
            if name not in listed:
                raise CheckpointError(f"{file}: {name} is in this file, which {index.name} does not say")
        yield from sources


def read_safetensors(path: Path) -> list[Source]:
    """The tensors of a `.safetensors` file or of a folder of them. Raises CheckpointError.

    A folder's index file says which shards belong to it; without one all its safetensors files do.
    """
    if path.is_file():
        return read_header(path)
    if (path / INDEX).is_file():
        return list(_sharded(path / INDEX))
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{path}: no safetensors file and no {INDEX} in this folder")
    found: dict[str, Source] = {}
    for file in files:
        for source in read_header(file):
            if source.name in found:
                other = found[source.name].file.name
                raise CheckpointError(f"{file}: {source.name} is in {other} too; there is no {INDEX}")
            found[source.name] = source
    return list(found.values())
