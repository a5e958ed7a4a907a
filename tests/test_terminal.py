"""`nextfit chat` without weights: what is sent, what is printed, what Ctrl-C ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request
from nextfit.terminal import Settings, converse
from nextfit.text import ChatTemplate
from tests.server.scripted import TEMPLATE, TOKENIZER, ScriptedEngine, says


class Scripted:
    """What `converse` needs of an LLM."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.tokenizer = TOKENIZER
        self.template = ChatTemplate(TEMPLATE, {})

    def sampling_params(self, values: Mapping[str, Any]) -> SamplingParams:
        return SamplingParams(**values)


def talk(
    engine: ScriptedEngine, *lines: str | type[BaseException], settings: Settings | None = None
) -> list[str]:
    """Hold a conversation; returns the prompts that the engine saw."""
    left = iter(lines)

    def ask() -> str:
        line = next(left, EOFError)
        if isinstance(line, str):
            return line
        raise line

    converse(Scripted(engine), settings or Settings(), ask)  # type: ignore[arg-type]
    return [bytes(t for t in r.prompt if t < 256).decode() for r in engine.seen]


def test_a_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine(says("wörld"), tps=2)
    prompts = talk(engine, "one", "  two ", "/reset", "three", settings=Settings("sys", False, 0.0, 7, 50))
    assert prompts[1] == "system\nsys\nuser\none\nassistant\nwörld\nuser\ntwo\nassistant\n<think></think>"
    assert prompts[2] == "system\nsys\nuser\nthree\nassistant\n<think></think>"
    assert capsys.readouterr().out.count("wörld\n") == 3
    params = engine.seen[0].params
    assert (params.temperature, params.seed, params.max_tokens) == (0, 7, 50)


def test_exit_and_ctrl_c_at_the_prompt_leave() -> None:
    for leaving in ("/exit", KeyboardInterrupt, EOFError):
        assert talk(ScriptedEngine(says("x")), leaving, "never asked") == []


def test_ctrl_c_ends_the_answer_only(capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupted(ScriptedEngine):
        def step(self) -> list[Output]:
            if self.steps == 3:
                self.steps += 1
                raise KeyboardInterrupt
            return super().step()

    engine = Interrupted(says("abcdef"))
    prompts = talk(engine, "one", "two")
    assert prompts[1] == "user\none\nassistant\nabc\nuser\ntwo\nassistant\n"
    assert engine.cancelled == ["chat"]
    assert not engine.running
    assert capsys.readouterr().out.endswith("abc\nabcdef\n\n")


def test_a_refused_turn_is_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    prompts = talk(ScriptedEngine(says("x")), "refuse me", "hello")
    assert prompts == ["user\nhello\nassistant\n"]
    assert capsys.readouterr().err == "nextfit: chat template: No user query found.\n"


def test_what_is_said_never_ends_in_half_a_character(capsys: pytest.CaptureFixture[str]) -> None:
    def cut(request: Request) -> list[int]:
        return list("aé🦙".encode())[:-1]

    script: Callable[[Request], list[int]] = cut
    talk(ScriptedEngine(script), "hi")
    assert "aé\n" in capsys.readouterr().out
