"""A request on its way: its tokens, how far they are computed, and what it holds. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nextfit.engine.depth import Acceptance
from nextfit.engine.request import FinishReason, Request, Stats

if TYPE_CHECKING:
    from nextfit.engine.guide import Guide


@dataclass(slots=True, eq=False)
class Sequence:
    """`tokens` are the prompt and what was generated; the first `computed` of them are in the state.

    While decoding exactly one token, the last, is not computed yet, and `drafts` are guesses at its followers.
    `replay` rows of the last verify step are accepted but still to be committed by the next step.
    """

    request: Request
    seed: int
    draft_depth: int
    ends: frozenset[int]
    limit: int  # tokens it may hold: context or prompt + max_tokens
    order: int  # of arrival
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    scored: int = 0  # rows of the prompt whose next token was told with its log-probability
    replay: int = 0
    drafts: list[int] = field(default_factory=list)
    slot: int = 0
    pages: list[int] = field(default_factory=list)
    key: bytes = b""  # the tokens, encoded for the prefix cache when they were queued or last kept there
    cached: int | None = None  # tokens that the prefix cache had when the request was first admitted
    restore: int = 0  # snapshot to copy into the slot before the next step
    behind: bool = False  # the draft head has not seen the last computed row yet
    stops: list[int] = field(default_factory=list)  # token counts at which the prefill leaves a snapshot
    awaits: tuple[Sequence, int] | None = (
        None  # who will leave a snapshot to begin from, after so many tokens
    )
    latest: int = 0  # tokens in the snapshot of the answer so far, which the next replaces
    acceptance: Acceptance = field(default_factory=lambda: Acceptance(0))
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    finish: FinishReason | None = None
    stop_token: int | None = None
    guide: Guide | None = None  # what its answer must keep to

    @property
    def priority(self) -> int:
        return self.request.params.priority

    def rank(self) -> tuple[int, int]:
        """Its place among all: lower goes first, and the highest is preempted first."""
        return self.priority, self.order

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def resumable(self) -> int:
        """Tokens of which all but the last may be taken from the prefix cache.

        Log-probabilities of a prompt come from rows that are computed: what is not told yet is not taken.
        """
        unscored = self.request.params.prompt_logprobs is not None and self.scored < self.prompt_length - 1
        return self.scored + 1 if unscored else len(self.tokens)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    def stats(self) -> Stats:
        """What was counted so far."""
        return Stats(
            self.prompt_length, self.generated, self.cached or 0, self.rounds, self.drafted, self.accepted
        )

    @property
    def decoding(self) -> bool:
        return self.computed == len(self.tokens) - 1 and self.generated > 0

    def draft_room(self) -> int:
        """The most drafts that can be of use now: every row's token must fit the limit."""
        return max(0, min(self.draft_depth, self.limit - len(self.tokens) - 1))

    def accept(self, new: list[int]) -> list[int]:
        """Append verified tokens up to an end; returns those that count as output and sets `finish`."""
        out = new[: self.limit - len(self.tokens)]
        for i, token in enumerate(out):
            if token in self.ends:
                self.finish, self.stop_token, out = "stop", token, out[:i]
                break
        if self.guide and (allowed := self.guide.advance(out)) < len(out):
            self.finish, self.stop_token, out = "error", None, out[:allowed]
        self.tokens += out
        if self.finish is None and len(self.tokens) >= self.limit:
            self.finish = "length"
        return out
