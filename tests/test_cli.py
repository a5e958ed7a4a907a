"""The command line: quick to start, teaching help, one message and exit code 2 for every refusal."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from nextfit import __version__
from nextfit.arrays import read_ids, write_array
from nextfit.cli import run
from nextfit.errors import ConfigError
from nextfit.models import default_path

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parent.parent


def spent(*command: str) -> float:
    """Seconds of processor time of the quickest of five runs: what a quiet machine would take."""
    best = 9e9
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def test_start_up_time() -> None:
    assert spent("-c", "import nextfit") < 0.15
    assert spent("-m", "nextfit", "--help") < 0.4


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("serve", "chat", "inspect", "logits", "Examples"))
    for command in ("serve", "chat", "inspect", "logits"):
        assert run([command, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"nextfit {command}" in text
        assert "Example:" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"nextfit {__version__}\n"


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The message of a refusal: exit code 2, nothing on stdout, no traceback."""
    assert run(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    return said.err


def npy(path: Path, values: object, **options: object) -> str:
    np.save(path, np.array(values, **options))  # type: ignore[call-overload]
    return str(path)


@pytest.mark.parametrize("command", ["serve", "chat", "inspect", "logits"])
def test_a_path_that_cannot_be_read(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.gguf"
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03")
    ids = npy(tmp_path / "ids.npy", [1])
    extra = {"serve": ["--port", "0"], "logits": ["--ids", ids, "--out", str(tmp_path / "out.npy")]}.get(
        command, []
    )
    for path in (missing, broken, tmp_path):
        message = refused(capsys, command, str(path), *extra)
        assert str(path) in message.replace("\n", "")
        assert message.count("nextfit: ") == 1
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--draft", "9"], "--draft"),
        (["serve", "--dtype", "int4"], "--dtype"),
        (["serve", "--context", "0"], "--context"),
        (["serve", "--context", "999999999", "--port", "0"], "--context"),
        (["serve", "--api-key", " spaces ", "--port", "0"], "--api-key"),
        (["serve", "--api-key-file", "/no/such/file", "--port", "0"], "/no/such/file"),
        (["serve", "--host", "no.such.host.invalid"], "--host"),
        (["nonsense"], "nonsense"),
        (["inspect"], "PATH"),
    ],
)
def test_bad_options(argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected.lower() in refused(capsys, *argv).lower()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1, 2]], r"int64 \[1, 2\], expected one axis of integers"),
        ([1.0, 2.0], "float64"),
        ([], "holds 0 ids|float64"),
        ([1, 2, 99], "id 99 at 2 is not within 0..49"),
        ([1, -1], "id -1 at 1"),
        (list(range(11)), "holds 11 ids, expected 1 to 10"),
        ([True], "bool"),
        (7, r"int64 \[\]"),
    ],
)
def test_ids_are_checked(values: object, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    npy(path, values)
    with pytest.raises(ConfigError, match=expected):
        read_ids(path, vocab_size=50, context=10)


def test_ids_that_are_no_array(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    for data in (b"", b"\x93NUMPY", b"hello", b"\x93NUMPY\x01\x00\xff\xff"):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match="ids.npy"):
            read_ids(path, 50, 10)
    np.savez(tmp_path / "ids.npz", a=np.arange(3))
    (tmp_path / "ids.npz").rename(path)
    with pytest.raises(ConfigError, match="an archive"):
        read_ids(path, 50, 10)
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_ids(path, 50, 10)
    with pytest.raises(ConfigError, match="No such file"):
        read_ids(tmp_path / "missing.npy", 50, 10)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "uint64", ">i4"])
def test_any_integer_type_is_read(dtype: str, tmp_path: Path) -> None:
    npy(tmp_path / "ids.npy", [1, 2, 49], dtype=dtype)
    found = read_ids(tmp_path / "ids.npy", 50, 10)
    assert found.dtype == np.int64
    assert found.tolist() == [1, 2, 49]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    write_array(path, np.arange(3))
    assert np.load(path).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="Object arrays"):
        write_array(path, np.array([object()]))
    assert np.load(path).tolist() == [0, 1, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["out.npy"]


def test_logits(tmp_path: Path) -> None:
    ids = npy(tmp_path / "ids.npy", [5, 6, 7, 8])
    for extra, rows in ([], 4), (["--mtp"], 3):
        out = tmp_path / "out.npy"
        assert run(["logits", str(default_path()), "--ids", ids, "--out", str(out), *extra]) == 0
        found = np.load(out)
        assert (found.dtype, found.shape) == (np.float32, (rows, 1024))
        assert np.isfinite(found).all()


def test_logits_refuses_before_it_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, ids = str(default_path()), npy(tmp_path / "ids.npy", [5])
    out = str(tmp_path / "out.npy")
    assert "not a folder" in refused(
        capsys, "logits", model, "--ids", ids, "--out", str(tmp_path / "no" / "out.npy")
    )
    assert "expected 2 to" in refused(capsys, "logits", model, "--ids", ids, "--out", out, "--mtp")
    npy(tmp_path / "ids.npy", [1024])
    assert "0..1023" in refused(capsys, "logits", model, "--ids", ids, "--out", out)


def test_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = time.process_time()
    assert run(["inspect", str(default_path())]) == 0
    assert time.process_time() - start < 1
    assert "n-gram table" in capsys.readouterr().out
    assert run(["inspect", str(default_path()), "--json"]) == 0
    assert capsys.readouterr().out.startswith("{")
    copy = tmp_path / "model"
    shutil.copytree(default_path(), copy)
    with (copy / "model.safetensors").open("r+b") as file:
        file.truncate(4_000_000)
    assert run(["inspect", str(copy)]) == 2


def test_chat_in_a_terminal() -> None:
    """Two turns, a reset, an answer that is refused and the end of input."""
    talk = "hello\nand now?\n/reset\n\nagain\n"
    command = [
        sys.executable,
        "-m",
        "nextfit",
        "chat",
        "--max-tokens",
        "4",
        "--seed",
        "1",
        "--context",
        "512",
    ]
    done = subprocess.run(command, cwd=ROOT, input=talk, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    answers = re.split(r"\n> ", done.stdout)
    assert len(answers) == 7  # the help line, three answers, /reset, the empty line, the end
    assert all(answers[i].strip() for i in (1, 2, 5))
    assert "Traceback" not in done.stderr
