"""Stop strings against a search that looks at one character after the other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextfit.errors import RequestError
from nextfit.text import StopFinder, StopMatch

stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)
pieces = st.lists(st.text("abc", max_size=5), max_size=8)


def expected(text: str, stops: list[str]) -> StopMatch | None:
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return StopMatch(stop, end - len(stop), end)
    return None


@settings(max_examples=500, deadline=None)
@given(stops, pieces)
def test_any_text_in_any_pieces(stops: list[str], pieces: list[str]) -> None:
    finder, out, seen = StopFinder(stops), "", ""
    for piece in pieces:
        seen += piece
        given_out, match = finder.push(piece)
        out += given_out
        wanted = expected(seen, stops)
        assert match == wanted
        if match is not None:
            assert out == seen[: match.start]
            return
        # held back: the longest end of the text that begins a stop string, and nothing more
        held = seen[len(out) :]
        assert out + held == seen
        beginnings = {stop[:k] for stop in stops for k in range(1, len(stop))}
        assert held == max((b for b in beginnings if seen.endswith(b)), key=len, default="")
    assert out + finder.finish() == seen
    assert finder.finish() == ""


def test_examples() -> None:
    finder = StopFinder(["Question:", "\n\n"])
    assert finder.push("Answer: 4 Quest") == ("Answer: 4 ", None)
    assert finder.push("ion? no. Question") == ("Question? no. ", None)
    assert finder.push(": y") == ("", StopMatch("Question:", 24, 33))
    assert StopFinder(["abab"]).push("aababab") == ("a", StopMatch("abab", 1, 5))
    assert StopFinder(["b", "abc"]).push("abc") == ("a", StopMatch("b", 1, 2))  # complete first
    assert StopFinder(["c", "abc", "bc"]).push("abc") == ("", StopMatch("abc", 0, 3))  # together: longest
    assert StopFinder([]).push("text") == ("text", None)
    assert StopFinder([LLAMAS := "\U0001f999" * 2]).push(LLAMAS) == ("", StopMatch(LLAMAS, 0, 2))


def test_empty_stop_string() -> None:
    with pytest.raises(RequestError, match="a stop string is empty") as refusal:
        StopFinder(["x", ""])
    assert refusal.value.param == "stop"
