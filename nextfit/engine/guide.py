"""What an answer must keep to: a thought of bounded length. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nextfit.engine.params import SamplingParams

Mask = NDArray[np.bool_]  # [vocabulary]


class Guide:
    """Says for the next tokens of one answer which may be chosen; `advance` tells it what was."""

    def __init__(self, params: SamplingParams, vocabulary: int) -> None:
        self._end, self._budget = params.thought_end, params.thinking_budget
        self._vocabulary = vocabulary
        self._open = self._end is not None  # the thought
        self._known = 0  # tokens of the answer

    def advance(self, tokens: Sequence[int]) -> None:
        """More of the answer, without its end token."""
        self._known += len(tokens)
        self._open = self._open and self._end not in tokens

    def masks(self, following: Sequence[int], after: int, rows: int) -> list[Mask | None]:
        """What may come after the answer so far and `following[: after + i]`, for i below `rows`; None: anything."""
        is_open, out = self._open, []
        for i in range(after + rows):
            is_open = is_open and not (i and following[i - 1] == self._end)
            if i >= after:
                out.append(self._mask(is_open, self._known + i))
        return out

    def _mask(self, is_open: bool, position: int) -> Mask | None:
        if is_open and self._budget is not None and position >= self._budget:
            mask = np.zeros(self._vocabulary, dtype=np.bool_)
            mask[self._end] = True
            return mask
        return None


def guide(params: SamplingParams, vocabulary: int) -> Guide | None:
    """None if every token may be chosen at any time."""
    bounded = params.thought_end is not None and params.thinking_budget is not None
    return Guide(params, vocabulary) if bounded else None
