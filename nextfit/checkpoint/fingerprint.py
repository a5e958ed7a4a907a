"""Whether weights are still the same, without reading all of them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from nextfit.checkpoint import Checkpoint

_SAMPLES = 64  # of each file, evenly spread
_SAMPLE = 4096  # bytes


def fingerprint(checkpoint: Checkpoint) -> str:
    """A hash of each weight file's name, size, time of change and some of its bytes.

    Another copy of the same files counts as others; a changed file that keeps its size, time and samples does not.
    """
    pieces = checkpoint.tensors.pieces
    files = {s.file for piece in pieces for source in piece.sources.values() for s in source.members}
    found = hashlib.sha256()
    for file in sorted(files):
        _add(found, file)
    return found.hexdigest()


def _add(found: hashlib._Hash, file: Path) -> None:
    with file.open("rb") as f:
        status = os.fstat(f.fileno())
        found.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        for i in range(_SAMPLES):
            found.update(os.pread(f.fileno(), _SAMPLE, status.st_size * i // _SAMPLES))
