"""`nextfit plan`: what it prints, that it is quick, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nextfit.cli import run
from nextfit.memory.hardware import Hardware
from nextfit.memory.plan import Limits, plan
from nextfit.memory.report import rows, segments
from tests.memory.released import RELEASED, released, write_config

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
GiB = 1 << 30
ARGS = ["--weights", "nvfp4/q8_0/bf16", "--gpu", "4x16GiB", "--host"]


@pytest.mark.parametrize("memory", [8, 64])
def test_bars_add_up(memory: int) -> None:
    p = plan(
        RELEASED, released("nvfp4/q8_0/bf16"), Hardware((16 * GiB,) * 4, memory * GiB), Limits(context=262144)
    )
    for name, capacity in p.places().items():
        for width in (10, 72, 200):
            cells, end = segments(p, name, width)
            owners = p.by_owner(name)
            whole = max(capacity, sum(owners.values()))
            assert sum(n for _, n in cells) <= width
            assert all(abs(n - owners[o] * width / whole) < 1 for o, n in cells)
            assert end == width if p.used(name) <= capacity else end < width


def test_ranks_share_a_row() -> None:
    p = plan(
        RELEASED, released(), Hardware((512 * GiB,) * 2, 512 * GiB), Limits(context=4096, host_experts=9)
    )
    host = rows(p, "host")
    assert sum(b.bytes for b in host) == p.used("host")
    (experts,) = [b for b in host if b.owner == "experts"]
    assert experts.formula.startswith("2 ranks x ")


def test_a_plan_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_config(tmp_path))
    assert run(["plan", folder, *ARGS, "64GiB"]) == 0
    text = capsys.readouterr().out
    words = (
        "snapshot pool",
        "each of gpu:0 to gpu:3",
        "mapped file",
        "reserve",
        "host, pinned memory",
        "not built yet",
    )
    assert all(word in text for word in words), text
    assert run(["plan", folder, *ARGS, "64GiB", "--formulas"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "4 x gpu" in text and "ranks x" in text
    assert run(["plan", str(tmp_path / "config.json"), *ARGS, "64GiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["changes"] == [] and found["limits"]["context"] == 262144
    assert [m["name"] for m in found["memories"]] == ["gpu:0", "gpu:1", "gpu:2", "gpu:3", "host"]
    for m in found["memories"]:
        assert m["used"] == sum(m["owners"].values()) == m["capacity"] - m["free"]


def test_a_plan_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_config(tmp_path))
    assert run(["plan", folder, *ARGS, "30GiB"]) == 2
    said = capsys.readouterr()
    assert "^ capacity" in said.out
    assert "the largest owner is experts" in said.err and "--context 1" in said.err
    assert "--draft: no value of it alone would fit" in said.err
    assert run(["plan", folder, *ARGS, "30GiB", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert not found["fits"] and found["too_big"][0]["memory"] == "host"
    context = next(x["value"] for x in found["changes"] if x["setting"] == "context")
    assert run(["plan", folder, *ARGS, "30GiB", "--context", str(context)]) == 0
    assert run(["plan", folder, *ARGS, "30GiB", "--context", str(context + 1)]) == 2


def test_the_bundled_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--gpu", "none", "--host", "8GiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["world"] == "engine" and found["weights"].startswith("the headers of ")
    assert run(["plan", "--gpu", "none", "--host", "8GiB", "--weights", "f32"]) == 0
    assert "formats f32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--gpu", "4x16Gib,"], "--gpu"),
        (["--host", "much"], "--host 'much' is no size"),
        (["--weights", "q9"], "--weights 'q9'"),
        (["--reserve", "-1"], "--reserve"),
        (["--gpu", "none", "--host", "8GiB", "--kv", "gpu"], "--kv"),
        (["--gpu", "3x80GiB", "--host", "8GiB"], "3 GPUs"),
        (["/no/such/folder"], "/no/such/folder"),
        (["--context", "999999999"], "--context"),
    ],
)
def test_refusals(argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *argv]) == 2
    said = capsys.readouterr()
    assert said.out == "" and expected in said.err and "Traceback" not in said.err


QUICK = """
import sys, time
start = time.process_time()  # of CPU: other work on the machine does not count
from nextfit.cli import run
code = run(sys.argv[1:])
heavy = {"torch", "numpy", "tokenizers", "jinja2"} & set(sys.modules)
print("seconds", time.process_time() - start, heavy or "none", code, file=sys.stderr)
"""


@pytest.mark.parametrize(("host", "code"), [("64GiB", "0"), ("30GiB", "2")])
def test_in_under_a_second_without_torch(host: str, code: str, tmp_path: Path) -> None:
    folder = write_config(tmp_path)
    best = 10.0
    for _ in range(3):
        command = [sys.executable, "-c", QUICK, "plan", str(folder), *ARGS, host]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        seconds, heavy, found = done.stderr.splitlines()[-1].split()[1:]
        assert (heavy, found) == ("none", code), done.stderr
        best = min(best, float(seconds))
    assert best < 1


def test_planning_alone_imports_little() -> None:
    script = """
import sys
import nextfit.memory.plan, nextfit.memory.plan_fit, nextfit.memory.hardware, nextfit.memory.report
assert not {"torch", "numpy", "rich"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
