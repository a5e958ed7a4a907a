"""200 random JSON schemas: every answer is whole and valid, with and without drafts, on every API."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from jsonschema import Draft202012Validator

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.llm import LLM
from nextfit.server.service import Service
from nextfit.text import formats
from nextfit.text.schema import checked
from tests.server.scripted import running
from tests.server.test_conversation import ask
from tests.server.test_refusals import schema
from tests.support.random_schemas import random_schema
from tests.support.scripted_server import build, load_here

SCHEMAS = [random_schema(seed) for seed in range(200)]


def answers(llm: LLM, schemas: list[dict[str, Any]]) -> tuple[list[list[int]], int]:
    """Token ids of an answer to each schema, and the drafts that were accepted."""
    found: list[list[int]] = [[] for _ in schemas]
    reasons = [""] * len(schemas)
    for i, one in enumerate(schemas):
        source = formats.json_schema(checked(one, "s"), "s").source
        params = SamplingParams(temperature=1.0, seed=i, grammar=source)
        llm.engine.add(Request(str(i), [i + 1, 7, 9], params), llm.grammars.get(source).result())
    while llm.engine.has_work():
        for out in llm.engine.step():
            found[int(out.request_id)] += [t.token for t in out.tokens]
            reasons[int(out.request_id)] = out.finish_reason or ""
    llm.grammars.close()
    assert set(reasons) == {"stop"}
    return found, llm.engine.totals().accepted


@pytest.mark.timeout(1800)
def test_the_bundled_model() -> None:
    """Random weights and drafts of their own head, eight at a time."""
    schemas = SCHEMAS[:48]
    models = [LLM(dtype="float64", context=1024, draft=draft, adaptive_draft=False) for draft in (0, 4)]
    (plain, _), (drafted, accepted) = [answers(llm, schemas) for llm in models]
    assert plain == drafted and accepted > 0
    for one, tokens in zip(schemas, plain, strict=True):
        Draft202012Validator(one).validate(json.loads(models[0].tokenizer.decode(tokens)))


@pytest.mark.timeout(1800)
def test_over_http() -> None:
    """Whole and streamed, behind a thought or not, seeds drawn at random from what is allowed."""
    found: list[list[str]] = []
    for depth in (1, 5):
        built = build({"say": ["Hm.</think>"]}, tokens_per_step=depth, context=4096)
        with running(Service(load_here(built))) as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
            found.append([])
            for i, one in enumerate(SCHEMAS):
                extra: Any = {"extra_body": {"enable_thinking": bool(i % 2)}}
                fields = {"response_format": schema(one), "temperature": 1, "seed": i, **extra}
                answer = ask(client, "say", **fields)
                assert answer["reason"] == "stop" and (answer["reasoning"] == "Hm.") == bool(i % 2)
                Draft202012Validator(one).validate(json.loads(answer["content"]))
                found[-1].append(answer["content"])
    assert found[0] == found[1]


@pytest.mark.timeout(1800)
def test_over_the_other_apis() -> None:
    """The same, each answer another one: neither API knows seeds."""
    built = build({"say": ["Hm.</think>"]}, tokens_per_step=5, context=4096)
    with running(Service(load_here(built))) as url:
        responses = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60).responses
        messages = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60).messages
        for i, one in enumerate(SCHEMAS):
            text = {"format": {"type": "json_schema", "name": "s", "schema": one}}
            fields: Any = {"model": "scripted", "input": "say", "text": text, "temperature": 1}
            if i % 2:
                said = responses.create(**fields).output_text
            else:
                *_, last = responses.create(**fields, stream=True)
                said = last.response.output_text
            Draft202012Validator(one).validate(json.loads(said))
            body = {"output_config": {"format": {"type": "json_schema", "schema": one}}, "temperature": 1}
            fields = {
                "model": "scripted",
                "messages": [{"role": "user", "content": "say"}],
                "max_tokens": 3000,
            }
            if i % 2:
                message = messages.create(**fields, extra_body=body)
            else:
                with messages.stream(**fields, extra_body=body) as stream:
                    message = stream.get_final_message()
            assert message.stop_reason == "end_turn" and message.content[-1].type == "text"
            Draft202012Validator(one).validate(json.loads(message.content[-1].text))
