"""Memory sizes from flags and from a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextfit.errors import ConfigError
from nextfit.memory import hardware
from nextfit.memory.hardware import gpu_memory, host_memory, parse_gpus, parse_size

GiB = 1 << 30


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16GiB", 16 * GiB),
        (" 16 gib ", 16 * GiB),
        ("1.5GiB", 3 * GiB // 2),
        ("24GB", 24 * 10**9),
        ("0.1GB", 10**8),
        ("512MiB", 512 << 20),
        ("4096", 4096),
        ("7B", 7),
        ("2TiB", 2 << 40),
        ("3kb", 3000),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text, "--host") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no size"),
        ("GiB", "is no size"),
        ("16GiBs", "is no size"),
        ("16QiB", "such as 16GiB"),
        ("-1GiB", "is no size"),
        ("1e9", "is no size"),
        ("1,5GiB", "is no size"),
        ("0", "is 0 bytes"),
        ("0.1B", "is 0 bytes"),
        ("99999999TiB", "1 byte to 1 EiB"),
    ],
)
def test_sizes_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        parse_size(text, "--host")
    assert str(error.value).startswith("--host ")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4x16GiB", (16 * GiB,) * 4),
        ("2 x 24GiB", (24 * GiB,) * 2),
        ("24GiB", (24 * GiB,)),
        ("24GiB,2*16GiB", (24 * GiB, 16 * GiB, 16 * GiB)),
        ("none", ()),
        ("0", ()),
    ],
)
def test_gpus(text: str, value: tuple[int, ...]) -> None:
    assert parse_gpus(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty entry"),
        ("4x", "no size"),
        ("x16GiB", "no size"),
        ("16GiB,", "empty entry"),
        ("0x16GiB", "0 GPUs; expected 1 to 64"),
        ("65x16GiB", "65 GPUs"),
        ("40x1GiB,40x1GiB", "80 GPUs"),
    ],
)
def test_gpus_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        parse_gpus(text)
    assert "--gpu" in str(error.value)


def machine(root: Path, meminfo: str, limit: str | None = None, used: str = "0") -> Path:
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(meminfo)
    if limit is not None:
        (root / "sys/fs/cgroup").mkdir(parents=True)
        (root / "sys/fs/cgroup/memory.max").write_text(limit + "\n")
        (root / "sys/fs/cgroup/memory.current").write_text(used + "\n")
    return root


@pytest.mark.parametrize(
    ("limit", "used", "value"),
    [(None, "0", 2 << 20), ("max", "5", 2 << 20), ("3000000", "1000000", 2_000_000), ("10", "20", 0)],
)
def test_host_memory(tmp_path: Path, limit: str | None, used: str, value: int) -> None:
    text = "MemTotal:    9999 kB\nMemAvailable:    2048 kB\n"
    assert host_memory(machine(tmp_path, text, limit, used)) == value


def test_host_memory_that_nobody_knows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--host 64GiB"):
        host_memory(tmp_path)
    with pytest.raises(ConfigError, match="--host 64GiB"):
        host_memory(machine(tmp_path, "MemTotal: 1 kB\n"))


def driver(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_gpu_memory(tmp_path: Path) -> None:
    found = driver(tmp_path / "smi", 'test "$1" = --query-gpu=memory.free && printf "16000\\n 8000\\n"')
    assert gpu_memory(found) == (16000 << 20, 8000 << 20)
    assert gpu_memory(driver(tmp_path / "broken", "echo 16000; exit 9")) == ()
    assert gpu_memory(driver(tmp_path / "odd", "echo '[N/A]'")) == ()
    assert gpu_memory(str(tmp_path / "missing")) == ()


def test_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "gpu_memory", lambda: (GiB,))
    monkeypatch.setattr(hardware, "host_memory", lambda: 3 * GiB)
    assert hardware.hardware(None, None) == hardware.Hardware((GiB,), 3 * GiB, "free on this machine")
    both = hardware.hardware("2x2GiB", "5GiB")
    assert (both.gpus, both.host, both.source) == ((2 * GiB, 2 * GiB), 5 * GiB, "flags")
    assert hardware.hardware("none", None).gpus == ()
    assert hardware.hardware("none", None).host == 3 * GiB
    assert hardware.hardware(None, "5GiB").gpus == (GiB,)
