"""Verification of drafts under noise coupling (Daliri, Musco and Suresh 2024).

A draft made with the same noise as the target's choice is right exactly when it equals that choice, so
what is emitted does not depend on the drafts at all.
"""

from __future__ import annotations

from collections.abc import Sequence


def verify(choices: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """Tokens that one verify step adds.

    `drafts` d1..dk followed the last known token; `choices` c0..ck are the target's tokens after it and after
    each draft. The choices after right drafts stand, and the first one that contradicts its draft, or follows
    them all, is new: c0..ca with a the number of leading drafts that are right.
    """
    accepted = 0
    while accepted < len(drafts) and choices[accepted] == drafts[accepted]:
        accepted += 1
    return list(choices[: accepted + 1])
