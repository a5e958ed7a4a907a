"""From a checkpoint to what the routes serve. Its weights are the engine process's; torch stays out of here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nextfit.checkpoint import open_checkpoint
from nextfit.models import default_path
from nextfit.server.process import EngineProcess
from nextfit.server.service import Load, Served
from nextfit.server.worker import ENGINE_TIMEOUT, QUEUE, Worker
from nextfit.text.load import load_text

ENGINE = "nextfit.server.engine_main"


def loader(
    path: Path | None,
    names: Sequence[str],
    options: dict[str, Any],
    *,
    queue: int = QUEUE,
    restart: bool = False,
    timeout: float = ENGINE_TIMEOUT,
    log_level: str = "info",
) -> Load:
    """A function that loads `path` (None: the bundled model) with the `options` of `LLM`."""

    def load(report: Callable[[str], None]) -> Served:
        report("the model's files are being read")
        checkpoint = open_checkpoint(path or default_path(), options.get("draft_file")).require()
        tokenizer, template = load_text(checkpoint)
        arguments = json.dumps({"path": path, **options}, default=str)
        process = EngineProcess(ENGINE, log_level, arguments)
        return Served(
            names=tuple(names) or (_name(path),),
            created=int(time.time()),
            tokenizer=tokenizer,
            template=template,
            worker=Worker(process, queue, restart, timeout),
            model={"path": str(checkpoint.path), "config": asdict(checkpoint.config)},
        )

    return load


def _name(path: Path | None) -> str:
    """What a model is called that was not given a name: its file or folder."""
    if path is None:
        return "nextfit"
    resolved = path.resolve()
    return resolved.stem if resolved.is_file() else resolved.name
