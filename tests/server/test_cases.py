"""Cases of other engines' faults through HTTP: the real engine on the scripted model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from nextfit.config import GenerationDefaults
from nextfit.server.engine_main import offer
from tests.server.scripted import CONTEXT, END, EngineThread, live
from tests.support.scripted_model import ScriptedEngine, ScriptedModel, wrong_at

# a llama, a family of four joined people, a letter with an accent of its own, Hangul as one and as joined letters
TEXT = "🦙 👨‍👩‍👧‍👦 e\u0301é 한국 \u1112\u1161\u11ab!"


@contextmanager
def served(
    said: Sequence[int], tps: int = 1, wrong: int = 0, **limits: Any
) -> Iterator[tuple[str, ScriptedEngine]]:
    """A server whose tokens are bytes, and its engine."""
    model = ScriptedModel(258, END, wrong_at(wrong))
    engine = ScriptedEngine(lambda prompt: said, model=model, tokens_per_step=tps, context=CONTEXT, **limits)
    with live(EngineThread(offer(engine, GenerationDefaults((END,))))) as url:
        yield url, engine


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/completions", json={"temperature": 0, **body}, timeout=20)
    return {"status": answer.status_code, **answer.json()}


def deltas(url: str, body: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Texts of the events, and the last one, which has the usage."""
    body = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}, **body}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=20)
    events = [
        json.loads(e.removeprefix("data: ")) for e in answer.text.split("\n\n") if e.startswith("data: {")
    ]
    return [c["text"] for e in events for c in e["choices"]], events[-1]


@pytest.mark.parametrize("tps", [1, 4, 200])
def test_a16_characters_come_whole(tps: int) -> None:
    said = TEXT.encode()
    with served(said, tps, wrong=3) as (url, _):
        pieces, last = deltas(url, {"prompt": "a", "max_tokens": 200})
        assert "".join(pieces) == TEXT and not any("\ufffd" in p for p in pieces)
        assert last["usage"]["completion_tokens"] == len(said)
        for length in range(1, len(said), 8):
            whole = said[:length].decode(errors="ignore")
            pieces, _ = deltas(url, {"prompt": "a", "max_tokens": length})
            assert (
                "".join(pieces) == whole
                and post(url, {"prompt": "a", "max_tokens": length})["choices"][0]["text"] == whole
            )


@pytest.mark.parametrize("tps", [1, 4, 200])
def test_a11_nothing_after_an_end(tps: int) -> None:
    with served([*b"ab", END, *b"d"], tps) as (url, _):
        for _ in range(2):  # the second time in the same slot
            answer = post(url, {"prompt": "a", "max_tokens": 20})
            assert answer["choices"][0]["text"] == "ab" and answer["choices"][0]["finish_reason"] == "stop"
            assert answer["usage"]["completion_tokens"] == 2
        assert "".join(deltas(url, {"prompt": "a", "max_tokens": 20})[0]) == "ab"


def test_a12_the_context_to_its_last_token() -> None:
    """What does not fit is refused with the counts, not cut; without max_tokens an answer goes on to the limit."""
    with served([65] * 300, tps=4) as (url, _):
        chat = {"messages": [{"role": "user", "content": "x" * 180}], "temperature": 0}
        length = httpx.post(f"{url}/v1/chat/completions", json=chat, timeout=20).json()["usage"]
        assert length["total_tokens"] == CONTEXT
        for prompt, most, status in (
            (250, 6, 200),
            (250, 7, 400),
            (256, 1, 400),
            (257, 1, 400),
            (255, 1, 200),
        ):
            answer = post(url, {"prompt": [66] * prompt, "max_tokens": most})
            assert answer["status"] == status
            if status == 400:
                assert str(prompt) in answer["error"]["message"] and "256" in answer["error"]["message"]
            else:
                assert answer["usage"]["completion_tokens"] == most
                assert answer["choices"][0]["finish_reason"] == "length"


def test_a14_a_prompt_of_several_choices_counts_once() -> None:
    with served([*b"hello"], tps=4) as (url, _):
        answer = post(url, {"prompt": [66] * 40, "n": 3, "seed": 7, "temperature": 1})
        assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
        assert answer["usage"]["prompt_tokens"] == 40 and answer["usage"]["completion_tokens"] == 3 * 5


def test_b35_cached_tokens_are_told() -> None:
    with served([*b"hello"], tps=4) as (url, engine):
        found = [post(url, {"prompt": [66] * 40})["usage"]["prompt_tokens_details"] for _ in range(2)]
        assert [f["cached_tokens"] for f in found] == [0, 32]
        _, last = deltas(url, {"prompt": [66] * 40})
        assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
        assert engine.totals().cached_tokens == 64
