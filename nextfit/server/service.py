"""What the routes serve: a model that is being loaded, ready or gone, and why."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nextfit.config import GenerationDefaults
from nextfit.ops.choice import Choice
from nextfit.server.errors import ApiError
from nextfit.server.messages import Ready
from nextfit.server.metrics import Metrics
from nextfit.server.worker import Worker
from nextfit.text import ChatTemplate, Tokenizer


@dataclass(frozen=True, slots=True)
class Served:
    """A model as HTTP sees it."""

    names: tuple[str, ...]  # the first is the one reported
    created: int  # seconds since the epoch
    tokenizer: Tokenizer
    template: ChatTemplate | None
    worker: Worker
    model: Mapping[str, Any] = field(default_factory=dict)  # what its files say, for /server_info

    @property
    def context(self) -> int:
        """Tokens, prompt and answer together."""
        return self.ready.config.context

    @property
    def defaults(self) -> GenerationDefaults:
        return self.ready.defaults

    @property
    def ready(self) -> Ready:
        assert self.worker.ready is not None, "a model is served when it is loaded"
        return self.worker.ready

    def check_room(self, ids: list[int], param: str) -> None:
        """The engine refuses this too; clients that shorten a conversation look for the code."""
        if len(ids) >= self.context:
            message = f"{param}: {len(ids)} tokens fill the context of {self.context} (--context)"
            raise ApiError(400, message, param=param, code="context_length_exceeded")


Load = Callable[[Callable[[str], None]], Served]


class Service:
    """Loads in a thread of its own, so that `/health` answers meanwhile.

    `load` gets a function to report its progress with and returns what is served once its worker, which is
    started here, is ready. `on_end` is called in the loading thread when loading is over: with None when
    the model is ready, otherwise with the error; not when loading was stopped.
    """

    def __init__(self, load: Load, on_end: Callable[[Exception | None], None] = lambda error: None) -> None:
        self.metrics = Metrics(lambda: self._served.worker if self._served else None)
        self._load = load
        self._on_end = on_end
        self._progress = "the model is loading"
        self._served: Served | None = None
        self._error: Exception | None = None
        self._stopped = False
        self._loading = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        self._loading.start()

    def stop(self, timeout: float) -> None:
        """End the engine; waits up to `timeout` seconds for its current step."""
        self._stopped = True
        if self._served is not None:
            self._served.worker.stop(timeout)

    @property
    def busy(self) -> bool:
        """Whether a thread still loads or computes."""
        return self._loading.is_alive() or (self._served is not None and self._served.worker.busy)

    @property
    def error(self) -> Exception | None:
        """Why loading failed."""
        return self._error

    @property
    def unready(self) -> str | None:
        """Why no request can be served now; None when one can."""
        if self._error is not None:
            return f"loading failed: {self._error}"
        if self._served is None:
            return self._progress
        return self._served.worker.failure

    def served(self) -> Served:
        """The model, or ApiError 503 with the reason."""
        served, reason = self._served, self.unready
        if served is None or reason is not None:
            raise ApiError(503, reason or self._progress, code="not_ready")
        return served

    @property
    def operators(self) -> list[Choice]:
        """The routes that the engine's operators took; none before its first step."""
        gauges = self._served.worker.gauges if self._served else None
        return gauges.operators if gauges else []

    def _report(self, progress: str) -> None:
        self._progress = progress

    def _run(self) -> None:
        try:
            served = self._load(self._report)
            self._served = served
            if self._stopped:
                return
            served.worker.start()
            served.worker.wait()
        except Exception as error:  # whatever it is, `error` hands it on
            if self._stopped:
                return
            self._error = error
        self._on_end(self._error)
