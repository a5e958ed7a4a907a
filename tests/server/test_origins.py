"""Browsers: which pages may ask, and under which names the server can be asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI

from nextfit.errors import ConfigError
from nextfit.server.app import create_app
from nextfit.server.config import HttpConfig
from nextfit.server.origins import read_hosts, read_origins
from nextfit.server.service import Service
from tests.server.scripted import ScriptedEngine, live, load, says
from tests.server.test_keys import paths

PAGE, OTHER = "https://chat.example", "https://evil.example"
KEY = {"x-api-key": "right"}
HI = {"messages": [{"role": "user", "content": "hi"}], "prompt": "a", "max_tokens": 3}
SENT = "authorization,anthropic-version,content-type,x-stainless-lang"


def preflight(origin: str, method: str = "POST") -> dict[str, str]:
    """What a browser sends before a page's request: no key."""
    asked = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": SENT}
    return {"Origin": origin, **asked}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    http = HttpConfig(keys=("right",), origins=(PAGE, "http://localhost:3000"))
    with live(ScriptedEngine(says("abc")), http) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client


def table(*, keys: tuple[str, ...] = (), origins: tuple[str, ...] = ()) -> FastAPI:
    return create_app(Service(load(ScriptedEngine(says("x")))), HttpConfig(keys=keys, origins=origins))


def test_a_preflight_of_every_route_needs_no_key(client: httpx.Client) -> None:
    for path in paths(table().routes):
        answer = client.options(path, headers=preflight(PAGE))
        assert answer.status_code == 200, path
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-headers"] == SENT
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_page_may_read_answers_and_errors(client: httpx.Client, path: str, stream: bool) -> None:
    for headers, body, status in (
        (KEY, HI, 200),
        ({}, HI, 401),
        (KEY, {"prompt": "a", "temperature": 500}, 400),
    ):
        answer = client.post(path, json={**body, "stream": stream}, headers={"Origin": PAGE, **headers})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "origin" in answer.headers["vary"].lower()


def test_a_preflight_from_elsewhere(client: httpx.Client) -> None:
    for origin in (OTHER, "null", "http://chat.example", f"{PAGE}:8443", "https://a.chat.example", ""):
        answer = client.options("/v1/chat/completions", headers=preflight(origin))
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
        error = answer.json()["error"]
        assert error["code"] == "origin_not_allowed"
        assert repr(origin) in error["message"] and "--cors-origin" in error["message"]
    error = client.options("/v1/messages", headers=preflight(OTHER)).json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "permission_error"


def test_a_request_from_elsewhere_is_not_told_to_pages(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json=HI, headers={"Origin": OTHER, **KEY})
    assert "access-control-allow-origin" not in answer.headers


def test_an_options_that_is_no_preflight_needs_a_key(client: httpx.Client) -> None:
    assert client.options("/v1/models", headers={"Origin": PAGE}).status_code == 401
    assert client.options("/v1/models", headers={"Access-Control-Request-Method": "GET"}).status_code == 401


async def ask(app: FastAPI, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, headers=headers)


@pytest.mark.anyio
async def test_off_unless_asked_for() -> None:
    for keys, status in ((("right",), 401), ((), 405)):
        answer = await ask(table(keys=keys), "OPTIONS", "/v1/completions", preflight(PAGE))
        assert answer.status_code == status
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.anyio
async def test_any_origin() -> None:
    answer = await ask(table(keys=("right",), origins=("*",)), "OPTIONS", "/v1/completions", preflight(OTHER))
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.fixture(scope="module")
def loopback() -> Iterator[tuple[httpx.Client, ScriptedEngine]]:
    engine = ScriptedEngine(says("abc"))
    http = HttpConfig(hosts=read_hosts((), "127.0.0.1"))
    with live(engine, http) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client, engine


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "LocalHost:1", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8000"]
)
def test_names_of_this_machine(loopback: tuple[httpx.Client, ScriptedEngine], host: str) -> None:
    assert loopback[0].post("/v1/completions", json=HI, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "xlocalhost", "127.0.0.1.evil.example",
     "192.168.0.1", "[::2]", "[::1", "", ":8000"],
)  # fmt: skip
def test_names_of_strangers(loopback: tuple[httpx.Client, ScriptedEngine], host: str) -> None:
    client, engine = loopback
    seen = len(engine.seen)
    for path in ("/v1/completions", "/v1/chat/completions", "/no/such/route"):
        answer = client.post(path, json=HI, headers={"Host": host})
        assert answer.status_code == 403
        error = answer.json()["error"]
        assert error["code"] == "host_not_allowed"
        assert repr(host) in error["message"] and "--allowed-host" in error["message"]
    answer = client.post("/v1/messages", json=HI, headers={"Host": host})
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
    for path in ("/", "/health", "/metrics"):
        assert client.get(path, headers={"Host": host}).status_code == 403
    assert len(engine.seen) == seen


def test_others_never_notice(loopback: tuple[httpx.Client, ScriptedEngine]) -> None:
    client, _ = loopback
    answers: list[int] = []
    ask = threading.Thread(target=lambda: answers.append(client.post("/v1/completions", json=HI).status_code))
    ask.start()
    assert client.get("/health", headers={"Host": "evil.example"}).status_code == 403
    ask.join(20)
    assert answers == [200]


@pytest.mark.parametrize(
    ("given", "bound", "hosts"),
    [
        ((), "127.0.0.1", ("localhost", "127.0.0.1", "::1")),
        ((), "localhost", ("localhost", "127.0.0.1", "::1")),
        ((), "::1", ("localhost", "127.0.0.1", "::1")),
        ((), "127.0.0.7", ("localhost", "127.0.0.1", "::1", "127.0.0.7")),
        ((), "0.0.0.0", ("*",)),
        ((), "192.168.0.1", ("*",)),
        (("Box.lan", "::2"), "0.0.0.0", ("box.lan", "::2")),
        (("*",), "127.0.0.1", ("*",)),
    ],
)
def test_read_hosts(given: tuple[str, ...], bound: str, hosts: tuple[str, ...]) -> None:
    assert read_hosts(given, bound) == hosts


@pytest.mark.parametrize("host", ["http://box", "box:8000", "box/", "", "*.lan", "[::1]"])
def test_no_host(host: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-host"):
        read_hosts([host], "127.0.0.1")


def test_read_origins() -> None:
    good = ("*", PAGE, "http://localhost:3000", "tauri://localhost")
    assert read_origins(good) == good


@pytest.mark.parametrize(
    "origin", ["chat.example", f"{PAGE}/", "https://Chat.example", "", "https://", "null"]
)
def test_no_origin(origin: str) -> None:
    with pytest.raises(ConfigError, match="--cors-origin"):
        read_origins([origin])
