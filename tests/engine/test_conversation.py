"""Turns of a conversation resume close to the end of the answer before, whatever ended it."""

from __future__ import annotations

from collections.abc import Iterator

from nextfit.engine.engine import Engine
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from tests.engine.test_prefix import ask, cached, ids, make


def turns(e: Engine) -> Iterator[tuple[int, int]]:
    """(tokens cached, tokens of the conversation before) of turns after answers of 100 and of 20 tokens."""
    said, before = ids(70), 0
    for n, length in enumerate((100, 20, 1)):
        ((answer, _, last),) = ask(e, [said], max_tokens=length)
        if n:
            yield cached(last), before
        before = len(said) + len(answer)
        said = said + answer + ids(11, n)


def test_within_a_snapshots_distance_of_the_end() -> None:
    """By default an answer's snapshot is renewed every 64 tokens; a short answer has its prompt's, on pages of 16."""
    for hit, before in turns(make(4)):
        assert before - 64 - 4 <= hit <= before and hit % 16 == 0


def test_an_answer_that_was_cut_off() -> None:
    """By a stop string or a client that left: what comes before the last snapshot is as good as any."""
    e, prompt = make(4, answer_every=16, adaptive_draft=False), ids(40)
    e.add(Request("r", prompt, SamplingParams(max_tokens=100, temperature=1, seed=3)))
    answer: list[int] = []
    while len(answer) < 40:
        answer += [s.token for out in e.step() for s in out.tokens]
    e.cancel("r")
    e.step()
    at = (40 + len(answer) - 1) // 16 * 16
    for kept, hit in ((at - 40, at), (at - 41, 32), (5, 32)):
        question = prompt + answer[:kept] + ids(9, 2)
        ((tokens, logprobs, last),) = ask(e, [question])
        ((wanted, cold, _),) = ask(make(snapshots=0), [question])
        assert tokens == wanted and all(abs(a - b) < 1e-9 for a, b in zip(logprobs, cold, strict=True))
        assert cached(last) == hit, kept
