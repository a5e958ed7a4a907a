"""What crosses operators within a step: the streams, what goes into a block and comes out of it, logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nextfit.config import ModelConfig

# (whose memory it is, as the plan calls it; shape; dtype) -> a tensor
Take = Callable[[str, tuple[int, ...], torch.dtype], Tensor]


@dataclass(frozen=True, slots=True)
class Buffers:
    """Written anew by every step; the same memory for all layers, and for the draft head after the trunk."""

    streams: Tensor  # [rows, streams * hidden]
    handed: Tensor  # [rows, streams * hidden], of the rows that the draft head is to see
    inputs: Tensor  # [rows, hidden], of a mixer or of the experts
    outputs: Tensor  # [rows, hidden]
    logits: Tensor  # [rows of which tokens are chosen, vocabulary]
    tables: Tensor  # [2 * sequences + 1, pages of the longest one] int64
    space: Tensor  # [bytes] uint8, a tile of a weight in the type of its product

    def first(self, rows: int) -> Buffers:
        """What a step of `rows` rows needs of each."""
        return replace(
            self, streams=self.streams[:rows], inputs=self.inputs[:rows], outputs=self.outputs[:rows]
        )


def new_buffers(
    c: ModelConfig,
    dtype: torch.dtype,
    rows: int,
    logits: int,
    tables: tuple[int, int],
    space: int,
    take: Take,
) -> Buffers:
    """Buffers for steps of at most `rows` rows, `logits` of which choose a token; `tables` and `space` their sizes."""
    wide, hidden = c.hc_count * c.hidden_size, c.hidden_size
    return Buffers(
        streams=take("streams", (rows, wide), dtype),
        handed=take("hidden states handed to the draft", (rows, wide), dtype),
        inputs=take("block inputs", (rows, hidden), dtype),
        outputs=take("block outputs", (rows, hidden), dtype),
        logits=take("logits and sampler", (logits, c.vocab_size), dtype),
        tables=take("page tables", tables, torch.int64),
        space=take("BLAS scratch", (space,), torch.uint8),
    )
