"""The draft head against transformers' blocks: a pass over the prompt, then recursive steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nextfit.model import Model
from tests.model.drive import Line, Rows, Session, cuts, text
from tests.oracle.reference import Reference
from tests.support.random_model import random_parts, resident_weights, small_config

TOLERANCE = 1e-4
STEPS = 3


@pytest.fixture(scope="module")
def pair() -> tuple[Reference, Model]:
    c = small_config(num_hidden_layers=4)
    parts = random_parts(c, seed=5)
    return Reference(c, parts), Model(c, resident_weights(c, parts), torch.float32)


@torch.no_grad()
def drafted(
    model: Model, ids: list[int], sizes: list[int], decode: bool, page_size: int = 16
) -> tuple[Tensor, Tensor]:
    """Draft logits of rows 0.. [tokens - 1, vocabulary] in steps of `sizes` rows, then of recursive ones."""
    assert model.draft is not None
    n = len(ids)
    session = Session(model, n + STEPS, page_size=page_size, window=max(sizes) if decode else 1)
    line, rows = session.line(), []
    z = torch.empty(0)
    for a, b in cuts(n, sizes):
        (streams,) = session.step([Rows(line, ids[a:b], decode)])
        known = ids[a + 1 : b + 1]
        if known:
            z = session.draft([Rows(line, known, decode)], streams[: len(known)], [a])
            rows.append(session.draft_logits(z, len(known) if decode else 0))
    logits = torch.cat(rows)
    return logits, recursive(session, line, z[-1:], logits[-1:], n - 1)


def recursive(session: Session, line: Line, z: Tensor, logits: Tensor, first: int) -> Tensor:
    assert session.model.draft is not None
    out = []
    for i in range(STEPS):
        z = session.draft([Rows(line, [int(logits[0].argmax())], True)], z, [first + i])
        logits = session.draft_logits(z, 1)
        out.append(logits[0])
    return torch.stack(out)


@pytest.mark.parametrize(
    ("n", "sizes", "decode"),
    [(2, [2], False), (3, [3], False), (5, [5], False), (90, [90], False), (90, [7, 1, 33], False)]
    + [(90, [1, 5, 3], True)],
)
def test_draft(pair: tuple[Reference, Model], n: int, sizes: list[int], decode: bool) -> None:
    reference, model = pair
    assert model.config.indexer_budget * 5 <= 90
    ids = text(n, model.config.vocab_size, seed=n, marks={n // 3: model.config.eos_token_id})
    wanted, wanted_steps = reference.draft(ids, STEPS)
    rows, steps = drafted(model, ids, sizes, decode, page_size=4)
    assert float((rows - wanted).abs().max()) < TOLERANCE
    assert float((steps - wanted_steps).abs().max()) < TOLERANCE
