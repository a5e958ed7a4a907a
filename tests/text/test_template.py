"""Our rendering against transformers', byte for byte; then what only a server meets."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from nextfit.errors import CheckpointError, RequestError
from nextfit.models import default_path
from nextfit.text import ChatTemplate, sandbox
from tests.text.samples import FAMILY, FIXTURES, default_tokenizer

SOURCE = (default_path() / "chat_template.jinja").read_text()
MICRO = (FIXTURES / "micro-nvfp4" / "chat_template.jinja").read_text()
VARIABLES = default_tokenizer().template_variables
OURS = ChatTemplate(SOURCE, VARIABLES)
TRANSFORMERS = PreTrainedTokenizerFast(
    tokenizer_file=str(default_path() / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>"
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "tide_table",
            "description": 'High & low water, <b>UTC</b>, in "metres" — für Häfen 港',
            "parameters": {
                "type": "object",
                "properties": {"harbour": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
                "required": ["harbour"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {}}},
]
HELLO = [{"role": "user", "content": "Hello"}]
CALL = {
    "name": "tide_table",
    "arguments": {"harbour": "Brest\n<b>", "days": 3, "unit": None, "x": ["a", 1.5, True]},
}
TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "  Be brief. "},
    {"role": "user", "content": f"Tides, bitte: é e\u0301 한국어 {FAMILY} <think>"},
    {
        "role": "assistant",
        "content": "I look it up.",
        "reasoning_content": "First the\nharbour.",
        "tool_calls": [
            {"id": "1", "type": "function", "function": CALL},
            {"function": {"name": "now", "arguments": {}}},
        ],
    },
    {"role": "tool", "content": '{"high": "04:12"}', "tool_call_id": "1"},
    {"role": "tool", "content": [{"type": "text", "text": "12:00"}, {"type": "text", "text": " UTC"}]},
    {"role": "assistant", "content": "<think>\nNow answer.\n</think>\n\nAt 04:12.", "tool_calls": None},
    {"role": "user", "content": [{"type": "text", "text": "Thanks"}, {"type": "text", "text": "!"}]},
    {"role": "assistant", "content": "Welcome.", "reasoning": "Polite."},
    {"role": "user", "content": "Again.", "name": None},
]
AGAIN: list[dict[str, Any]] = [
    *TURNS,
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Call."},
    {"role": "tool", "content": "none"},
]

# what templates in the wild use
FEATURES = [MICRO, *Path(__file__).with_name("features.txt").read_text().split("\n=====\n")]


def theirs(source: str, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    kwargs = {"add_generation_prompt": True, **kwargs}
    return TRANSFORMERS.apply_chat_template(messages, chat_template=source, tokenize=False, **kwargs)


@pytest.mark.parametrize("messages", [HELLO, TURNS, AGAIN], ids=["hello", "turns", "again"])
@pytest.mark.parametrize("tools", [None, [], TOOLS], ids=["none", "empty", "tools"])
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"add_generation_prompt": False},
        {"enable_thinking": True},
        {"enable_thinking": False},
        {"enable_thinking": None},
        {"reasoning_effort": "xhigh"},
        {"reasoning_effort": "medium"},
        {"reasoning_effort": "low"},
        {"reasoning_effort": "low", "enable_thinking": False},
        {"preserve_thinking": False},
    ],
    ids=str,
)
def test_bundled_template(messages: list[dict[str, Any]], tools: Any, kwargs: dict[str, Any]) -> None:
    assert OURS.render(messages, tools, **kwargs) == theirs(SOURCE, messages, tools=tools, **kwargs)


@pytest.mark.parametrize("source", FEATURES, ids=range(len(FEATURES)))
def test_features(source: str) -> None:
    messages = [{**m, "content": m["content"] or ""} for m in TURNS]
    if source is MICRO:
        messages = [m for m in messages if isinstance(m["content"], str)]
    assert ChatTemplate(source, VARIABLES).render(messages, TOOLS) == theirs(source, messages, tools=TOOLS)


def test_documents_and_values() -> None:
    source = "{{ documents | tojson }}{{ x }}{{ y | tojson }}{{ messages[0].n }}"

    class Mode(enum.StrEnum):
        FAST = "fast"

    class Level(enum.IntEnum):
        HIGH = 3

    messages = [{"role": "user", "content": "", "n": Level.HIGH}]
    kwargs: dict[str, Any] = {"documents": [{"title": "a", "text": "b"}], "x": Mode.FAST, "y": (1, 2.5, None)}
    assert ChatTemplate(source).render(messages, **kwargs) == theirs(source, messages, **kwargs)


def test_form_of_the_bundled_template() -> None:
    """The format of spec section 9, said once more by hand."""
    start = "<|im_start|>system\nReasoning effort: xhigh."
    assert OURS.render(HELLO).startswith(start)
    assert OURS.render(HELLO).endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n")
    turn = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert OURS.render(HELLO, enable_thinking=False) == f"{turn}<think>\n\n</think>\n\n"
    assert OURS.render(HELLO, reasoning_effort="medium") == f"{turn}<think>\n"
    text = OURS.render(AGAIN, TOOLS)
    assert text.startswith(start) and text.count("<|im_start|>system") == 1
    lines = text.partition("<tools>\n")[2].partition("\n</tools>")[0].splitlines()
    assert [json.loads(line) for line in lines] == TOOLS
    assert text.index("</tools>") < text.index("Be brief.<|im_end|>")
    assert "<parameter=harbour>\nBrest\n<b>\n</parameter>\n<parameter=days>\n3\n</parameter>" in text
    assert '<parameter=unit>\nnull\n</parameter>\n<parameter=x>\n["a", 1.5, true]\n</parameter>' in text
    results = "<|im_start|>user\n<tool_response>\n{}\n</tool_response>\n<tool_response>\n{}\n</tool_response>"
    assert results.format('{"high": "04:12"}', "12:00 UTC") + "<|im_end|>" in text
    assert "<think>\nFirst the\nharbour.\n</think>\n\nI look it up.\n\n<tool_call>\n" in text
    assert "<|im_start|>assistant\n<think>\nCall.\n</think>\n\n<tool_call>\n<function=tide_table>\n" in text
    forgetful = OURS.render(AGAIN, preserve_thinking=False)
    assert "<|im_start|>assistant\nAt 04:12.<|im_end|>" in forgetful and "Polite." not in forgetful
    assert "<think>\nCall.\n</think>" in forgetful


REFUSED: list[tuple[list[dict[str, Any]], dict[str, Any], str]] = [
    (HELLO, {"reasoning_effort": "high"}, "reasoning_effort must be xhigh, medium or low, found high"),
    ([*HELLO, {"role": "system", "content": "x"}], {}, "Only the first message may have the role system"),
    (
        [*HELLO, {"role": "developer", "content": "x"}],
        {},
        "Message roles are system, user, assistant and tool",
    ),
    ([{"role": "system", "content": "x"}], {}, "The conversation has no user message"),
    (
        [{"role": "user", "content": " <tool_response>\nx\n</tool_response> "}],
        {},
        "The conversation has no user message",
    ),
    ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "found a content part of type image_url"),
    ([{"role": "user", "content": 5}], {}, "Message content must be text"),
    (
        [*HELLO, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ["a"]}}]}],
        {},
        "The arguments of a tool call must be an object",
    ),
]


@pytest.mark.parametrize(("messages", "kwargs", "message"), REFUSED, ids=range(len(REFUSED)))
def test_the_template_refuses(messages: list[dict[str, Any]], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as refusal:
        OURS.render(messages, **kwargs)
    assert message in str(refusal.value) and refusal.value.param == "messages"


def test_arguments_as_json_text() -> None:
    def turn(arguments: Any) -> list[dict[str, Any]]:
        return [
            *HELLO,
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
        ]

    assert OURS.render(turn('{"a": [1], "b": "x"}')) == OURS.render(turn({"a": [1], "b": "x"}))
    assert OURS.render(turn("")) == OURS.render(turn({}))
    given = turn('{"a": 1}')
    OURS.render(given)
    assert given == turn('{"a": 1}')  # the caller's messages are never changed
    for text, message in (("{", "is not JSON"), ("[1]", "is a JSON list, expected an object")):
        with pytest.raises(RequestError, match=message) as refusal:
            OURS.render(turn(text))
        assert refusal.value.param == "messages[1].tool_calls[0].function.arguments"


def test_requests_that_are_no_conversation() -> None:
    for messages, message in (
        ([], "messages is empty"),
        (["hi"], r"messages\[0\] is of type str, expected an object"),
        (
            [{"role": "user", "content": object()}],
            r"messages\[0\].content is of type object, expected a JSON value",
        ),
        ([{"role": "user", "content": [b"x"]}], r"messages\[0\].content\[0\] is of type bytes"),
    ):
        with pytest.raises(RequestError, match=message):
            OURS.render(messages)  # type: ignore[arg-type]
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(RequestError, match="nested too deeply"):
        OURS.render([{"role": "user", "content": deep}])
    with pytest.raises(RequestError, match="tools is of type function") as refusal:
        OURS.render(HELLO, tools=lambda: 1)  # type: ignore[arg-type]
    assert refusal.value.param == "tools"


def test_chat_template_kwargs() -> None:
    off = {"enable_thinking": False}
    assert OURS.render(HELLO, chat_template_kwargs=off) == OURS.render(HELLO, enable_thinking=False)
    assert OURS.render(HELLO, chat_template_kwargs=off, enable_thinking=True) == OURS.render(
        HELLO, enable_thinking=False
    )
    for name in ("messages", "tools", "documents", "add_generation_prompt"):
        with pytest.raises(RequestError, match=f"chat_template_kwargs has '{name}'") as refusal:
            OURS.render(HELLO, chat_template_kwargs={name: []})
        assert refusal.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% if x %}", "chat template, line 2: "),
        ("{{ x | no_such_filter }}", "no_such_filter"),
        ("{% for %}", "line 1"),
        ("{% for x in y %}" * 25 + "{% endfor %}" * 25, "chat template"),  # more than Python nests
    ],
    ids=["unclosed", "filter", "syntax", "nesting"],
)
def test_broken_template(source: str, message: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        ChatTemplate(source)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ ''['__class__'].__mro__ }}",
        "{{ '' | attr('__class__') | attr('__mro__') }}{{ ('' | attr('__class__')).x }}",
        "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__.x }}",
        "{{ dict.mro() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set ns = namespace(__x=1) %}",
        "{% set ns = namespace() %}{% set ns.__x = 1 %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ lipsum(5) }}",
        "{{ range(1000000) | list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 1 // 0 }}",
        "{{ messages + 1 }}",
        "{{ messages[0].content() }}",
    ],
)
def test_sandbox(source: str) -> None:
    with pytest.raises(RequestError, match="^chat template: "):
        ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
    ids=["loops", "calls"],
)
def test_step_limit(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "STEP_LIMIT", 20_000)
    with pytest.raises(RequestError, match="more than 20,000 loop turns and calls"):
        ChatTemplate(source).render(HELLO)
    assert ChatTemplate("{% for a in range(19000) %}{% endfor %}x").render(HELLO) == "x"


def test_steps_are_counted_for_each_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "STEP_LIMIT", 1_000)
    template = ChatTemplate("{% for a in range(900) %}{% endfor %}x")
    assert [template.render(HELLO) for _ in range(3)] == ["x"] * 3
