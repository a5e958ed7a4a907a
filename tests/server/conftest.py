import logging
from collections.abc import Iterator

import httpx
import pytest

from nextfit.server.service import Service
from tests.server.scripted import ScriptedEngine, live, running, says
from tests.support import scripted_server


@pytest.fixture(autouse=True)
def logger() -> Iterator[None]:
    """What `logs.configure` does, undone: its handler writes to what stderr was in that test."""
    log = logging.getLogger("nextfit")
    before = log.handlers, log.propagate, log.level
    yield
    log.handlers, log.propagate, log.level = before


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(says("Hello, wörld! 🦙 bye"), tps=3)


@pytest.fixture(scope="module")
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    """A client of a running server that says `Hello, wörld! 🦙 bye`, three tokens a step."""
    with live(engine) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client


@pytest.fixture(scope="session", params=[1, 4, 9])
def conversing(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server of the real engine, scripted, with the bundled tokenizer; so many tokens a step."""
    from tests.server.test_conversation import ANSWERS

    with running(Service(scripted_server.load(ANSWERS, tokens_per_step=request.param, context=4096))) as url:
        yield url


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
