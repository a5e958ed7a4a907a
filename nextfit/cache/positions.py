"""Where on the page grid a request can resume, and where its prefill should leave snapshots."""

from __future__ import annotations


def resume_limit(length: int, page_size: int) -> int:
    """The last page boundary a request of `length` tokens may resume at.

    Its last token is always computed, because the next one is chosen from its logits.
    """
    return max(0, length - 1) // page_size * page_size


def snapshot_positions(
    start: int, length: int, every: int, page_size: int, divergence: int = 0
) -> tuple[int, ...]:
    """Token counts after `start`, ascending, at which the prefill of a prompt of `length` leaves a snapshot.

    These are every `every`-th token (a multiple of `page_size`, counted from the prompt's beginning), the
    point `divergence` where it leaves what others asked, and the last boundary a repeat could resume at.
    """
    assert every > 0 and every % page_size == 0, f"{every} is not on the grid of {page_size} tokens"
    assert divergence % page_size == 0, f"{divergence} is not on the grid of {page_size} tokens"
    last = resume_limit(length, page_size)
    wanted = {*range(every, last + 1, every), divergence, last}
    return tuple(sorted(p for p in wanted if start < p <= last))
