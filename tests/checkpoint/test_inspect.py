"""`inspect`: what it says, that it needs headers alone and that damage costs neither memory nor time."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nextfit.checkpoint import open_checkpoint
from nextfit.checkpoint.inspect import print_report, size, summary
from nextfit.checkpoint.safetensors import INDEX
from nextfit.errors import CheckpointError
from tests.checkpoint.cases import CASES
from tests.support.checkpoint_writer import tensors, write_checkpoint
from tests.support.damage import Case, model
from tests.support.random_model import random_parts, small_config
from tests.support.released import write_released

pytestmark = pytest.mark.alone

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_summary_adds_up(tmp_path: Path) -> None:
    c = small_config()
    held = tensors(c, random_parts(c), vision=True)
    found = summary(open_checkpoint(write_checkpoint(tmp_path, c, held, files=3)))
    of = {x["component"]: x for x in found["components"]}
    assert of["experts"]["bytes"] == sum(
        x.nbytes for n, x in held.items() if ".mlp.experts." in n and not n.startswith("mtp.")
    )
    assert of["draft head"]["bytes"] == sum(x.nbytes for n, x in held.items() if n.startswith("mtp."))
    assert of["n-gram table"]["place"] == "file mapping" and of["n-gram table"]["tensors"] == 4
    assert of["experts"]["formats"] == {"f32": of["experts"]["bytes"]}
    everything = sum(x.nbytes for x in held.values())
    ignored = sum(x["bytes"] for x in found["ignored"])
    assert found["memory_bytes"] + found["mapped_bytes"] + ignored == everything
    assert {x["reason"] for x in found["ignored"]} == {
        "vision tower",
        "hash constant, equal to its derivation",
    }
    assert found["loadable"] and found["draft_head"] and not found["tokenizer"]


@pytest.mark.parametrize("file", ["micro-nvfp4", "micro-Q4_K_M.gguf"])
def test_report(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_report(FIXTURES / file) == 0
    text = capsys.readouterr().out
    assert "n-gram table" in text and "complete: this model can be loaded" in text
    assert print_report(FIXTURES / file, json=True) == 0
    assert json.loads(capsys.readouterr().out)["loadable"] is True


def test_report_of_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = next(c for c in CASES if c.name == "many problems")
    assert print_report(case.write(tmp_path / "m")) == 2
    text = capsys.readouterr().out
    assert "problem: missing: layers.1." in text and "more problems" in text and "complete" not in text
    assert print_report(tmp_path / "m", json=True) == 2
    assert len(json.loads(capsys.readouterr().out)["problems"]) > 20


def test_brackets_in_names_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_report(Case("", ()).write(tmp_path / "a [bold] name"))
    assert "a [bold] name" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.00 kB"),
        (102_400_491_520, "102.40 GB"),
        (3 * 10**14, "300.00 TB"),
    ],
)
def test_size(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


INSPECT = """
import sys, time
start = time.process_time()
from nextfit.checkpoint.inspect import print_report
code = print_report(sys.argv[1])
assert "torch" not in sys.modules and "numpy" not in sys.modules
print("seconds", time.process_time() - start, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("file", ["micro-nvfp4", "micro-Q4_K_M.gguf"])
def test_in_under_a_second_without_torch(file: str) -> None:
    best = 10.0
    for _ in range(3):  # other work on the machine may slow one of them down
        run = subprocess.run([sys.executable, "-c", INSPECT, FIXTURES / file], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        best = min(best, float(run.stderr.split()[-1]))
    assert best < 1


def test_one_tensor_for_each_expert_at_the_released_size(tmp_path: Path) -> None:
    """296,139 tensors: all of them counted, and faster than Python's own reader takes for the JSON alone."""
    folder = write_released(tmp_path / "nvfp4", nvfp4=True)
    start = time.process_time()
    texts = [(folder / INDEX).read_bytes()]
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as f:
            texts.append(f.read(int.from_bytes(f.read(8), "little")))
    read = [json.loads(text) for text in texts]
    baseline = time.process_time() - start
    assert sum(map(len, read[1:])) == 296_139 + len(read[1:])  # each file has a __metadata__
    del read
    start = time.process_time()
    checkpoint = open_checkpoint(folder)
    assert time.process_time() - start < baseline
    found = summary(checkpoint)
    assert found["problems"] == [] and found["warnings"] == []
    of = {(x["component"], x["place"]): x for x in found["components"]}
    experts = of["experts", "memory"]
    matrix = 2560 * 640
    assert experts["tensors"] == 48 * 512 * 3 * 3
    assert experts["formats"] == {"nvfp4": 48 * 512 * 3 * (matrix // 2 + matrix // 16 + 4)}
    assert of["n-gram table", "file mapping"]["bytes"] == 320001536 * 160
    [ignored] = found["ignored"]
    assert (ignored["tensors"], ignored["bytes"]) == (48 * 512 * 3, 48 * 512 * 3 * 4)
    assert sum(x["tensors"] for x in [*found["components"], ignored]) == 296_139


def _huge(folder: Path, header: dict[str, object], length: int | None, size: int) -> None:
    """A sparse file of `size` bytes; `length` is what it says its header has."""
    write = model()
    write.tensors = {}
    write.write(folder)
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as f:
        f.write(struct.pack("<Q", len(text) if length is None else length) + text)
        f.truncate(size)


MEMORY = """
import sys
from nextfit.checkpoint import open_checkpoint
from nextfit.errors import NextFitError

def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024

base = peak()
for path in sys.argv[1:]:
    try:
        open_checkpoint(path).require()
        sys.exit(f"{path} was not refused")
    except NextFitError:
        print(path, (peak() - base) / 1e6)
"""


@pytest.mark.rss
def test_damage_takes_no_memory(tmp_path: Path) -> None:
    """Lies about sizes are found before anything of that size is allocated or read."""
    gigabytes = 8 << 30
    big = {"dtype": "F32", "shape": [1 << 20, 1 << 11], "data_offsets": [0, gigabytes]}
    _huge(tmp_path / "long-header", {"x": big}, 90_000_000, gigabytes)
    _huge(tmp_path / "longer-header", {"x": big}, gigabytes - 8, gigabytes)
    _huge(tmp_path / "no-such-length", {"x": big}, 1 << 63, gigabytes)
    text = len(json.dumps({"lm_head.weight": big}))
    _huge(tmp_path / "unknown", {"x": big}, None, 8 + len(json.dumps({"x": big})) + gigabytes)
    _huge(tmp_path / "wrong-shape", {"lm_head.weight": big}, None, 8 + text + gigabytes)
    _huge(tmp_path / "cut-off", {"lm_head.weight": big}, None, gigabytes)
    damaged = [
        c for c in CASES if not c.name.startswith("NaN") and c.name not in ("zero divisor", "NaN factor")
    ]
    paths = [
        tmp_path / n
        for n in ("long-header", "longer-header", "no-such-length", "unknown", "wrong-shape", "cut-off")
    ]
    paths += [c.write(tmp_path / c.name) for c in damaged]
    run = subprocess.run([sys.executable, "-c", MEMORY, *map(str, paths)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(run.stdout.splitlines()) == len(paths)
    assert float(run.stdout.split()[-1]) < 100, run.stdout


def test_require_lists_the_first_problems(tmp_path: Path) -> None:
    case = next(c for c in CASES if c.name == "many problems")
    checkpoint = open_checkpoint(case.write(tmp_path / "m"))
    with pytest.raises(CheckpointError) as error:
        checkpoint.require()
    assert len(str(error.value).splitlines()) == 10
