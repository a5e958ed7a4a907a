"""Drives a model by hand: sequences with their slots and pages, cut into steps however a test likes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nextfit.memory.plan_engine import widened_numbers
from nextfit.model import Model, StateShape, new_buffers
from nextfit.ops.batch import Batch


@dataclass
class Line:
    """One sequence in the state; `replay` rows of its last decode step wait for their commit."""

    slot: int
    pages: list[int]
    computed: int = 0
    replay: int = 0


@dataclass(frozen=True)
class Rows:
    line: Line
    tokens: list[int]
    decode: bool = False


class Session:
    """A state with `slots` sequences of at most `capacity` tokens each."""

    def __init__(
        self, model: Model, capacity: int, slots: int = 2, page_size: int = 16, window: int = 5
    ) -> None:
        self.model, self.page_size = model, page_size
        self.width = -(-(capacity + 1) // page_size)
        self.state = model.new_state(StateShape(slots + 1, slots * self.width + 1, page_size, window))
        rows = slots * (capacity + window)
        space = 8 * widened_numbers(model.config)
        self.buffers = new_buffers(
            model.config, model.dtype, rows, rows, (slots, self.width), space, model.take
        )

    def line(self, slot: int = 1) -> Line:
        """A new sequence in `slot` (1, 2, ...), its pages in falling order."""
        first = slot * self.width
        return Line(slot, list(range(first, first - self.width, -1)))

    def batch(self, rows: Sequence[Rows], firsts: Sequence[int]) -> Batch:
        """Slots are a column of a wider table, as an engine that keeps one may pass them."""
        decode = [r.decode for r in rows]
        assert decode == sorted(decode, reverse=True), "decode rows come first"
        table = torch.full((len(rows), 5), -1, dtype=torch.int64)
        table[:, 0] = torch.tensor([r.line.slot for r in rows])
        return Batch(
            tokens=torch.tensor([t for r in rows for t in r.tokens]),
            lengths=tuple(len(r.tokens) for r in rows),
            firsts=tuple(firsts),
            slots=table[:, 0],
            replay=torch.tensor([r.line.replay for r in rows]),
            pages=torch.tensor([r.line.pages for r in rows]),
            decode_sequences=sum(decode),
        )

    def step(self, rows: Sequence[Rows], accepted: Sequence[int] | None = None) -> list[Tensor]:
        """Streams of each entry, [its rows, streams * hidden]; `accepted` rows of a decode entry count."""
        batch = self.batch(rows, [r.line.computed for r in rows])
        streams = self.model.forward(batch, self.state, self.buffers).clone()
        for i, r in enumerate(rows):
            count = len(r.tokens) if accepted is None or not r.decode else accepted[i]
            r.line.computed += count
            r.line.replay = count if r.decode else 0
        return list(streams.split(batch.lengths))

    def draft(self, rows: Sequence[Rows], streams: Tensor, firsts: Sequence[int]) -> Tensor:
        """The draft head over rows at `firsts`; `rows` hold the tokens one position later."""
        assert self.model.draft is not None
        self.buffers.handed[: len(streams)] = streams
        return self.model.draft.forward(self.batch(rows, firsts), self.state, self.buffers).clone()

    def logits(self, streams: Tensor, decode_rows: int = 0) -> Tensor:
        """Of the trunk."""
        return self.model.logits(streams, decode_rows, self.buffers).clone()

    def draft_logits(self, streams: Tensor, decode_rows: int = 0) -> Tensor:
        assert self.model.draft is not None
        return self.model.draft.logits(streams, decode_rows, self.buffers).clone()


def cuts(n: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of the given sizes, over and over, up to n."""
    at, i = 0, 0
    while at < n:
        end = min(n, at + sizes[i % len(sizes)])
        yield at, end
        at, i = end, i + 1


@torch.no_grad()
def trunk_logits(
    model: Model, ids: list[int], sizes: Sequence[int] = (1 << 20,), decode: bool = False, page_size: int = 16
) -> Tensor:
    """Logits of every token of a sequence computed in steps of `sizes` rows, [tokens, vocabulary]."""
    sizes = [min(s, len(ids)) for s in sizes]
    session = Session(model, len(ids), page_size=page_size, window=max(sizes) if decode else 1)
    line, out = session.line(), []
    for a, b in cuts(len(ids), sizes):
        (streams,) = session.step([Rows(line, ids[a:b], decode)])
        out.append(session.logits(streams, b - a if decode else 0))
    return torch.cat(out)


def text(n: int, vocabulary: int, seed: int = 0, marks: dict[int, int] | None = None) -> list[int]:
    """n random token ids; `marks` puts given ids at given places."""
    g = torch.Generator().manual_seed(1000 + seed)
    ids = torch.randint(0, vocabulary - 32, (n,), generator=g).tolist()
    for at, token in (marks or {}).items():
        ids[at] = token
    return ids
