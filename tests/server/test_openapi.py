"""The server's own OpenAPI file: what it describes is answered as it says, whatever is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import ignored_auth, positive_data_acceptance

from nextfit.errors import ConfigError
from nextfit.server.app import create_app
from nextfit.server.config import HttpConfig
from nextfit.server.service import Served, Service
from tests.server.scripted import ScriptedEngine, live, running, says, unready, wait_for
from tests.support import scripted_server

HTTP = HttpConfig(keys=("a key",), hosts=("127.0.0.1",))
HEADERS = {"x-api-key": "a key"}
NOT_HELD = [
    positive_data_acceptance,  # what is right by the schema may be a longer answer than the context has room for
    ignored_auth,  # it spoils one header only, and one right key is enough; `test_keys.py`
]
IMPOSSIBLE = {
    *(
        "model",
        "top_logprobs",
        "tools",
        "tool_choice",
        "grammar",
        "regex",
        "response_format",
        "max_completion_tokens",
    ),
    *("chat_template_kwargs", "suffix", "best_of", "previous_response_id", "conversation", "prompt"),
    *("background", "text", "output_config", "system"),
}
PATHS: dict[str, Any] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [65]},
}


def service() -> Service:
    return Service(scripted_server.load({"hi": "<think>so</think>Hello!"}, context=256))


routes = schemathesis.openapi.from_dict(create_app(service(), HTTP).openapi())
OPERATIONS = {
    (path, way): one for path, ways in routes.raw_schema["paths"].items() for way, one in ways.items()
}
ANSWERS = [path for (path, _), one in OPERATIONS.items() if "429" in one["responses"]]
drawn = settings(
    max_examples=5,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(service(), HTTP) as url:
        yield url


def whatever(case: Case, url: str) -> int:
    """Send `case` and check its answer, whose status is returned."""
    if isinstance(case.body, dict) and case.meta and case.meta.generation.mode == GenerationMode.POSITIVE:
        case.body = possible(case.path, case.body)
    return case.call_and_validate(base_url=url, headers=HEADERS, excluded_checks=NOT_HELD).status_code


def possible(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Without what no schema says: fields that exclude each other, are unsupported or mean nothing at random."""
    kept = {name: value for name, value in body.items() if name not in IMPOSSIBLE}
    if "max_tokens" in kept or "max_output_tokens" in kept:
        kept |= {name: 8 for name in ("max_tokens", "max_output_tokens", "min_tokens") if name in kept}
    return kept | (PATHS["/v1/chat/completions"] if "messages" in kept else PATHS[path])


@routes.parametrize()
@drawn
def test_whatever_is_sent(case: Case, url: str) -> None:
    whatever(case, url)


def described(path: str, method: str, answer: httpx.Response, status: int) -> None:
    """The answer has this status, which the file knows of, and is as it says."""
    assert answer.status_code == status, answer.text
    assert str(status) in OPERATIONS[path, method]["responses"]
    routes[path][method].validate_response(answer)


@pytest.mark.parametrize("path", PATHS)
def test_refusals(path: str, url: str) -> None:
    answer = httpx.post(f"{url}{path}", json=PATHS[path])
    described(path, "post", answer, 401)
    answer = httpx.post(f"{url}{path}", json=PATHS[path], headers={"host": "elsewhere"})
    described(path, "post", answer, 403)
    answer = httpx.post(f"{url}{path}", json={}, headers=HEADERS)
    described(path, "post", answer, 400)
    answer = httpx.post(f"{url}{path}", json=PATHS[path] | {"model": "other"}, headers=HEADERS)
    described(path, "post", answer, 404)
    answer = httpx.post(f"{url}{path}", content=b" " * (HTTP.body_limit + 1), headers=HEADERS)
    described(path, "post", answer, 413)
    assert httpx.post(f"{url}{path}", json=PATHS[path], headers=HEADERS).status_code == 200


def test_nothing_is_served() -> None:
    def fail(report: object) -> Served:
        raise ConfigError("planted")

    with unready(Service(fail)) as url:
        wait_for(lambda: "planted" in httpx.get(f"{url}/health").text)
        for path, method in OPERATIONS:
            if path not in ("/metrics", "/debug/routes"):
                described(path, method, httpx.request(method, f"{url}{path}", json=PATHS.get(path)), 503)


def test_too_many() -> None:
    gate = threading.Event()
    with (
        live(ScriptedEngine(says("x"), gate=gate), sequences=1, queue=0) as url,
        httpx.stream("POST", f"{url}/v1/completions", json={"prompt": "a", "stream": True}) as first,
    ):
        assert first.status_code == 200
        for path in ANSWERS:
            described(path, "post", httpx.post(f"{url}{path}", json=PATHS[path]), 429)
        gate.set()


def test_too_long() -> None:
    engine = ScriptedEngine(says("x" * 10**6), pause=0.01)
    with live(engine, HttpConfig(request_timeout=0.2), context=2**20) as url:
        for path in ANSWERS:
            body = PATHS[path] | {"max_tokens": 10**5}
            described(path, "post", httpx.post(f"{url}{path}", json=body), 504)


def test_no_route_answers_422_and_which_need_a_key() -> None:
    assert not any("422" in one["responses"] for one in OPERATIONS.values())
    assert [path for (path, _), one in OPERATIONS.items() if "security" not in one] == ["/health"]
    assert [path for (path, _), one in OPERATIONS.items() if "401" not in one["responses"]] == ["/health"]
    open_to_all = create_app(service(), HttpConfig()).openapi()
    assert "securitySchemes" not in open_to_all["components"]
    assert "401" not in open_to_all["paths"]["/v1/models"]["get"]["responses"]
