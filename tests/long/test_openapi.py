"""The OpenAPI file held to the server by many more requests, other ones in every run."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from schemathesis import Case

from tests.server.test_openapi import OPERATIONS, drawn, routes, url, whatever

__all__ = ["url"]
SEEN = Counter[str]()  # paths, whenever they answered 200


@pytest.mark.timeout(600)
@routes.parametrize()
@settings(drawn, max_examples=100, derandomize=False)
def test_whatever_is_sent(case: Case, url: str) -> None:
    SEEN[case.path] += whatever(case, url) == 200


def test_more_than_refusals_was_seen() -> None:
    names = "/v1/models/{name}"  # none is guessed
    assert min(SEEN[path] for path, _ in OPERATIONS if path != names) > 2, SEEN
