"""What a caller may ask of one generation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nextfit.errors import RequestError

MAX_DRAFT = 8
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Frozen sampling settings of one request; every value is checked by `validate`.

    The order of application is fixed: penalties, logit bias, temperature, top-k, top-p, min-p
    (design.md section 5). `temperature=0` is greedy. `top_k=0` and `top_p=1` switch those filters off.
    """

    max_tokens: int | None = None  # None: up to the context limit; 0: the prompt is computed, no more
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None  # None: a fresh one is drawn and reported
    choice: int = 0  # index among `n` choices; enters the noise
    logprobs: int | None = None  # alternatives per token, 0..20; None: no logprobs
    prompt_logprobs: int | None = (
        None  # the same for the tokens of the prompt; it is then computed, not cached
    )
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    thought_end: int | None = (
        None  # the token that ends the thought which the answer begins in; None: in none
    )
    thinking_budget: int | None = None  # tokens of that thought, after which it is ended; None: no limit
    grammar: str | None = None  # that the answer behind the thought keeps to, as text (`text.formats`)
    ignore_eos: bool = False
    priority: int = 0  # lower is sooner: admitted, computed and kept before higher ones
    draft: int | None = None  # draft depth of this request, 0..8; None: the engine's

    @property
    def greedy(self) -> bool:
        """Whether the model's likeliest token is chosen, whatever came before."""
        penalties = self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty
        return not (self.temperature or penalties or self.logit_bias or self.min_tokens)

    def validate(self, vocab_size: int) -> None:
        """Raise RequestError for the first setting out of its range."""
        whole = (
            "max_tokens",
            "min_tokens",
            "top_k",
            "seed",
            "logprobs",
            "prompt_logprobs",
            "priority",
            "draft",
            "thinking_budget",
        )
        for name in whole:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise RequestError(f"{name} is {value!r}; it must be a whole number", name)
        ranges = {
            "max_tokens": (0, math.inf),
            "min_tokens": (0, math.inf),
            "temperature": (0, 100),
            "top_k": (0, math.inf),
            "min_p": (0, 1),
            "repetition_penalty": (1e-3, 1e3),
            "presence_penalty": (-100, 100),
            "frequency_penalty": (-100, 100),
            "seed": (-(2**63), 2**64 - 1),
            "logprobs": (0, MAX_LOGPROBS),
            "prompt_logprobs": (0, MAX_LOGPROBS),
            "priority": (-(2**31), 2**31 - 1),
            "draft": (0, MAX_DRAFT),
            "thinking_budget": (0, math.inf),
            "thought_end": (0, vocab_size - 1),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise RequestError(f"{name} is {value}; it must be {_range(low, high)}", name)
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}; it must be above 0 and at most 1", "top_p")
        for token in self.stop_token_ids:
            if not 0 <= token < vocab_size:
                raise RequestError(
                    f"stop_token_ids has {token}; ids must be below {vocab_size}", "stop_token_ids"
                )
        for token, bias in self.logit_bias.items():
            if not 0 <= token < vocab_size or not -100 <= bias <= 100:
                raise RequestError(
                    f"logit_bias has {token}: {bias}; ids must be below {vocab_size} and values within -100..100",
                    "logit_bias",
                )


def _range(low: float, high: float) -> str:
    return f"at least {low}" if high == math.inf else f"from {low} to {high}"
