"""Tokens to text with stop strings, and which tokens the text came from."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nextfit.text import MarkupReader, TextDelta, TextStream
from nextfit.text.events import Content, Reply
from tests.text.samples import LLAMA, default_tokenizer
from tests.text.test_stop import expected
from tests.text.transcripts import TOOLS

TOKENIZER = default_tokenizer()
BYTE = {TOKENIZER.token_bytes(i): i for i in range(256)}
IM_END = TOKENIZER.encode("<|im_end|>")[0]


def delta(text: str, *rest: Any) -> TextDelta:
    return TextDelta((Content(text),) if text else (), *rest)


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
    assert end == delta("", "versation ha", conver + 1, harbour + 1)
    text, end = run([ids], [" conversation"])  # begins with a token: that token is left out
    assert text == "Answer: the" and end.tokens == conver and end.matched == harbour
    assert run([ids], ["conversations", "z"])[0] == "Answer: the conversation harbour"


def test_held_text_is_not_yet_covered() -> None:
    stream = TextStream(TOKENIZER, ["Question:"])
    a, q, u, x = (byte_tokens(c)[0] for c in "aQux")
    assert stream.push([a]) == delta("a", None, 1)
    assert stream.push([q]) == delta("", None, 1)
    assert stream.push([u]) == delta("", None, 1)
    assert stream.push([x]) == delta("Qux", None, 4)
    assert stream.push([q]) == delta("", None, 4)
    assert stream.finish() == delta("Q", None, 5)
    assert stream.finish() == delta("", None, 5)


def test_open_characters_are_not_yet_covered() -> None:
    ids = byte_tokens(f"a{LLAMA}b")
    stream = TextStream(TOKENIZER)
    deltas = [stream.push([i]) for i in ids[:-2]]
    assert [d.tokens for d in deltas] == [1, 1, 1, 1] and [d.text for d in deltas] == ["a", "", "", ""]
    assert stream.push(ids[-2:]) == delta(f"{LLAMA}b", None, 6)
    stream = TextStream(TOKENIZER, [LLAMA])
    assert stream.push(ids) == delta("a", LLAMA, 1, 5)


def test_tokens_after_the_stop_are_ignored() -> None:
    stream = TextStream(TOKENIZER, ["b"])
    assert stream.push(byte_tokens("abc")) == delta("a", "b", 1, 2)
    assert stream.push(byte_tokens("def")) == delta("", "b", 1, 2)
    assert stream.finish() == delta("", "b", 1, 2)


def test_special_tokens_are_skipped_and_may_be_named() -> None:
    ids = [*byte_tokens("ab"), IM_END, *byte_tokens("cd")]
    assert run([ids], [])[0] == "abcd"
    assert run([ids], ["bc"]) == ("a", delta("", "bc", 1, 4))
    assert run([ids], ["<|im_end|>", "bx"]) == ("ab", delta("", "<|im_end|>", 2, 3))
    stream = TextStream(TOKENIZER, ["_end|>"], skip_special=False)
    assert stream.push(ids) == delta("ab<|im", "_end|>", 3, 3)
    stream = TextStream(TOKENIZER, ["<|im_end|>"], skip_special=False)
    assert stream.push(ids) == delta("ab", "<|im_end|>", 2, 3)


def test_think_and_tool_tokens_are_text() -> None:
    ids = TOKENIZER.encode("<think>x</think><tool_call>y</tool_call>")
    assert run([ids], [])[0] == "<think>x</think><tool_call>y</tool_call>"
    assert run([ids], ["</think>"]) == ("<think>x", delta("", "</think>", 2, 3))


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


def test_stop_strings_are_those_of_the_content() -> None:
    """Case A4; and the tokens of a match are told apart although marks come before it."""
    ids = TOKENIZER.encode("Question: x</think>\n\nAnswer: 4 Question: y")
    for groups in ([ids], [[i] for i in ids], [ids[:7], ids[7:]]):
        stream = TextStream(TOKENIZER, ["Question:"], MarkupReader(TOOLS, thinking=True))
        reply, last = Reply(), delta("", None, 0)
        for last in [*(stream.push(group) for group in groups), stream.finish()]:
            for event in last.events:
                reply.add(event)
        assert (reply.reasoning, reply.content, last.stopped) == ("Question: x", "Answer: 4 ", "Question:")
        assert stream.reasoning_tokens == ids.index(TOKENIZER.encode("</think>")[0]) + 1
        assert TOKENIZER.decode(ids[: last.tokens]).endswith("Answer: 4 ")
        assert last.matched is not None and TOKENIZER.decode(ids[: last.matched]).endswith("4 Question:")


def test_a_stop_string_does_not_cut_a_call() -> None:
    call = "<tool_call><function=assist><parameter=query>a stop b</parameter></function></tool_call>"
    ids = TOKENIZER.encode(f"st{call}op stop")
    stream = TextStream(TOKENIZER, ["stop"], MarkupReader(TOOLS))
    found = [e for i in ids for e in stream.push([i]).events] + [*stream.finish().events]
    reply = Reply()
    for event in found:
        reply.add(event)
    assert (reply.content, reply.calls[0].arguments) == ("stop ", '{"query":"a stop b"}')


def test_one_call_ends_the_answer() -> None:
    call = "<tool_call><function=now></function></tool_call>"
    ids = TOKENIZER.encode(call + call)
    stream = TextStream(TOKENIZER, (), MarkupReader(TOOLS, single=True))
    deltas = [stream.push([i]) for i in ids]
    assert [d.stopped for d in deltas if d.stopped][:1] == ["</tool_call>"]
    assert deltas[-1].matched == TOKENIZER.encode(call + call).index(TOKENIZER.encode("</tool_call>")[0])
    assert sum(len(d.events) for d in deltas) == 3
