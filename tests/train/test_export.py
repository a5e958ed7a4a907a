"""What training writes is what it reads again, and conversations are cut where the model speaks."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random

import numpy as np
import torch

from nextfit.checkpoint import open_checkpoint
from train import export, nano
from train.model import new_parts
from train.stream import packed, render, said
from train.tasks import add_steps, arithmetic, subtract_steps

ROOT = Path(__file__).parents[2]


def test_weights_return(tmp_path: Path) -> None:
    c = nano.model_config()
    parts = new_parts(c, 1)
    export.save(tmp_path, c, parts)
    open_checkpoint(tmp_path).require()
    again = export.load(tmp_path, c, "cpu")
    assert again.keys() == parts.keys()
    assert all(torch.equal(again[k], parts[k].to(torch.bfloat16).float()) for k in parts)


def test_only_answers_are_said() -> None:
    tokenizer, random = nano.tokenizer(), Random(5)
    for _ in range(20):
        sample = arithmetic(random, 1024)
        ids = tokenizer.encode(render(sample))
        spoken = tokenizer.decode(np.array(ids)[said(ids, tokenizer)].tolist(), skip_special=False)
        turns = [m["content"] for m in sample.messages if m["role"] == "assistant"]
        pieces = [t.split("</think>\n\n")[-1] for t in spoken.split("<|im_end|>")]
        assert pieces == [*turns, ""]


def test_conversations_begin_at_blocks_and_end_in_the_boundary() -> None:
    c = nano.model_config()
    batch = next(packed(2, 2, 1024, 0.0))
    row, column = np.nonzero(batch.position == 0)
    assert len(row) > 2 and not (column % c.indexer_compress_ratio).any()
    inner = column > 0
    assert (batch.tokens[row[inner], column[inner] - 1] == c.eos_token_id).all()
    assert (batch.tokens[:, -1] == c.eos_token_id).all() and not batch.task[:, -1].any()


def test_steps_end_in_the_result() -> None:
    for a, b in ((4821, 9377), (9, 1), (1000, 999), (5, 5)):
        assert add_steps(a, b).endswith(f": {a + b}")
        a, b = max(a, b), min(a, b)
        assert int(subtract_steps(a, b).rpartition(" ")[2]) == a - b


def test_the_package_does_not_know_how_it_was_trained() -> None:
    for path in (ROOT / "nextfit").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(n.split(".")[0] == "train" for n in names), path
