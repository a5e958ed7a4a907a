"""The training forward pass is the engine's, and what it exports is read back by every reader."""

from __future__ import annotations

from dataclasses import replace

import torch

from nextfit.model import Model
from tests.model.drive import Rows as StepRows
from tests.model.drive import Session, text
from tests.support.random_model import random_parts, resident_weights, small_config
from train.model import CHUNK, Net, Rows, logits

LENGTHS = (64, 120)  # both beyond the sparse budget of 16 tokens
TOLERANCE = 1e-4


@torch.no_grad()
def test_the_forward_pass_is_the_engines() -> None:
    """Two conversations in one row, each as the engine computes it alone; the draft head too."""
    c = replace(small_config(num_hidden_layers=4), num_key_value_heads=2)
    parts = random_parts(c, seed=3)
    engine, net = Model(c, resident_weights(c, parts), torch.float32), Net(c, parts, torch.float32, False)
    lines = [text(n, c.vocab_size - 20, seed=n) + [c.eos_token_id] * 4 for n in LENGTHS]
    tokens = torch.tensor([t for line in lines for t in line])
    position = torch.cat([torch.arange(len(line)) for line in lines])
    assert len(tokens) % CHUNK == 0
    rows = Rows.of(c, position[None], 8, True, torch.float32)
    x, index, _ = net.streams(tokens[None], rows)
    ours = logits(c, "hyper_connection_mixer", net.below(""), parts["lm_head.weight"], x)[0]
    z, _, _ = net.draft(x, tokens.roll(-1)[None], rows)
    drafts = logits(c, "mtp.hyper_connection_mixer", net.below(""), parts["lm_head.weight"], z)[0]
    assert float(index) > 0
    first = 0
    for line in lines:
        session = Session(engine, len(line))
        one = session.line()
        (streams,) = session.step([StepRows(one, line)])
        last = first + len(line)
        assert float((session.logits(streams) - ours[first:last]).abs().max()) < TOLERANCE
        own = session.draft([StepRows(one, line[1:])], streams[:-1], [0])
        assert float((session.draft_logits(own, 0) - drafts[first : last - 1]).abs().max()) < TOLERANCE
        first = last
