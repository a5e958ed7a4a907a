"""What a caller may ask of one generation."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Frozen sampling settings of one request; every value is checked by `validate`.

    The order of application is fixed: penalties, logit bias, temperature, top-k, top-p, min-p
    (design.md section 5). `temperature=0` is greedy. `top_k=0` and `top_p=1` switch those filters off.
    """

    max_tokens: int | None = None  # None: up to the context limit
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
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    draft: int | None = None  # draft depth of this request, 0..8; None: the engine's
