"""How many tokens to draft: as many as gave the most tokens a second, by what was accepted and what rounds cost.

Everything seen fades into the hope that drafts are right, so what has not been tried for long is tried again.
"""

from __future__ import annotations

from collections import defaultdict

FADE = 0.97  # of what was accepted, with each round
RENEW = 1e30  # weight at which it begins again at 1
COST_FADE = 0.98  # of what rounds cost
HOPE = 0.6  # how often the first draft is right before it was seen; another, as often as the one before it
PRIOR_EACH = 0.1  # what a draft adds to the cost of a round, of the round's cost, before it was measured
EACH_WEIGHT = 0.1  # of that, in rounds times drafts squared
PRIOR_STEP = (
    0.1  # what drafting at all adds to it; without this hope a round without drafts would not be tried
)
STEP_WEIGHT = 0.05  # of that, in rounds


class Acceptance:
    """How often each draft of one request was right where those before it were.

    Instead of what was seen fading, what is new weighs more.
    """

    def __init__(self, most: int) -> None:
        self._tried, self._right = [0.0] * most, [0.0] * most
        self._weight = 1.0  # of a round
        self._last = most

    def note(self, drafted: int, accepted: int) -> None:
        """One round: the first `accepted` drafts were right; of the others only the next was looked at."""
        self._last = drafted
        self._weight /= FADE
        for j in range(accepted):
            self._tried[j] += self._weight
            self._right[j] += self._weight
        if accepted < drafted:
            self._tried[accepted] += self._weight
        if self._weight > RENEW:
            self._tried, self._right = ([x / self._weight for x in xs] for xs in (self._tried, self._right))
            self._weight = 1.0

    def tokens(self, most: int) -> list[float]:
        """Tokens that a round is expected to add with 0, 1, ... drafts: up to `most`, and one more than last time."""
        total, reached, p, weight = 1.0, 1.0, HOPE, self._weight
        out = [total]
        for j in range(min(most, self._last + 1, len(self._tried))):
            p = (self._right[j] + p * weight) / (self._tried[j] + weight)  # hope counts as much as one round
            reached *= p
            total += reached
            out.append(total)
        return out


class RoundCost:
    """Seconds of a round by its depth: a line, and a step that the first draft adds, closest to what was measured."""

    def __init__(self) -> None:
        # of 1, whether drafts, drafts; the squares and product of the last two; seconds, and their products with them
        self._sums = [0.0] * 9

    def note(self, depth: float, seconds: float) -> None:
        """One round; one that something else held up counts as twice the usual."""
        n, *_, usual, _, _ = self._sums
        if n:
            seconds = min(seconds, 2 * usual / n)
        any_ = min(depth, 1.0)
        new = (
            1,
            any_,
            depth,
            any_ * any_,
            any_ * depth,
            depth * depth,
            seconds,
            any_ * seconds,
            depth * seconds,
        )
        self._sums = [COST_FADE * a + b for a, b in zip(self._sums, new, strict=True)]

    def curve(self) -> tuple[float, float, float]:
        """Seconds of (a round without drafts, the step of the first draft, each draft); at first, in rounds."""
        n, any_, all_, ones, both, squares, usual, first, each = self._sums
        if not n:
            return 1.0, PRIOR_STEP, PRIOR_EACH
        usual, any_, all_ = usual / n, any_ / n, all_ / n
        # the normal equations of a ridge regression about the means, of the step and of each draft
        ones += STEP_WEIGHT - n * any_ * any_
        both -= n * any_ * all_
        squares += EACH_WEIGHT - n * all_ * all_
        first += (STEP_WEIGHT * PRIOR_STEP - n * any_) * usual
        each += (EACH_WEIGHT * PRIOR_EACH - n * all_) * usual
        determinant = ones * squares - both * both
        step = max((first * squares - each * both) / determinant, 0.0)
        slope = max((each - step * both) / squares, 0.0)
        scale = min(1.0, 0.9 * usual / max(step * any_ + slope * all_, 1e-9))  # drafts cannot cost all of it
        step, slope = scale * step, scale * slope
        return max(usual - step * any_ - slope * all_, 1e-9), step, slope


class DraftDepth:
    """Chooses the depths of one engine's requests; what a round costs depends on how many decode in it."""

    def __init__(self) -> None:
        self._costs: defaultdict[int, RoundCost] = defaultdict(RoundCost)
        self._shapes: set[tuple[int, float]] = set()
        self._curves: defaultdict[int, tuple[float, float, float]] = defaultdict(RoundCost().curve)

    def note(self, sequences: int, depth: float, seconds: float) -> None:
        """A round of decode rows only, with `depth` drafts per sequence on average; the first of a shape is slower."""
        if (sequences, depth) not in self._shapes:
            self._shapes.add((sequences, depth))
            return
        cost = self._costs[sequences]
        cost.note(depth, seconds)
        self._curves[sequences] = cost.curve()

    def choose(self, requests: list[tuple[Acceptance, int]]) -> int:
        """Drafts for each request of the next round, or its own limit if that is less; given with what it accepted.

        One depth for all: the head's weights are read for every further draft, whoever it is for.
        """
        fixed, step, each = self._curves[len(requests)]
        gains = [acceptance.tokens(most) for acceptance, most in requests]
        speeds = [
            sum(g[min(depth, len(g) - 1)] for g in gains) / (fixed + step * min(depth, 1) + each * depth)
            for depth in range(max(map(len, gains)))
        ]
        return speeds.index(max(speeds))
