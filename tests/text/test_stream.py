"""Tokens to text with stop strings, and which tokens the text came from."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nextfit.text import TextDelta, TextStream
from tests.text.samples import LLAMA, default_tokenizer
from tests.text.test_stop import expected

TOKENIZER = default_tokenizer()
BYTE = {TOKENIZER.token_bytes(i): i for i in range(256)}
IM_END = TOKENIZER.encode("<|im_end|>")[0]


def byte_tokens(text: str) -> list[int]:
    return [BYTE[bytes([b])] for b in text.encode()]


def run(groups: list[list[int]], stop: list[str]) -> tuple[str, TextDelta]:
    """All text and the last delta, which carries the totals."""
    stream = TextStream(TOKENIZER, stop)
    deltas = [stream.push(group) for group in groups]
    deltas.append(stream.finish())
    counts = [d.tokens for d in deltas]
    assert counts == sorted(counts)
    return "".join(d.text for d in deltas), deltas[-1]


def test_stop_inside_tokens() -> None:
    ids = [t for word in ("Answer", ":", " the", " conversation", " harbour") for t in TOKENIZER.encode(word)]
    texts = [TOKENIZER.decode([i]) for i in ids]
    conver, harbour = texts.index(" conver"), texts.index(" harbour")
    text, end = run([[i] for i in ids], ["versation ha"])
    assert text == "Answer: the con"
    assert end == TextDelta("", "versation ha", conver + 1, harbour + 1)
    text, end = run([ids], [" conversation"])  # begins with a token: that token is left out
    assert text == "Answer: the" and end.tokens == conver and end.matched == harbour
    assert run([ids], ["conversations", "z"])[0] == "Answer: the conversation harbour"


def test_held_text_is_not_yet_covered() -> None:
    stream = TextStream(TOKENIZER, ["Question:"])
    a, q, u, x = (byte_tokens(c)[0] for c in "aQux")
    assert stream.push([a]) == TextDelta("a", None, 1)
    assert stream.push([q]) == TextDelta("", None, 1)
    assert stream.push([u]) == TextDelta("", None, 1)
    assert stream.push([x]) == TextDelta("Qux", None, 4)
    assert stream.push([q]) == TextDelta("", None, 4)
    assert stream.finish() == TextDelta("Q", None, 5)
    assert stream.finish() == TextDelta("", None, 5)


def test_open_characters_are_not_yet_covered() -> None:
    ids = byte_tokens(f"a{LLAMA}b")
    stream = TextStream(TOKENIZER)
    deltas = [stream.push([i]) for i in ids[:-2]]
    assert [d.tokens for d in deltas] == [1, 1, 1, 1] and [d.text for d in deltas] == ["a", "", "", ""]
    assert stream.push(ids[-2:]) == TextDelta(f"{LLAMA}b", None, 6)
    stream = TextStream(TOKENIZER, [LLAMA])
    assert stream.push(ids) == TextDelta("a", LLAMA, 1, 5)


def test_tokens_after_the_stop_are_ignored() -> None:
    stream = TextStream(TOKENIZER, ["b"])
    assert stream.push(byte_tokens("abc")) == TextDelta("a", "b", 1, 2)
    assert stream.push(byte_tokens("def")) == TextDelta("", "b", 1, 2)
    assert stream.finish() == TextDelta("", "b", 1, 2)


def test_special_tokens_are_skipped_and_may_be_named() -> None:
    ids = [*byte_tokens("ab"), IM_END, *byte_tokens("cd")]
    assert run([ids], [])[0] == "abcd"
    assert run([ids], ["bc"]) == ("a", TextDelta("", "bc", 1, 4))
    assert run([ids], ["<|im_end|>", "bx"]) == ("ab", TextDelta("", "<|im_end|>", 2, 3))
    stream = TextStream(TOKENIZER, ["_end|>"], skip_special=False)
    assert stream.push(ids) == TextDelta("ab<|im", "_end|>", 3, 3)
    stream = TextStream(TOKENIZER, ["<|im_end|>"], skip_special=False)
    assert stream.push(ids) == TextDelta("ab", "<|im_end|>", 2, 3)


def test_think_and_tool_tokens_are_text() -> None:
    ids = TOKENIZER.encode("<think>x</think><tool_call>y</tool_call>")
    assert run([ids], [])[0] == "<think>x</think><tool_call>y</tool_call>"
    assert run([ids], ["</think>"]) == ("<think>x", TextDelta("", "</think>", 2, 3))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, TOKENIZER.vocab_size - 1) | st.sampled_from(byte_tokens("aé")), max_size=4)
    ),
    st.lists(st.text("aeé n", min_size=1, max_size=3), max_size=3),
)
def test_any_tokens(groups: list[list[int]], stop: list[str]) -> None:
    ids = [i for group in groups for i in group]
    whole = TOKENIZER.decode(ids)
    match = expected(whole, stop)
    text, end = run(groups, stop)
    assert (text, end) == run([[i] for i in ids], stop)
    if match is None:
        assert text == whole and (end.stopped, end.tokens) == (None, len(ids))
        return
    assert text == whole[: match.start] and end.stopped == match.stop and end.matched is not None
    before, until = TOKENIZER.decode(ids[: end.matched - 1]), TOKENIZER.decode(ids[: end.matched])
    assert len(before) < match.end <= len(until)
    assert TOKENIZER.decode(ids[: end.tokens]).startswith(text)
    assert end.tokens == 0 or len(TOKENIZER.decode(ids[: end.tokens - 1])) <= len(text)
