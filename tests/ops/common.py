"""Batches for tests of single operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nextfit.ops.batch import Batch

SPACE = torch.empty(1 << 20, dtype=torch.uint8)  # for widened weights
ROWS = [1, 5, 31, 32, 33, 63, 64, 65]  # around every size at which a kernel may change its mind


def batch(
    lengths: Sequence[int],
    firsts: Sequence[int] | None = None,
    decode: int = 0,
    *,
    slots: Sequence[int] | None = None,
    replay: Sequence[int] | None = None,
    pages: torch.Tensor | None = None,
) -> Batch:
    n = len(lengths)
    return Batch(
        tokens=torch.zeros(sum(lengths), dtype=torch.int64),
        lengths=tuple(lengths),
        firsts=tuple(firsts or [0] * n),
        slots=torch.tensor(slots or list(range(1, n + 1))),
        replay=torch.tensor(replay or [0] * n),
        pages=torch.zeros(n, 1, dtype=torch.int64) if pages is None else pages,
        decode_sequences=decode,
    )


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
