"""The indexer: which rows end a block, and the deterministic choice of each row's blocks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nextfit.ops.batch import Batch
from nextfit.ops.precision import wide
from nextfit.ops.select import top_k_ascending

TILE = 1024  # blocks scored at a time, whatever the history
ROWS = 32  # for which they are, whatever the step


def completing_rows(batch: Batch, ratio: int) -> Tensor:
    """Rows that complete a block of `ratio` tokens, [n] int64."""
    return ((batch.positions + 1) % ratio == 0).nonzero()[:, 0]


def best_blocks(query: Tensor, keys: Callable[[int, int], Tensor], visible: Tensor, k: int) -> Tensor:
    """The k best blocks of each row in ascending order, [rows, k] int64; of equal scores the lower block.

    query [rows, heads, dim], keys(first, end) the keys [end - first, dim] of blocks, visible [rows]: complete
    blocks each row may see, all >= k.
    Blocks are scored tile by tile for some rows at a time and only the best k are kept, so memory grows neither with
    the history nor with the rows.
    """
    parts = zip(query.split(ROWS), visible.split(ROWS), strict=True)
    return torch.cat([_best_blocks(q, keys, v, k) for q, v in parts])


def _best_blocks(query: Tensor, keys: Callable[[int, int], Tensor], visible: Tensor, k: int) -> Tensor:
    w = wide(query.dtype)
    q = query.to(w)

    def score(first: int, last: int) -> Tensor:
        dots = q.flatten(0, 1) @ keys(first, last).to(w).T
        total = dots.relu_().unflatten(0, q.shape[:2]).sum(1) / math.sqrt(q.shape[2])
        hidden = torch.arange(first, last, device=q.device) >= visible[:, None]
        return total.masked_fill_(hidden, -torch.inf)

    ids = torch.arange(k, device=q.device).expand(len(q), k)
    best, end = score(0, k), int(visible.max())
    for first in range(k, end, TILE):
        last = min(first + TILE, end)
        scores = torch.cat([best, score(first, last)], dim=1)
        new = torch.arange(first, last, device=q.device).expand(len(q), -1)
        chosen = top_k_ascending(scores, k)
        best, ids = scores.gather(1, chosen), torch.cat([ids, new], dim=1).gather(1, chosen)
    return ids
