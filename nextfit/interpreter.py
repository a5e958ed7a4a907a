"""Fresh interpreters that import the same modules as this one, wherever it was started."""

from __future__ import annotations

import json
import sys

# no folder of the user's comes first
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); from {} import main; main(sys.argv[1:])"


def command(module: str, *arguments: str) -> list[str]:
    """What runs `module`'s `main` with `arguments`, once it has read `greeting` from its stdin."""
    return [sys.executable, "-P", "-c", _PROGRAM.format(module), *arguments]


def greeting() -> str:
    """The line that such an interpreter reads first."""
    return json.dumps(sys.path) + "\n"
