"""Seconds to import and to start: `python -m bench.startup`. Best of nine fresh processes each, wall clock."""

import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import nextfit": [sys.executable, "-c", "import nextfit"],
    "nextfit --help": [sys.executable, "-m", "nextfit", "--help"],
    "nextfit inspect (bundled model)": [
        sys.executable,
        "-c",
        "from nextfit.models import default_path; from nextfit.__main__ import main; import sys;"
        "sys.argv[1:] = ['inspect', str(default_path())]; main()",
    ],
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    for name, command in COMMANDS.items():
        print(f"{name:34} {min(seconds(command) for _ in range(9)):.3f} s")
