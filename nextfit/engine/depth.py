"""How many tokens to draft: as many as gave the most tokens a second, by what was accepted and what rounds cost.

Everything seen fades into the hope that drafts are right, so what has not been tried for long is tried again.
"""

from __future__ import annotations

from collections import defaultdict

FADE = 0.95  # of what was accepted, with each round
COST_FADE = 0.98  # of what rounds cost
HOPE = 0.6  # how often the first draft is right before it was seen; another, as often as the one before it
PRIOR_SLOPE = 0.1  # what a draft adds to the cost of a round, of the round's cost, before it was measured
PRIOR_WEIGHT = 0.1  # in rounds, times drafts squared


class Acceptance:
    """How often each draft of one request was right where those before it were."""

    def __init__(self, most: int) -> None:
        self._tried, self._right = [0.0] * most, [0.0] * most
        self._last = most

    def note(self, drafted: int, accepted: int) -> None:
        """One round: the first `accepted` drafts were right; of the others only the next was looked at."""
        self._last = drafted
        looked = min(drafted, accepted + 1)
        self._tried = [FADE * t + (j < looked) for j, t in enumerate(self._tried)]
        self._right = [FADE * r + (j < accepted) for j, r in enumerate(self._right)]

    def tokens(self, most: int) -> list[float]:
        """Tokens that a round is expected to add with 0, 1, ... drafts: up to `most`, and one more than last time."""
        total, reached, p = 1.0, 1.0, HOPE
        out = [total]
        for j in range(min(most, self._last + 1, len(self._tried))):
            p = (self._right[j] + p) / (self._tried[j] + 1)  # hope counts as much as one round
            reached *= p
            total += reached
            out.append(total)
        return out


class RoundCost:
    """Seconds of a round by its depth: the line that lies closest to what was measured."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # of 1, depth, its square, seconds, depth times seconds

    def note(self, depth: float, seconds: float) -> None:
        """One round; one that something else held up counts as twice the usual."""
        weight, *_, usual, _ = self._sums
        if weight:
            seconds = min(seconds, 2 * usual / weight)
        new = (1, depth, depth * depth, seconds, depth * seconds)
        self._sums = [COST_FADE * a + b for a, b in zip(self._sums, new, strict=True)]

    def line(self) -> tuple[float, float]:
        """(seconds of a round without drafts, seconds of each draft); before any measurement in rounds."""
        weight, depths, squares, seconds, products = self._sums
        if not weight:
            return 1.0, PRIOR_SLOPE
        depth, usual = depths / weight, seconds / weight
        spread, together = squares - depth * depths, products - depth * seconds
        slope = (together + PRIOR_WEIGHT * PRIOR_SLOPE * usual) / (spread + PRIOR_WEIGHT)
        slope = min(max(slope, 0.0), 0.9 * usual / max(depth, 0.1))
        return max(usual - slope * depth, 1e-9), slope


class DraftDepth:
    """Chooses the depths of one engine's requests; what a round costs depends on how many decode in it."""

    def __init__(self) -> None:
        self._costs: defaultdict[int, RoundCost] = defaultdict(RoundCost)
        self._lines: defaultdict[int, tuple[float, float]] = defaultdict(RoundCost().line)

    def note(self, sequences: int, depth: float, seconds: float) -> None:
        """A round of decode rows only, with `depth` drafts per sequence on average."""
        cost = self._costs[sequences]
        cost.note(depth, seconds)
        self._lines[sequences] = cost.line()

    def choose(self, acceptance: Acceptance, sequences: int, most: int) -> int:
        """Drafts, 0 to `most`, for a request in the next round of so many."""
        fixed, each = self._lines[sequences]
        speeds = [tokens / (fixed + each * d) for d, tokens in enumerate(acceptance.tokens(most))]
        return speeds.index(max(speeds))
