"""The prefix cache in a file, so that a new engine begins with what the last one knew.

A safetensors file. For entry i, which resumes from snapshot i: `entry.i.key` are its tokens and `entry.i.pages` their
pages by number in the file; `slots.n` and `pages.n` are the n-th tensors of `State.committed` and `State.paged`, one
row for each snapshot or page. The metadata says what the file belongs to, and has the SHA-256 of all the rest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from nextfit.cache import TOKEN_BYTES
from nextfit.cache.stock import Entry, take_stock, take_up
from nextfit.checkpoint.safetensors import read_header, read_metadata
from nextfit.checkpoint.source import Source
from nextfit.engine.snapshots import Snapshots
from nextfit.errors import CheckpointError, ConfigError

log = logging.getLogger("nextfit")

FORMAT = "NextFit prefix cache 1"
_NO_DIGEST = "0" * 64  # stands in the place of the digest while that is computed
_CHUNK = 16 << 20  # bytes handled at a time
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
}
Progress = Callable[[int, int], object]  # bytes done, bytes in all


class CacheFile:
    """The file at `path` for engines of one `identity`: whatever else makes state useless to another engine."""

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        """Raises ConfigError if no file can be written there."""
        self.path, self._identity = path, dict(identity)
        self._untouchable = False  # what lies there is not ours to replace
        self._others = False  # what lies there is of another identity
        try:
            if path.is_dir():
                raise IsADirectoryError("it is a folder")
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
                pass
        except OSError as error:
            raise ConfigError(f"--cache-file {path}: cannot be written: {error.strerror or error}") from None

    def load(self, snapshots: Snapshots) -> None:
        """Fill the cache, which is empty, from the file if it is there and fits.

        A file of another identity is reported, and replaced as soon as there is something to save. One that cannot be
        read, or is something else, is reported and left alone for good. Neither is a reason not to serve.
        """
        if not self.path.exists():
            return
        try:
            self._load(snapshots)
        except (CheckpointError, OSError, KeyError, ValueError, RuntimeError) as error:
            snapshots.cache.flush()
            self._untouchable = True
            log.error(
                "%s: no prefix cache that can be read (%s); it stays as it is, nothing will be saved",
                self.path,
                error,
            )

    def _load(self, snapshots: Snapshots) -> None:
        metadata = read_metadata(self.path)
        if metadata.get("format") != FORMAT:
            raise ValueError(f"its format is {metadata.get('format')!r}, expected {FORMAT!r}")
        other = [name for name, value in self._identity.items() if metadata.get(name) != value]
        if other:
            self._others = True
            log.warning(
                "%s: the saved prefix cache has other %s; it is not used", self.path, ", ".join(other)
            )
            return
        sources = read_header(self.path)
        if _digest(self.path, metadata["sha256"]) != metadata["sha256"]:
            raise ValueError("its checksum is wrong")
        size = self.path.stat().st_size
        data = torch.from_file(str(self.path), shared=False, size=size, dtype=torch.uint8)
        entries = [
            _entry(data, sources, i, snapshots.cache.page_size) for i in range(int(metadata["entries"]))
        ]
        state = [(_rows(data, sources[name], tensor), tensor, name) for name, tensor in _tensors(snapshots)]
        numbers, pages = take_up(snapshots.cache, entries)
        slots = {i: snapshots.slot(number) for i, number in numbers.items()}
        for rows, tensor, name in state:
            _copy(rows, tensor, slots if name.startswith("slots.") else pages)
        fields = {"snapshots": len(slots), "pages": len(pages), "of": len(entries)}
        log.info("prefix cache loaded", extra={"fields": fields})

    def save(self, snapshots: Snapshots, progress: Progress = lambda done, total: None) -> None:
        """Put the cache into the file: whole, or as it was before. What prevents it is reported."""
        stock = take_stock(snapshots.cache)
        if self._untouchable or (self._others and not stock.entries):
            return
        parts = []
        for i, entry in enumerate(stock.entries):
            key = torch.frombuffer(bytearray(entry.key), dtype=torch.int32)
            parts += [_whole(f"entry.{i}.key", key), _whole(f"entry.{i}.pages", torch.tensor(entry.pages))]
        slots = [snapshots.slot(n) for n in stock.snapshots]
        for name, tensor in _tensors(snapshots):
            parts.append(_Part(name, tensor, slots if name.startswith("slots.") else stock.pages))
        metadata = {"format": FORMAT, "entries": str(len(stock.entries)), **self._identity}
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "w+b") as file:
                _write(file, metadata, parts, progress)
            os.replace(name, self.path)
        except BaseException as error:
            os.unlink(name)
            if not isinstance(error, OSError):
                raise
            log.error("%s: the prefix cache could not be saved: %s", self.path, error)
        else:
            fields = {"snapshots": len(slots), "pages": len(stock.pages)}
            log.info("prefix cache saved", extra={"fields": fields})


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a tensor, as they go into the file."""

    name: str
    tensor: Tensor
    rows: list[int]

    @property
    def nbytes(self) -> int:
        return len(self.rows) * self.tensor[:1].nbytes

    def describe(self, start: int) -> dict[str, object]:
        shape = [len(self.rows), *self.tensor.shape[1:]]
        return {
            "dtype": _TYPES[self.tensor.dtype],
            "shape": shape,
            "data_offsets": [start, start + self.nbytes],
        }

    def chunks(self) -> Iterator[memoryview]:
        at_once = max(1, _CHUNK // max(1, self.tensor[:1].nbytes))
        for i in range(0, len(self.rows), at_once):
            rows = self.tensor[torch.tensor(self.rows[i : i + at_once], device=self.tensor.device)]
            yield rows.cpu().flatten().view(torch.uint8).numpy().data


def _whole(name: str, tensor: Tensor) -> _Part:
    return _Part(name, tensor, list(range(len(tensor))))


def _tensors(snapshots: Snapshots) -> Iterator[tuple[str, Tensor]]:
    """What the file has rows of."""
    yield from ((f"slots.{i}", t) for i, t in enumerate(snapshots.state.committed()))
    yield from ((f"pages.{i}", t) for i, t in enumerate(snapshots.state.paged()))


def _write(file: IO[bytes], metadata: dict[str, str], parts: list[_Part], progress: Progress) -> None:
    header: dict[str, object] = {"__metadata__": {"sha256": _NO_DIGEST, **metadata}}
    total = 0
    for part in parts:
        header[part.name] = part.describe(total)
        total += part.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    found, done = hashlib.sha256(), 0
    for data in (len(text).to_bytes(8, "little"), text):
        file.write(data)
        found.update(data)
    for part in parts:
        for chunk in part.chunks():
            file.write(chunk)
            found.update(chunk)
            done += len(chunk)
            progress(done, total)
    file.seek(8 + text.index(_NO_DIGEST.encode()))
    file.write(found.hexdigest().encode())
    file.flush()
    os.fsync(file.fileno())


def _digest(path: Path, written: str) -> str:
    """What the digest of the file should be; `written` is the one in its header."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        length = file.read(8)
        text = file.read(int.from_bytes(length, "little"))
        found.update(length + text.replace(written.encode(), _NO_DIGEST.encode(), 1))
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _bytes(data: Tensor, source: Source) -> Tensor:
    return data[source.offset : source.offset + source.nbytes]


def _entry(data: Tensor, sources: Mapping[str, Source], i: int, page_size: int) -> Entry:
    key = bytes(_bytes(data, sources[f"entry.{i}.key"]).numpy())
    pages = _bytes(data, sources[f"entry.{i}.pages"]).clone().view(torch.int64).tolist()
    if len(key) != len(pages) * page_size * TOKEN_BYTES:
        raise ValueError(f"entry {i} has {len(key)} bytes of tokens for {len(pages)} pages")
    return Entry(key, pages)


def _rows(data: Tensor, source: Source, like: Tensor) -> Tensor:
    """The rows of a tensor in the file, [rows, bytes of one] uint8."""
    if source.shape[1:] != tuple(like.shape[1:]) or source.nbytes != source.shape[0] * like[:1].nbytes:
        raise ValueError(f"{source.name} has rows of {source.shape[1:]}, expected {tuple(like.shape[1:])}")
    return _bytes(data, source).view(-1, like[:1].nbytes)


def _copy(rows: Tensor, tensor: Tensor, places: Mapping[int, int]) -> None:
    """Row i of the file becomes row `places[i]` of `tensor`."""
    out = tensor.view(len(tensor), -1).view(torch.uint8)
    at_once = max(1, _CHUNK // rows.shape[1])
    numbers = torch.tensor(list(places.items()), dtype=torch.int64).view(-1, 2)
    for part in numbers.split(at_once):
        out[part[:, 1].to(out.device)] = rows[part[:, 0]].to(out.device)
