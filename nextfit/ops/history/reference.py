from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nextfit.ops.batch import Batch
from nextfit.ops.precision import wide

TILE = 256  # rows that are wide at a time


@dataclass(frozen=True, slots=True)
class History:
    """The last inputs of each recurrent slot."""

    tail: Tensor  # [slots, reach, channels], committed, oldest first
    log: Tensor  # [slots, window, channels], rows of the last verify step, committed by the next step
    initial: int = 0  # what stands before a sequence's first row


@dataclass(frozen=True, slots=True)
class Extended:
    """The rows of a step, each sequence preceded by its tail."""

    values: Tensor  # [sequences * reach + rows, channels]
    index: Tensor  # [rows] int64: where each row stands in `values`
    spans: tuple[tuple[int, int], ...]  # of each sequence: where its first row stands, and how many it has

    def back(self, n: int) -> Tensor:
        """The input n rows before each row, [rows, channels]; n at most the reach."""
        return self.values[self.index - n]


def commit(history: History, slots: Tensor, replay: Tensor) -> Tensor:
    """Tails [n, reach, channels] of `slots` [n] after the first `replay` [n] logged rows; written back too."""
    reach = history.tail.shape[1]
    known = torch.cat([history.tail[slots], history.log[slots]], dim=1)
    keep = replay[:, None] + torch.arange(reach, device=slots.device)
    tail = known.gather(1, keep[:, :, None].expand(-1, -1, known.shape[2]))
    history.tail[slots] = tail
    return tail


def extend(history: History, batch: Batch, x: Tensor) -> Extended:
    """Commit the accepted rows of the last verify, then append x [rows, channels] (design: deferred commit).

    Decode rows are logged; of prefill rows the last ones become the tail.
    """
    reach, n, d = history.tail.shape[1], len(batch.lengths), batch.decode_sequences
    tail = commit(history, batch.slots, batch.replay)
    if 0 in batch.firsts:
        tail = torch.where(batch.fresh[:, None, None], history.initial, tail)
        history.tail[batch.slots] = tail
    pieces = [p for s in range(n) for p in (tail[s], x[batch.starts[s] : batch.starts[s + 1]])]
    values = torch.cat(pieces)
    index = torch.arange(len(x), device=x.device) + (batch.sequence + 1) * reach
    if d:
        rows = batch.decode_rows
        history.log[batch.slots[batch.sequence[:rows]], batch.offset[:rows]] = x[:rows]
    if d < n:
        ends = torch.tensor(batch.starts[d + 1 :], device=x.device)
        ends = ends + (torch.arange(d, n, device=x.device) + 1) * reach
        history.tail[batch.slots[d:]] = values[ends[:, None] + torch.arange(-reach, 0, device=x.device)]
    spans = tuple(
        (a + (s + 1) * reach, c) for s, (a, c) in enumerate(zip(batch.starts, batch.lengths, strict=False))
    )
    return Extended(values, index, spans)


def remember(history: History, batch: Batch, x: Tensor) -> None:
    """`extend` for a reach of 1 whose window nobody needs in this step: keep each sequence's last row of x."""
    commit(history, batch.slots, batch.replay)
    n, d = batch.decode_rows, batch.decode_sequences
    history.log[batch.slots[batch.sequence[:n]], batch.offset[:n]] = x[:n]
    last = torch.tensor(batch.starts[d + 1 :], dtype=torch.int64, device=x.device) - 1
    history.tail[batch.slots[d:], 0] = x[last]


def causal_conv(extended: Extended, taps: Tensor, dilation: int = 1) -> Tensor:
    """Depthwise convolution of each sequence: sum over i of taps[:, i] * x[row - dilation * (K - 1 - i)].

    taps [channels, K], the last one for the current row. Computed in the wide type, rounded once.
    """
    x, w = extended.values, taps.T.to(wide(extended.values.dtype))
    k, reach = len(w), dilation * (len(w) - 1)
    y = x.new_empty(len(extended.index), x.shape[1])
    row = 0
    for first, n in extended.spans:
        for start in range(first, first + n, TILE):
            end = min(start + TILE, first + n)
            window = x[start - reach : end].to(w.dtype)
            out = window[reach:] * w[k - 1]
            for i in range(k - 1):
                out.addcmul_(window[dilation * i : dilation * i + end - start], w[i])
            y[row : row + end - start] = out
            row += end - start
    return y
