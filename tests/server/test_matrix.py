"""The pairwise matrix: any two of what requests differ in, together, and no token is another one.

`matrix/columns.py` has the columns and what cannot go together; every row is asked of a real engine on the trained
bundled model behind a real server, and its answer is that of the same request alone: cold, whole, without drafts or
neighbours, not streamed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

import pytest

from nextfit.server.anthropic_schemas import MessagesRequest
from nextfit.server.responses_schemas import ResponsesRequest
from tests.server.matrix.columns import FACTORS, IMPOSSIBLE, ROWS, Value
from tests.server.matrix.engines import Engines, engines
from tests.server.matrix.rows import check
from tests.support.pairwise import Row


@pytest.fixture(scope="module")
def made() -> Iterator[Engines]:
    with engines() as found:
        yield found


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    return Counter()


def occurs(rows: list[Row], one: tuple[str, Value], other: tuple[str, Value]) -> bool:
    return any(row[one[0]] == one[1] and row[other[0]] == other[1] for row in rows)


def test_every_possible_pair_is_in_a_row_and_no_other() -> None:
    """Counted without what made the rows."""
    counted = 0
    for a, b in combinations(FACTORS, 2):
        for x, y in product(FACTORS[a], FACTORS[b]):
            possible = a != "api" or (x, b, y) not in IMPOSSIBLE
            assert occurs(ROWS, (a, x), (b, y)) == possible, (a, x, b, y)
            counted += possible
    sizes = [len(values) for values in FACTORS.values()]
    assert counted == (sum(sizes) ** 2 - sum(n * n for n in sizes)) // 2 - len(IMPOSSIBLE)


def test_what_is_said_to_have_no_field_has_none() -> None:
    """A field that comes some day makes its pairs possible."""
    fields = {
        "form": {"regex", "grammar"},
        "penalties": {"frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"},
        "logprobs": {"logprobs", "top_logprobs"},
        "n": {"n"},
        "sampling": {"seed"},
        "stop": {"stop", "stop_sequences"},
        "thinking": {"thinking", "thinking_budget"},
    }
    for api, body in (("messages", MessagesRequest), ("responses", ResponsesRequest)):
        without = {column for name, column, _ in IMPOSSIBLE if name == api}
        for column in without:
            known = set(body.model_fields) - ({"top_logprobs"} if api == "responses" else set())  # refused
            assert not known & fields[column], (api, column)


@pytest.mark.parametrize("row", ROWS, ids=[f"row{i}" for i in range(len(ROWS))])
def test_row(row: Row, made: Engines, seen: Counter[str]) -> None:
    check(made, row, seen)
    seen["rows"] += 1


def test_all_of_it_happened(seen: Counter[str]) -> None:
    """What no single row must show."""
    wanted = ("left", "drafts accepted", "drafts rejected", "probabilities", "stopped", "called", "thought")
    assert seen["rows"] < len(ROWS) or all(seen[what] for what in wanted), seen
