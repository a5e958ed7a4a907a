"""Seconds that `nextfit inspect` takes at the released model's size: `python -m bench.inspect_speed`.

Headers as the checkpoints have them, holes for the data. Best of five fresh processes each: wall clock, and CPU time of
the process (user and system).
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.checkpoint.test_gguf_released import write
from tests.support.released import write_released


def seconds(path: Path) -> tuple[float, float, float]:
    """Wall, user and system time."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "nextfit", "inspect", path], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, os.times()
    return wall, after.children_user - before.children_user, after.children_system - before.children_system


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            "BF16, fused experts": write_released(Path(folder) / "bf16", nvfp4=False),
            "NVFP4, one by one": write_released(Path(folder) / "nvfp4", nvfp4=True),
            "GGUF": write(Path(folder) / "model.gguf"),
        }
        for name, path in paths.items():
            wall, user, system = min(seconds(path) for _ in range(5))
            print(f"{name:20} {wall:.2f} s wall, {user:.2f} s user, {system:.2f} s system")


if __name__ == "__main__":
    main()
