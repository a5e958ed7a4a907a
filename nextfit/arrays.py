"""The .npy files of `nextfit logits`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextfit.errors import ConfigError


def read_ids(path: Path, vocab_size: int, context: int, at_least: int = 1) -> NDArray[np.int64]:
    """Token ids [n], `at_least` <= n <= `context`, each in 0..vocab_size-1. Raises ConfigError."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"--ids {path}: cannot be read as .npy: {error}") from None
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else "an archive"
        raise ConfigError(f"--ids {path}: holds {found}, expected one axis of integers")
    if not at_least <= len(array) <= context:
        raise ConfigError(f"--ids {path}: holds {len(array)} ids, expected {at_least} to {context}")
    wrong = np.flatnonzero((array < 0) | (array >= vocab_size))
    if len(wrong):
        first = int(wrong[0])
        raise ConfigError(f"--ids {path}: id {array[first]} at {first} is not within 0..{vocab_size - 1}")
    return array.astype(np.int64)


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write a .npy file that is whole or absent, whatever happens meanwhile."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, array, allow_pickle=False)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp keeps others out
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
