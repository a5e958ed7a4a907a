"""One step on the device: forward, sample, verify, then draft (design: rounds and sampling)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nextfit.engine.batch import Span, make_batch
from nextfit.engine.request import Sampled
from nextfit.engine.sampler import choose_tokens, describe
from nextfit.engine.scheduler import Rows
from nextfit.engine.sequence import Sequence
from nextfit.engine.verify import verify
from nextfit.model import Model, State

Depth = Callable[[Sequence, int], int]  # drafts for one of so many sequences that decode


@dataclass(frozen=True, slots=True)
class Advance:
    """Output tokens that one step gave one sequence."""

    sequence: Sequence
    tokens: tuple[Sampled, ...]


@dataclass(frozen=True, slots=True)
class _Committed:
    """Rows that became part of a sequence: from position `first`, followed by `followers` one later each."""

    sequence: Sequence
    first: int
    followers: list[int]
    streams: Tensor  # [rows, streams * hidden]
    decode: bool


@torch.no_grad()
def run_round(model: Model, state: State, rows: list[Rows], depth: Depth | None) -> list[Advance]:
    """Compute the scheduled rows, advance their sequences, and leave fresh drafts in them.

    `depth` says how many drafts a sequence gets; None if the engine never drafts. Otherwise the draft head sees
    all rows, also of requests that want no drafts: others may share them.
    """
    batch = make_batch([_span(r) for r in rows], model.device)
    before = {
        r.sequence.order: state.streams.tail[r.sequence.slot].clone() for r in rows if r.sequence.behind
    }
    streams = model.forward(batch, state)
    logits = _wanted_logits(model, streams, rows, batch.starts)
    advances, committed = [], []
    for r, start, own in zip(rows, batch.starts, logits, strict=False):
        s, first, count = r.sequence, r.sequence.computed, r.count
        if r.last:
            choices, raw = choose_tokens(own, s, s.drafts)
            new = verify(choices, s.drafts) if r.decode else choices
            count = len(new) if r.decode else count
            s.drafted += len(s.drafts)
            if r.decode:
                s.rounds += 1
                s.acceptance.note(len(s.drafts), len(new) - 1)
            out = s.accept(new)
            s.accepted += min(len(new) - 1, len(out))  # a draft at or behind an end is no part of the answer
            count = min(count, len(s.tokens) - first)  # rows past an end are not part of the sequence
            advances.append(Advance(s, describe(raw, out, s.request.params.logprobs)))
        s.drafts = []
        s.computed, s.replay = first + count, count if r.decode else 0
        if s.finish is None and depth and model.draft:
            own_streams = streams[start : start + count]
            if s.behind:
                first, own_streams = first - 1, torch.cat([before[s.order], own_streams])
            followers = s.tokens[first + 1 : s.computed + 1]
            committed.append(_Committed(s, first, followers, own_streams, r.decode))
        s.behind = False
    if depth and committed:
        _draft(model, state, committed, depth)
    return advances


def _span(r: Rows) -> Span:
    s = r.sequence
    return Span(s, s.computed, (s.tokens + s.drafts)[s.computed : s.computed + r.count], r.decode)


def _wanted_logits(
    model: Model, streams: Tensor, rows: list[Rows], starts: tuple[int, ...]
) -> tuple[Tensor, ...]:
    """Logits of every decode row and of the last row of each finished prompt, per scheduled entry."""
    picked: list[int] = []
    counts: list[int] = []
    decode = 0
    for r, start in zip(rows, starts, strict=False):
        count = r.count if r.decode else int(r.last)
        picked += range(start + r.count - count, start + r.count)
        counts.append(count)
        decode += count if r.decode else 0
    index = torch.tensor(picked, dtype=torch.int64, device=model.device)
    return model.logits(streams[index], decode).split(counts)


def _draft(model: Model, state: State, committed: list[_Committed], depth: Depth) -> None:
    """Run the draft head over the committed rows, then recursively on its own drafts.

    Rows on drafts are guesses: all that they leave is addressed by position and overwritten by the next round.
    """
    assert model.draft is not None
    device = model.device
    batch = make_batch([Span(c.sequence, c.first, c.followers, c.decode) for c in committed], device)
    z = model.draft.forward(torch.cat([c.streams for c in committed]), batch, state)
    decoding = [i for i, c in enumerate(committed) if c.sequence.decoding]
    wanted = {i: depth(committed[i].sequence, len(decoding)) for i in decoding}
    active = [i for i in decoding if wanted[i]]
    if not active:
        return
    z = z[torch.tensor([batch.starts[i + 1] - 1 for i in active], device=device)]
    live = [(committed[i].sequence, wanted[i]) for i in active]
    while True:
        logits = model.draft.logits(z, len(live))
        for (s, _), row in zip(live, logits, strict=True):
            s.drafts += choose_tokens(row[None], s, s.drafts, after=len(s.drafts))[0]
        more = [i for i, (s, count) in enumerate(live) if len(s.drafts) < count]
        if not more:
            break
        live = [live[i] for i in more]
        spans = [Span(s, len(s.tokens) - 2 + len(s.drafts), s.drafts[-1:], True) for s, _ in live]
        z = model.draft.forward(z[more], make_batch(spans, device), state)
