"""From scheduled rows to the tensors of one step."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from nextfit.engine.sequence import Sequence
from nextfit.ops.batch import Batch


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one sequence: `tokens` at positions `first`, `first` + 1, ..."""

    sequence: Sequence
    first: int
    tokens: list[int]
    decode: bool


def make_batch(spans: Seq[Span], device: torch.device) -> Batch:
    """Ragged batch of the spans in their order (decode spans first)."""
    width = max(len(s.sequence.pages) for s in spans)
    pages = [s.sequence.pages + [0] * (width - len(s.sequence.pages)) for s in spans]
    return Batch(
        tokens=torch.tensor([t for s in spans for t in s.tokens], device=device),
        lengths=tuple(len(s.tokens) for s in spans),
        firsts=tuple(s.first for s in spans),
        slots=torch.tensor([s.sequence.slot for s in spans], device=device),
        replay=torch.tensor([s.sequence.replay for s in spans], device=device),
        pages=torch.tensor(pages, device=device),
        decode_sequences=sum(s.decode for s in spans),
    )
