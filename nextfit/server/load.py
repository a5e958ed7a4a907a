"""From a checkpoint to what the routes serve."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nextfit.server.service import Load, Served
from nextfit.server.worker import Worker


def loader(path: Path | None, names: Sequence[str], engine: dict[str, Any]) -> Load:
    """A function that loads `path` (None: the bundled model) with `engine`, the options of `LLM`."""

    def load(report: Callable[[str], None]) -> Served:
        from nextfit.llm import LLM

        def progress(done: int, total: int) -> None:
            report(f"the model is loading: {done >> 20} of {total >> 20} MiB")

        llm = LLM(path, progress=progress, **engine)
        return Served(
            names=tuple(names) or (_name(path),),
            created=int(time.time()),
            context=llm.context,
            tokenizer=llm.tokenizer,
            template=llm.template,
            defaults=llm.generation,
            worker=Worker(llm.engine),
        )

    return load


def _name(path: Path | None) -> str:
    """What a model is called that was not given a name: its file or folder."""
    if path is None:
        return "nextfit"
    resolved = path.resolve()
    return resolved.stem if resolved.is_file() else resolved.name
