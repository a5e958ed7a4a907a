"""Limits of one engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How much may be alive at once, and how much one step may do."""

    context: int  # tokens of one request, prompt and answer together
    sequences: int = 8  # requests in the state at once; more wait
    prefill_chunk: int = 512  # prompt rows a step computes at most
    draft: int = 4  # tokens drafted per round, 0..8
    page_size: int = 16  # tokens, a multiple of the model's index block
    kv_tokens: int | None = (
        None  # tokens all requests' pages hold together; None: one full context or 8,192 each
    )

    def pages(self) -> int:
        """Pages of the pool; one request of the full context always fits."""
        tokens = self.kv_tokens or max(self.context, self.sequences * min(self.context, 8192))
        return -(-(max(tokens, self.context) + self.sequences) // self.page_size) + self.sequences
