"""A scripted engine in a process of its own: `main` runs there, `EngineProcess(MODULE, options)` starts it."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextfit.engine.request import Output
from nextfit.errors import CheckpointError
from nextfit.server import loop, messages
from nextfit.server.engine_main import run
from nextfit.server.loop import Built, Progress
from nextfit.server.process import EngineProcess
from tests.server.engine import ScriptedEngine, built, says

MODULE = "tests.server.process"


def scripted(text: str = "hello", **options: Any) -> EngineProcess:
    """`options`: those of ScriptedEngine; besides, `sequences`, `context` and what `main` looks at."""
    return EngineProcess(MODULE, json.dumps({"text": text, **options}))


@dataclass
class Holding(ScriptedEngine):
    """Lets no other thread of its process run for `hold` seconds a step."""

    hold: float = 0.0

    def step(self) -> list[Output]:
        if self.hold:
            ctypes.PyDLL(None).usleep(int(self.hold * 1e6))
        return super().step()


def main(arguments: Sequence[str]) -> None:
    options = json.loads(arguments[0])
    note = options.pop("pid_file", None)
    if note is not None:
        with Path(note).open("a") as file:
            file.write(f"{os.getpid()}\n")
    if options.pop("import_error", False):
        importlib.import_module("nextfit.no_such_module")
    setattr(loop, "VERSION", options.pop("version", messages.VERSION))  # noqa: B010
    limits = {name: options.pop(name) for name in ("context", "sequences") if name in options}
    refuse, slow = options.pop("refuse", None), options.pop("slow", 0.0)
    engine = Holding(says(options.pop("text")), **options)

    def build(progress: Progress) -> Built:
        progress(3 << 20, 9 << 20)
        time.sleep(slow)
        if refuse is not None:
            raise CheckpointError(refuse)
        return built(engine, **limits)

    run(arguments[1:], build)
