"""Limits of one engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How much may be alive at once, and how much one step may do."""

    context: int  # tokens of one request, prompt and answer together
    sequences: int = 8  # requests in the state at once; more wait
    prefill_chunk: int = 2048  # prompt rows of a step at most
    decode_gap: int = 512  # prompt rows between two tokens of a request at most, where that is less
    answer_reserve: int = (
        4096  # tokens that a request is admitted with room for, and again each time they are used up
    )
    draft: int = 4  # tokens drafted per round at most, 0..8
    adaptive_draft: bool = True  # fewer where fewer give more tokens a second
    page_size: int = 16  # tokens, a multiple of the model's index block
    snapshots: int = 16  # recurrent states kept for requests that begin alike; 0: no prefix cache
    host_kv_tokens: int = 0  # tokens of cached prefixes that host memory holds when pages are full
    snapshot_every: int = 2048  # tokens between the snapshots of a long prompt, made whole pages
    answer_every: int = 64  # tokens after which the snapshot of an answer is renewed, made whole pages
    paranoid: bool = False  # debug mode: unwritten memory is NaN, everything is checked after every step
    kv_tokens: int | None = (
        None  # tokens all requests' pages hold together; None: one full context or 8,192 each
    )

    def prompt_rows(self, decoding: bool) -> int:
        """Prompt rows of a step in which others decode or nobody does."""
        return min(self.prefill_chunk, self.decode_gap) if decoding else self.prefill_chunk

    def whole_pages(self, tokens: int) -> int:
        """`tokens`, and as many more as fill their last page."""
        return -(-tokens // self.page_size) * self.page_size

    def pages(self) -> int:
        """Pages of the pool; one request of the full context always fits."""
        tokens = self.kv_tokens or max(self.context, self.sequences * min(self.context, 8192))
        return -(-(max(tokens, self.context) + self.sequences) // self.page_size) + self.sequences

    def host_pages(self) -> int:
        """Pages of the prefix cache's host tier."""
        return -(-self.host_kv_tokens // self.page_size)
