"""Case A18: no route but /health answers without a key, also one that is added later."""

from __future__ import annotations

import logging
from base64 import b64encode
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute

from nextfit.errors import ConfigError
from nextfit.server.app import create_app
from nextfit.server.config import HttpConfig
from nextfit.server.guard import read_keys
from nextfit.server.service import Service
from tests.server.scripted import ScriptedEngine, live, load, says

KEYS = ("right key one", "right-two")


def paths(routes: list[BaseRoute]) -> list[str]:
    """Every path of the route table, routers inside routers included, parameters filled in."""
    found = []
    for route in routes:
        inner = getattr(route, "routes", None) or getattr(
            getattr(route, "original_router", None), "routes", None
        )
        if inner:
            found += paths(inner)
        elif path := getattr(route, "path", None):
            found.append(path.replace("{name:path}", "nano"))
    return found


@pytest.fixture(scope="module")
def app() -> FastAPI:
    app = create_app(Service(load(ScriptedEngine(says("x")))), HttpConfig(keys=KEYS))
    app.add_api_route("/added/later", lambda: "secret")
    return app


def test_the_walk_sees_the_routes(app: FastAPI) -> None:
    known = {"/health", "/v1/models", "/v1/models/nano", "/v1/chat/completions", "/v1/completions"}
    assert {*known, "/docs", "/openapi.json", "/added/later"} <= set(paths(app.routes))


@pytest.mark.anyio
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS"])
@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ([], False),
        ([("Authorization", "Bearer wrong")], False),
        ([("Authorization", "Bearer ")], False),
        ([("Authorization", "Bearer")], False),
        ([("Authorization", "Basic right-two")], False),
        ([("Authorization", "right-two")], False),
        ([("x-api-key", "wrong")], False),
        ([("x-api-key", "")], False),
        ([("x-api-key", "right -two")], False),
        ([("x-api-key", "right-tw")], False),
        ([("x-api-key", "right-two2")], False),
        ([("Authorization", "Bearer rightkeyone")], False),
        ([("Authorization", "Bearer right")], False),
        ([("Authorization", "Bearer right-two")], True),
        ([("Authorization", "bearer right key one")], True),
        ([("x-api-key", "right-two")], True),
        ([("Authorization", f"Basic {b64encode(b'me:right-two').decode()}")], True),
        ([("Authorization", f"Basic {b64encode(b'right-two:me').decode()}")], False),
        ([("Authorization", f"Basic {b64encode(b'right-two').decode()}")], False),
        ([("x-api-key", "wrong"), ("Authorization", "Bearer right-two")], True),
        ([("x-api-key", "right key one"), ("Authorization", "Bearer wrong")], True),
    ],
)
async def test_every_route(app: FastAPI, method: str, headers: list[tuple[str, str]], allowed: bool) -> None:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in [*paths(app.routes), "/no/such/route", "/health/", "//health", "/health/../v1/models"]:
            answer = await client.request(method, path, headers=headers)
            if allowed or path == "/health":
                assert answer.status_code != 401, path
            else:
                assert answer.status_code == 401, path
                asked = "Basic" if answer.request.url.path == "/" else "Bearer"
                assert answer.headers["www-authenticate"].split()[0] == asked
                if method != "HEAD":
                    error = answer.json()["error"]
                    anthropic = path.startswith("/v1/messages")
                    kind = error["type"] if anthropic else error["code"]
                    assert kind == ("authentication_error" if anthropic else "invalid_api_key")


@pytest.mark.anyio
async def test_the_table_of_routes(app: FastAPI) -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        table = (await client.get("/debug/routes", headers={"x-api-key": KEYS[1]})).json()["routes"]
        for route in table:
            assert list(route) == ["path", "methods", "open"]
            path = route["path"].replace("{name:path}", "nano")
            for method in ("GET", "POST", "PUT", "DELETE"):
                asked = await client.request(method, path)
                assert (asked.status_code == 401) is not route["open"]
                asked = await client.request(method, path, headers={"x-api-key": KEYS[1]})
                assert (asked.status_code == 405) is (method not in route["methods"]), (method, path)
    assert sorted(r["path"].replace("{name:path}", "nano") for r in table) == sorted(paths(app.routes))
    assert [route["path"] for route in table if route["open"]] == ["/health"]


def test_keys_are_not_logged(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        live(ScriptedEngine(says("x"), die_at=1), HttpConfig(keys=KEYS)) as url,
    ):
        for key in (*KEYS, "wrong-three"):
            httpx.post(f"{url}/v1/completions", json={"prompt": "a"}, headers={"x-api-key": key})
    said = capfd.readouterr()
    assert "planted" in caplog.text  # something was logged at all
    for key in (*KEYS, "wrong-three"):
        assert key not in caplog.text + said.out + said.err


def test_without_keys_everybody_may_in() -> None:
    with live(ScriptedEngine(says("x"))) as url:
        assert httpx.get(f"{url}/v1/models").status_code == 200


def test_read_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# a comment\n\nfrom file \n")
    assert read_keys(["flag"], file) == ("flag", "from file")
    assert read_keys([], None) == ()


@pytest.mark.parametrize("key", ["", " a", "a ", "ä", "a\nb"])
def test_keys_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(ConfigError, match="--api-key") as caught:
        read_keys([key], None)
    assert str(caught.value) == "--api-key: a key is printable ASCII without spaces around it"


def test_key_file_without_a_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    with pytest.raises(ConfigError, match="No such file"):
        read_keys(["a"], file)
    file.write_text("\n#\n")
    with pytest.raises(ConfigError, match="holds no key"):
        read_keys(["a"], file)
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="utf-8"):
        read_keys([], file)
