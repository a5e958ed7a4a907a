"""The n-gram table stays in its file; gathering reads each wanted row once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from nextfit.checkpoint import open_checkpoint
from nextfit.checkpoint.load import load_weights
from nextfit.checkpoint.names import Kind, draft_slots, trunk_slots
from nextfit.checkpoint.packed import gather_rows
from nextfit.checkpoint.table import NgramTable, Segment
from nextfit.config import ModelConfig
from tests.support.checkpoint_writer import tensors, write_checkpoint
from tests.support.random_model import small_config

FIXTURES = Path(__file__).parents[1] / "fixtures"


def rows_file(folder: Path, x: torch.Tensor, before: int = 12) -> Path:
    file = folder / "rows"
    file.write_bytes(b"#" * before + x.view(torch.uint8).numpy().tobytes())
    return file


def test_segments_in_any_order(tmp_path: Path) -> None:
    x = torch.randn(100, 5)
    file = rows_file(tmp_path, x)
    cuts = [(40, 60), (0, 7), (7, 40), (60, 60), (60, 100)]
    segments = [Segment(a, b - a, file, 12 + a * 20) for a, b in cuts]
    table = NgramTable("f32", (100, 5), segments)
    ids = torch.randint(0, 100, (3, 17, 4))
    found = table.gather(ids, torch.float32)
    assert found.shape == (3, 17, 4, 5) and torch.equal(found, x[ids])
    assert torch.equal(table.gather(ids, torch.bfloat16), x[ids].bfloat16())
    assert table.gather(ids[:0], torch.float32).shape == (0, 17, 4, 5)


def test_rows_beyond_the_table(tmp_path: Path) -> None:
    file = rows_file(tmp_path, torch.randn(10, 4))
    table = NgramTable("f32", (12, 4), [Segment(0, 10, file, 12)])  # two rows of padding are not in the file
    for wrong in (-1, 10, 11):
        with pytest.raises(IndexError, match="the table has 10"):
            table.gather(torch.tensor([0, wrong]), torch.float32)


def test_each_row_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(50, 4)
    table = NgramTable("f32", (50, 4), [Segment(0, 50, rows_file(tmp_path, x), 12)])
    read: list[int] = []
    take = np.take

    def counted(a, rows, **kwargs):
        read.extend(rows.tolist())
        return take(a, rows, **kwargs)

    monkeypatch.setattr(np, "take", counted)
    ids = torch.tensor([[9, 3, 9, 9], [3, 0, 49, 0]])
    assert torch.equal(gather_rows(table, ids, torch.float32), x[ids])
    assert read == [0, 3, 9, 49]


@pytest.mark.parametrize("file", ["micro-Q4_K_M.gguf", "micro-IQ4_XS.gguf", "micro-Q2_K.gguf", "micro-nvfp4"])
def test_rows_of_every_fixture(file: str) -> None:
    """A few rows alone equal the same rows of the whole table."""
    table = load_weights(open_checkpoint(FIXTURES / file))["layers.1.ple.table"]
    assert isinstance(table, NgramTable)
    whole = table.gather(torch.arange(table.shape[0]), torch.float32)
    ids = torch.randint(0, table.shape[0], (40,))
    assert torch.equal(table.gather(ids, torch.float32), whole[ids])
    assert whole.std() > 0.5 and whole.isfinite().all()


LOADING = """
import sys
import torch
from nextfit.checkpoint import open_checkpoint
from nextfit.checkpoint.load import load_weights

def peak():
    for line in open("/proc/self/status"):  # ru_maxrss would include the parent of a forked process
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024

def mapped(name):
    resident, here = 0, False
    for line in open("/proc/self/smaps"):
        if "-" in line.split(" ")[0]:
            here = name in line
        elif here and line.startswith("Rss:"):
            resident += int(line.split()[1])
    return resident * 1024

checkpoint = open_checkpoint(sys.argv[1])
base = peak()
weights = load_weights(checkpoint)
top = peak()
after = mapped(".safetensors")
weights["layers.1.ple.table"].gather(torch.arange(0, 400000, 20000), torch.float32)
print(base, top, after, mapped(".safetensors"))
"""


def _zeros(c: ModelConfig) -> dict[str, torch.Tensor]:
    """The parts of a model, without the time that random numbers take."""
    found = {}
    for slot in [*trunk_slots(c), *draft_slots(c)]:
        axis = len(slot.shape) - 2 if slot.kind in (Kind.MATRIX, Kind.EXPERTS) else 0
        for part in slot.parts:
            found[part.name] = torch.zeros(*slot.shape[:axis], part.rows, *slot.shape[axis + 1 :])
    return found


@pytest.mark.rss
def test_memory_while_loading(tmp_path: Path) -> None:
    """Peak memory is the tensors' own bytes and a little; no page of the table is resident afterwards."""
    c = small_config(
        hidden_size=512,
        num_hidden_layers=4,
        num_experts=64,
        moe_intermediate_size=256,
        ple_embed_dim=512,
        ngram_vocab_size_base=50_000,
    )
    held = tensors(c, _zeros(c), dtype=torch.bfloat16)
    table = sum(x.nbytes for n, x in held.items() if "ngram_embedding" in n)
    loaded = sum(x.nbytes for x in held.values()) - table
    assert table > 40e6 and loaded > 200e6
    write_checkpoint(tmp_path, c, held, files=2)
    run = subprocess.run(
        [sys.executable, "-c", LOADING, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    base, peak, after, touched = map(int, run.stdout.split())
    assert after == 0
    assert touched > 0  # so that `after` measured the right mapping
    assert peak - base < 1.03 * loaded + 30e6
    assert peak < 1.15 * loaded + 350e6
