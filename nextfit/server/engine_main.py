"""What runs in the engine's process: `main` with a log level and the options of `LLM` as JSON."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nextfit.config import GenerationDefaults
from nextfit.server import logs
from nextfit.server.loop import Build, Built, Progress, run_engine
from nextfit.server.messages import Gauges, Ready
from nextfit.server.process import DUMP_SIGNAL

if TYPE_CHECKING:
    from nextfit.engine.engine import Engine
    from nextfit.text.grammar import Grammars

log = logging.getLogger("nextfit")

LOOK_SECONDS = 0.5
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(arguments: Sequence[str]) -> None:
    """`arguments`: the level, the options, then what `EngineProcess` adds."""
    level, options, *place = arguments
    logs.configure(level)
    run(place, lambda progress: load(json.loads(options), progress))


def run(place: Sequence[str], build: Build) -> None:
    """Run an engine until it is told to stop or its parent is gone. `place`: folder, parent's process id."""
    folder, parent = Path(place[0]), int(place[1])
    # service managers send it to every process; the server ends this one when the last answer is out
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.register(DUMP_SIGNAL)
    threading.Thread(target=_follow, args=(parent, folder), daemon=True).start()
    code = run_engine(folder, build, _end_with_parent)
    sys.stderr.flush()
    os._exit(code)  # threads inside torch need not be waited for


def _follow(parent: int, folder: Path) -> None:
    """End this process when its parent has ended, however that came about."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _end_with_parent() -> None:
    """From here on also while a step lets no other thread run; before, `_follow` has a folder to remove."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def load(options: dict[str, object], progress: Progress) -> Built:
    """The engine of the checkpoint at `options["path"]` (None: the bundled one)."""
    from nextfit.llm import LLM
    from nextfit.memory.plan_values import size

    llm = LLM(progress=progress, **options)  # type: ignore[arg-type]
    log.info(
        "memory",
        extra={"fields": {a.owner.replace(" ", "_"): size(a.allocated) for a in llm.engine.ledger()}},
    )
    return replace(offer(llm.engine, llm.generation, llm.grammars), save_cache=llm.save_cache)


def offer(engine: Engine, defaults: GenerationDefaults, grammars: Grammars | None = None) -> Built:
    """What the loop needs of an engine; without `grammars` requests that have one are refused."""
    from nextfit.ops.dispatch import choices

    scheduler, model = engine.scheduler, engine.model
    pages, host = scheduler.cache.pages, scheduler.cache.host

    def gauges() -> Gauges:
        return Gauges(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            pages=pages.capacity - pages.free - pages.idle,
            cached_pages=pages.idle,
            snapshots=host.snapshots.capacity - host.snapshots.free,
            host_pages=host.pages.capacity - host.pages.free,
            sent_pages=engine.host_pages.sent,
            returned_pages=engine.host_pages.returned,
            steps=engine.steps,
            preemptions=scheduler.preemptions,
            totals=engine.totals(),
            memory=engine.ledger(),
            operators=choices(),
        )

    dtype = str(model.dtype).removeprefix("torch.")
    return Built(
        engine,
        Ready(engine.config, defaults, str(model.device), dtype),
        gauges,
        scheduler.cache.flush,
        compile=grammars.get if grammars else None,
    )
