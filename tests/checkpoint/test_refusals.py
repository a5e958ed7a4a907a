"""Damaged checkpoints are refused by name, in time and without memory; every refusal is reached."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nextfit.checkpoint import open_checkpoint
from nextfit.checkpoint.load import load_weights
from nextfit.errors import CheckpointError, NextFitError
from tests.checkpoint import test_gguf_reached, test_table
from tests.checkpoint.cases import CASES
from tests.checkpoint.test_audit import BROKEN, block_with_nan, problems
from tests.support.damage import Case, model
from tests.support.refusals import reached, sites, spell


def attempt(case: Case, folder: Path) -> str:
    """The message of the refusal."""
    path = case.write(folder)
    try:
        load_weights(open_checkpoint(path))
    except NextFitError as error:
        return str(error)
    return "loaded"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_refused(case: Case, tmp_path: Path) -> None:
    message = attempt(case, tmp_path / "model")
    for word in case.words:
        assert word in message, message


def test_undamaged_is_loaded(tmp_path: Path) -> None:
    """So that the refusals above come from the damage."""
    for i, quant in enumerate((None, "fp8", "modelopt", "compressed-tensors")):
        for files in (1, 3):
            case = Case("sound", (), make=lambda q=quant, n=files: model(q, files=n))  # type: ignore[misc]
            assert attempt(case, tmp_path / f"{i}-{files}") == "loaded"


def _unreachable_by_files(folder: Path) -> None:
    """Refusals of calls rather than of files."""
    sound = Case("sound", ()).write(folder / "sound")
    with pytest.raises(CheckpointError, match="goes with a GGUF model"):
        open_checkpoint(sound, draft=sound / "model.safetensors")
    checkpoint = open_checkpoint(sound)
    file = sound / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(CheckpointError, match="the file changed while it was read"):
        load_weights(checkpoint)
    for part, change, _ in BROKEN:
        problems(part, change)
    with pytest.raises(CheckpointError, match="not finite"):
        load_weights(block_with_nan(folder, "micro-Q4_K_M.gguf", "q4_k"))
    test_table.test_rows_beyond_the_table(folder)


def test_every_refusal_is_reached(tmp_path: Path) -> None:
    """Those of the whole package, but for the files whose refusals `test_gguf_reached` reaches."""
    files = set(test_gguf_reached.PACKAGE.glob("*.py")) - set(test_gguf_reached.FILES)
    wanted = sites(files, returns=["quantization.py"])
    assert len(wanted) > 50
    runs = [lambda c=c: attempt(c, tmp_path / c.name) for c in CASES]
    missed = wanted - reached(wanted, [*runs, lambda: _unreachable_by_files(tmp_path)])
    assert not missed, "\n".join(spell(missed))


REFUSING = """
def f(self, problems, x):
    raise CheckpointError("here")  # seen
    yield f"{x} is wrong"  # seen
    yield x
    self.map.problems.append(x)  # seen
    problems.append(f"{x} is wrong")  # seen
    problems.extend(f"{y} is wrong" for y in x)  # seen
    problems += [f"{y} is wrong" for y in x]  # seen
    problems += g(x)
    raise
def g(x):
    return f"{x} is wrong" if x else "this is wrong"  # seen
"""


def test_every_form_of_refusal_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(REFUSING)
    marked = {i for i, line in enumerate(REFUSING.splitlines(), 1) if line.endswith("# seen")}
    assert {line for _, line in sites([file], returns=["code.py"])} == marked


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("inspect", "config no JSON"),
        ("inspect", "header past the end"),
        ("inspect", "one tensor removed"),
        ("chat", "one tensor removed"),
    ],
)
def test_command_line(command: str, name: str, tmp_path: Path) -> None:
    """Exit code 2, the reason, and no traceback."""
    case = next(c for c in CASES if c.name == name)
    path = case.write(tmp_path / "model")
    run = subprocess.run(
        [sys.executable, "-m", "nextfit", command, str(path)], capture_output=True, text=True, input=""
    )
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode == 2, said
    assert "Traceback" not in said and all(word in said for word in case.words), said
