"""One step on the device: forward, sample, verify, then draft (design: rounds and sampling)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from nextfit.engine.batch import PageTables, Span, make_batch, other_rows, take
from nextfit.engine.request import Sampled
from nextfit.engine.sampler import Wanted, choose_tokens, describe
from nextfit.engine.scheduler import Rows
from nextfit.engine.score import score_prompt
from nextfit.engine.sequence import Sequence
from nextfit.engine.verify import verify
from nextfit.memory.arena import Memory
from nextfit.model import Buffers, Model
from nextfit.ops.batch import Batch

Depth = Callable[[list[Sequence]], list[int]]  # drafts for each of the sequences that decode


class Advance(NamedTuple):
    """Output tokens that one step gave one sequence, and tokens of its prompt that it asked the chances of."""

    sequence: Sequence
    tokens: tuple[Sampled, ...]
    prompt: tuple[Sampled, ...]


class _Committed(NamedTuple):
    """Rows that became part of a sequence, by their numbers in the step's streams."""

    number: int  # of the sequence in the step's batch
    sequence: Sequence
    first: int  # position of the first row
    followers: list[int]  # the token after each row
    rows: range | list[int]
    decode: bool


@torch.no_grad()
def run_round(
    model: Model, memory: Memory, tables: PageTables, rows: list[Rows], depth: Depth | None
) -> list[Advance]:
    """Compute the scheduled rows, advance their sequences, and leave fresh drafts in them.

    `depth` says how many drafts sequences get; None if the engine never drafts. Otherwise the draft head sees
    all rows, also of requests that want no drafts: others may share them.
    """
    state, buffers = memory.state, memory.buffers
    behind = [r.sequence.slot for r in rows if r.sequence.behind]
    before = state.streams.tail[behind, 0] if behind else None  # now: the step replaces them
    batch = make_batch([_span(r) for r in rows], tables)
    streams = model.forward(batch, state, buffers)
    scores = [score_prompt(model, buffers, streams, *row) for row in zip(rows, batch.starts, strict=False)]
    choices, raw = _choose(model, buffers, streams, rows, batch)  # the same memory has these logits
    advances, committed, at = [], [], 0
    for i, r in enumerate(rows):
        s, first, last, start = r.sequence, r.sequence.computed, r.last, batch.starts[i]
        own = choices.pop(0) if last else []
        tokens = _advance(r, own)
        if last or scores[i]:
            told = describe(raw, at, tokens, s.request.params.logprobs)
            advances.append(Advance(s, told, scores[i]))
            at += len(own)
        if s.finish is None and depth:
            numbers: range | list[int] = range(start, start + s.computed - first)
            if s.behind:
                first, numbers = first - 1, [len(streams) + behind.index(s.slot), *numbers]
            followers = s.tokens[first + 1 : s.computed + 1]
            committed.append(_Committed(i, s, first, followers, numbers, r.decode))
        s.behind = False
    if depth and committed:
        if before is not None:
            streams = torch.cat([streams, before])
        _draft(model, memory, batch, streams, committed, depth)
    return advances


def _span(r: Rows) -> Span:
    s = r.sequence
    return Span(s, s.computed, (s.tokens[s.computed :] + s.drafts)[: r.count], r.decode)


def _choose(
    model: Model, buffers: Buffers, streams: Tensor, rows: list[Rows], batch: Batch
) -> tuple[list[list[int]], Tensor]:
    """Tokens after every decode row and after the last row of each finished prompt; and those rows' logits."""
    wanted: list[Wanted] = []
    picked = list(range(batch.decode_rows))
    for r, end in zip(rows, batch.starts[1:], strict=True):
        if r.decode:
            wanted.append(Wanted(r.sequence, r.count, r.sequence.drafts))
        elif r.last:
            wanted.append(Wanted(r.sequence, 1, []))
            picked.append(end - 1)
    return choose_tokens(model.logits(take(streams, picked), batch.decode_rows, buffers), wanted)


def _advance(r: Rows, choices: list[int]) -> list[int]:
    """Count the computed rows and append what was chosen after them; the tokens that are output."""
    s, count = r.sequence, r.count
    out: list[int] = []
    if choices:
        new = verify(choices, s.drafts)
        out = s.accept(new)
        if r.decode:
            count = len(new)
            s.rounds += 1
            s.drafted += len(s.drafts)
            s.accepted += min(count - 1, len(out))  # a draft at or behind an end is no part of the answer
            s.acceptance.note(len(s.drafts), count - 1)
        count = min(count, len(s.tokens) - s.computed)  # rows past an end are not part of the sequence
    s.drafts = []
    s.computed, s.replay = s.computed + count, count if r.decode else 0
    return out


def _draft(
    model: Model, memory: Memory, step: Batch, streams: Tensor, committed: list[_Committed], depth: Depth
) -> None:
    """Run the draft head over the committed rows, then recursively on its own drafts.

    Rows on drafts are guesses: all that they leave is addressed by position and overwritten by the next round.
    """
    assert model.draft is not None
    state, buffers = memory.state, memory.buffers
    keep, sequences, firsts, followers, rows, decode = zip(*committed, strict=True)
    batch = other_rows(step, keep, [*chain(*followers)], [*map(len, followers)], firsts, sum(decode))
    _hand(buffers, streams, [*chain(*rows)])
    z = model.draft.forward(batch, state, buffers)
    numbers = [i for i, s in enumerate(sequences) if s.decoding]
    live = [sequences[i] for i in numbers]
    counts = depth(live) if live else []
    ends = [batch.starts[i + 1] - 1 for i in numbers]
    for made in range(max(counts, default=0)):
        more = [j for j, count in enumerate(counts) if count > made]
        if len(more) < len(live):
            numbers, live, counts, ends = ([x[j] for j in more] for x in (numbers, live, counts, ends))
        if made:
            read = [s.drafts[-1] for s in live]
            positions = [len(s.tokens) + made - 2 for s in live]
            batch = other_rows(batch, numbers, read, [1] * len(live), positions, len(live))
            _hand(buffers, z, ends)
            z = model.draft.forward(batch, state, buffers)
            numbers = ends = [*range(len(live))]
        logits = model.draft.logits(take(z, ends), len(live), buffers)
        drafts, _ = choose_tokens(logits, [Wanted(s, 1, s.drafts, made) for s in live])
        for s, own in zip(live, drafts, strict=True):
            s.drafts += own


def _hand(buffers: Buffers, streams: Tensor, rows: list[int]) -> None:
    buffers.handed[: len(rows)] = take(streams, rows)
