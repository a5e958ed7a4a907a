"""What there is to plan for: memory sizes from flags, or what this machine reports. No torch."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from nextfit.errors import ConfigError

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
_UNITS = {
    "": 1,
    "b": 1,
    "kib": KiB,
    "mib": MiB,
    "gib": GiB,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)", re.IGNORECASE)
_GROUP = re.compile(r"(?:(\d+) ?[x*×] ?)?(.+)", re.IGNORECASE)
MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class Hardware:
    """Bytes that NextFit may use: on each GPU, and of the host's memory."""

    gpus: tuple[int, ...]
    host: int
    source: str = "flags"  # where the sizes come from


def parse_size(text: str, flag: str) -> int:
    """Bytes of "16GiB", "512 MB", "1.5TiB" or plain "4096". Raises ConfigError naming `flag`."""
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ConfigError(
            f"{flag} {text!r} is no size; expected a number and a unit, such as 16GiB, 512MiB or 24GB"
        )
    whole, _, part = found[1].partition(".")
    value = int(whole + part) * unit // 10 ** len(part)
    if not 0 < value < 1 << 60:
        raise ConfigError(f"{flag} {text!r} is {value} bytes; expected 1 byte to 1 EiB")
    return value


def parse_gpus(text: str, flag: str = "--gpu") -> tuple[int, ...]:
    """GPU memories of "4x16GiB", "24GiB,16GiB" or "none". Raises ConfigError."""
    if text.strip().lower() in ("none", "0"):
        return ()
    out: list[int] = []
    for group in text.split(","):
        found = _GROUP.fullmatch(group.strip())
        if found is None:
            raise ConfigError(f"{flag} {text!r} has an empty entry; expected such as 4x16GiB or 24GiB,16GiB")
        count = int(found[1] or 1)
        if not 1 <= count <= MOST_GPUS:
            raise ConfigError(f"{flag} {text!r} names {count} GPUs; expected 1 to {MOST_GPUS}")
        out += [parse_size(found[2], flag)] * count
    if len(out) > MOST_GPUS:
        raise ConfigError(f"{flag} {text!r} names {len(out)} GPUs; expected 1 to {MOST_GPUS}")
    return tuple(out)


def host_memory(root: Path = Path("/")) -> int:
    """Bytes that a new process may take: MemAvailable, and no more than its control group allows.

    Raises ConfigError where the system does not say.
    """
    file = root / "proc/meminfo"
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", file.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        raise ConfigError(f"{file} does not say how much memory is available; say it with --host 64GiB")
    available = int(found[1]) * KiB
    group = root / "sys/fs/cgroup"
    try:
        limit = (group / "memory.max").read_text().strip()
        used = (group / "memory.current").read_text().strip()
    except OSError:
        return available
    if not limit.isdecimal() or not used.isdecimal():  # "max": no limit
        return available
    return min(available, max(0, int(limit) - int(used)))


def gpu_memory(command: str | None = None) -> tuple[int, ...]:
    """Free bytes of each NVIDIA GPU, in the driver's order; empty where there is none or no driver."""
    command = command or shutil.which("nvidia-smi")
    if command is None:
        return ()
    query = [command, "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    lines = done.stdout.split("\n") if done.returncode == 0 else []
    return tuple(int(line) * MiB for line in lines if line.strip().isdecimal())


def hardware(gpu: str | None, host: str | None) -> Hardware:
    """Flags where given, otherwise what this machine reports as free now. Raises ConfigError."""
    gpus = gpu_memory() if gpu is None else parse_gpus(gpu)
    memory = host_memory() if host is None else parse_size(host, "--host")
    if gpu is not None and host is not None:
        source = "flags"
    elif gpu is None and host is None:
        source = "free on this machine"
    else:
        source = "GPUs from --gpu" if gpu is not None else "host from --host"
        source += ", the rest as free on this machine"
    return Hardware(gpus, memory, source)
