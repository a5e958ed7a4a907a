"""One step on the device: forward, sample, verify, then draft (design: rounds and sampling)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nextfit.engine.batch import PageTables, Span, make_batch, next_rows, take
from nextfit.engine.request import Sampled
from nextfit.engine.sampler import Wanted, choose_tokens, describe
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
    """Rows that became part of a sequence, by their numbers in the step's streams."""

    sequence: Sequence
    first: int  # position of the first one
    followers: list[int]  # the token after each
    rows: list[int]
    decode: bool


@torch.no_grad()
def run_round(
    model: Model, state: State, tables: PageTables, rows: list[Rows], depth: Depth | None
) -> list[Advance]:
    """Compute the scheduled rows, advance their sequences, and leave fresh drafts in them.

    `depth` says how many drafts a sequence gets; None if the engine never drafts. Otherwise the draft head sees
    all rows, also of requests that want no drafts: others may share them.
    """
    behind = [r.sequence.slot for r in rows if r.sequence.behind]
    before = state.streams.tail[behind, 0] if behind else None  # now: the step replaces them
    batch = make_batch([_span(r) for r in rows], tables)
    streams = model.forward(batch, state)
    choices, raw = _choose(model, streams, rows, batch.starts)
    advances, committed, at = [], [], 0
    for r, start in zip(rows, batch.starts, strict=False):
        s, first, last = r.sequence, r.sequence.computed, r.last
        own = choices.pop(0) if last else []
        tokens = _advance(r, own)
        if last:
            advances.append(Advance(s, describe(raw[at:], tokens, s.request.params.logprobs)))
            at += len(own)
        if s.finish is None and depth:
            numbers = list(range(start, start + s.computed - first))
            if s.behind:
                first, numbers = first - 1, [len(streams) + behind.index(s.slot), *numbers]
            followers = s.tokens[first + 1 : s.computed + 1]
            committed.append(_Committed(s, first, followers, numbers, r.decode))
        s.behind = False
    if depth and committed:
        _draft(
            model,
            state,
            tables,
            streams if before is None else torch.cat([streams, before]),
            committed,
            depth,
        )
    return advances


def _span(r: Rows) -> Span:
    s = r.sequence
    return Span(s, s.computed, (s.tokens[s.computed :] + s.drafts)[: r.count], r.decode)


def _choose(
    model: Model, streams: Tensor, rows: list[Rows], starts: tuple[int, ...]
) -> tuple[list[list[int]], Tensor]:
    """Tokens after every decode row and after the last row of each finished prompt; and those rows' logits."""
    wanted: list[Wanted] = []
    picked: list[int] = []
    decode = 0
    for r, start in zip(rows, starts, strict=False):
        if r.last:
            count = r.count if r.decode else 1
            wanted.append(Wanted(r.sequence, count, r.sequence.drafts))
            picked += range(start + r.count - count, start + r.count)
            decode += count if r.decode else 0
    return choose_tokens(model.logits(take(streams, picked), decode), wanted)


def _advance(r: Rows, choices: list[int]) -> list[int]:
    """Count the computed rows and append what was chosen after them; the tokens that are output."""
    s, count, out = r.sequence, r.count, []
    first = s.computed
    if r.last:
        new = verify(choices, s.drafts)
        out = s.accept(new)
        if r.decode:
            count = len(new)
            s.rounds += 1
            s.drafted += len(s.drafts)
            s.accepted += min(count - 1, len(out))  # a draft at or behind an end is no part of the answer
            s.acceptance.note(len(s.drafts), count - 1)
        count = min(count, len(s.tokens) - first)  # rows past an end are not part of the sequence
    s.drafts = []
    s.computed, s.replay = first + count, count if r.decode else 0
    return out


def _draft(
    model: Model, state: State, tables: PageTables, streams: Tensor, committed: list[_Committed], depth: Depth
) -> None:
    """Run the draft head over the committed rows, then recursively on its own drafts.

    Rows on drafts are guesses: all that they leave is addressed by position and overwritten by the next round.
    """
    assert model.draft is not None
    batch = make_batch([Span(c.sequence, c.first, c.followers, c.decode) for c in committed], tables)
    z = model.draft.forward(take(streams, [row for c in committed for row in c.rows]), batch, state)
    numbers = [i for i, c in enumerate(committed) if c.sequence.decoding]  # in `batch`
    counts = {i: depth(committed[i].sequence, len(numbers)) for i in numbers}
    numbers = [i for i in numbers if counts[i]]
    live = [(committed[i].sequence, counts[i]) for i in numbers]
    z = take(z, [batch.starts[i + 1] - 1 for i in numbers])
    while live:
        wanted = [Wanted(s, 1, s.drafts, len(s.drafts)) for s, _ in live]
        drafts, _ = choose_tokens(model.draft.logits(z, len(live)), wanted)
        for (s, _), tokens in zip(live, drafts, strict=True):
            s.drafts += tokens
        more = [j for j, (s, count) in enumerate(live) if len(s.drafts) < count]
        if not more:
            break
        live = [live[j] for j in more]
        batch = next_rows(batch, [numbers[j] for j in more], [s.drafts[-1] for s, _ in live])
        z, numbers = model.draft.forward(take(z, more), batch, state), list(range(len(live)))
