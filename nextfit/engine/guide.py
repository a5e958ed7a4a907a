"""What an answer must keep to: a thought of bounded length, and a grammar behind it. No torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nextfit.engine.params import SamplingParams

Mask = NDArray[np.bool_]  # [vocabulary]


class Matcher(Protocol):
    """How far one answer has come in its grammar."""

    def mask(self) -> Mask | None:
        """Which tokens may come next; None: all."""

    def accept(self, token: int) -> bool: ...
    def rollback(self, count: int) -> None: ...


class Grammar(Protocol):
    def matcher(self, ends: Collection[int]) -> Matcher:
        """For a new answer that ends with one of `ends`."""


class Guide:
    """Says for the next tokens of one answer which may be chosen; `advance` tells it what was.

    A thought that has used up its budget is ended. With a grammar a thought is not the end of the answer, and what
    follows keeps to the grammar.
    """

    def __init__(
        self, params: SamplingParams, ends: Collection[int], vocabulary: int, matcher: Matcher | None
    ) -> None:
        self._end, self._budget = params.thought_end, params.thinking_budget
        self._ends, self._vocabulary, self._matcher = sorted(ends), vocabulary, matcher
        self._open = self._end is not None  # the thought
        self._known = 0  # tokens of the answer

    def advance(self, tokens: Sequence[int]) -> int:
        """More of the answer, without its end token; how many tokens of it the grammar allows."""
        for i, token in enumerate(tokens):
            if self._open:
                self._open = token != self._end
            elif self._matcher and not self._matcher.accept(token):
                return i
            self._known += 1
        return len(tokens)

    def masks(self, following: Sequence[int], after: int, rows: int) -> list[Mask | None]:
        """What may come after the answer so far and `following[: after + i]`, for i below `rows`; None: anything."""
        is_open, matcher, accepted = self._open, self._matcher, 0
        out = [self._mask(is_open, matcher, 0)] if not after else []
        for i, token in enumerate(following[: after + rows - 1], 1):
            if is_open:
                is_open = token != self._end
            elif matcher and token not in self._ends and matcher.accept(token):
                accepted += 1
            else:
                matcher = None  # nothing follows such a token
            if i >= after:
                out.append(self._mask(is_open, matcher, i))
        if self._matcher:
            self._matcher.rollback(accepted)
        return out

    def _mask(self, is_open: bool, matcher: Matcher | None, ahead: int) -> Mask | None:
        if not is_open:
            return matcher.mask() if matcher else None
        mask = None
        if self._budget is not None and self._known + ahead >= self._budget:
            mask = np.zeros(self._vocabulary, dtype=np.bool_)
            mask[self._end] = True
        elif matcher and self._ends:
            mask = np.ones(self._vocabulary, dtype=np.bool_)
            mask[self._ends] = False
        return mask


def make_guide(
    params: SamplingParams, ends: Collection[int], vocabulary: int, matcher: Matcher | None
) -> Guide | None:
    """None if every token may be chosen at any time."""
    bounded = params.thought_end is not None and params.thinking_budget is not None
    return Guide(params, ends, vocabulary, matcher) if matcher or bounded else None
