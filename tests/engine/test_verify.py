"""Verification as a pure function."""

from __future__ import annotations

import itertools

import pytest

from nextfit.engine.verify import verify


@pytest.mark.parametrize(
    ("choices", "drafts", "wanted"),
    [
        ([7], [], [7]),
        ([1, 2, 3], [1, 2], [1, 2, 3]),
        ([9, 2, 3], [1, 2], [9]),
        ([1, 9, 3], [1, 2], [1, 9]),
        ([9, 2], [1], [9]),
        ([5, 5, 5, 5], [5, 4, 5], [5, 5]),
    ],
)
def test_cases(choices: list[int], drafts: list[int], wanted: list[int]) -> None:
    assert verify(choices, drafts) == wanted


def test_equals_drafting_one_token_at_a_time() -> None:
    """For every model of three rows over two tokens: what is emitted does not depend on what was drafted."""
    contexts = [c for n in range(4) for c in itertools.product((0, 1), repeat=n)]
    for answers in itertools.product((0, 1), repeat=len(contexts)):
        if sum(answers) % 5:  # a fifth of the models is plenty
            continue
        model = dict(zip(contexts, answers, strict=True))
        plain: list[int] = []
        while len(plain) < 4:
            plain.append(model[tuple(plain)])
        for drafts in itertools.product((0, 1), repeat=3):
            choices = [model[drafts[:i]] for i in range(4)]
            new = verify(choices, drafts)
            assert new == plain[: len(new)] and 1 <= len(new) <= 4
            right = next((i for i in range(3) if drafts[i] != plain[i]), 3)
            assert len(new) == right + 1
