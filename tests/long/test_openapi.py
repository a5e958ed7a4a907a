"""The OpenAPI file held to the server by many more requests, other ones in every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings
from schemathesis import Case

from tests.server.test_openapi import drawn, routes, url, whatever

__all__ = ["url"]
SEEN = Counter[str]()  # paths, whenever they answered 200


@pytest.fixture(autouse=True)
def more_than_refusals_are_seen(request: pytest.FixtureRequest) -> Iterator[None]:
    before = SEEN.total()
    yield
    guessed = "/v1/models/{name}" in request.node.name  # no name is guessed
    assert guessed or SEEN.total() - before > 2, request.node.name


@pytest.mark.timeout(600)
@routes.parametrize()
@settings(drawn, max_examples=100, derandomize=False)
def test_whatever_is_sent(case: Case, url: str) -> None:
    SEEN[case.path] += whatever(case, url) == 200
