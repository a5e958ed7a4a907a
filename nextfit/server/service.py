"""What the routes serve: a model that is being loaded, ready or gone, and why."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from nextfit.config import GenerationDefaults
from nextfit.errors import NextFitError, RequestError
from nextfit.server.errors import ApiError
from nextfit.server.worker import Worker
from nextfit.text import ChatTemplate, Tokenizer


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model as HTTP sees it."""

    names: tuple[str, ...]  # the first is the one reported
    created: int  # seconds since the epoch
    context: int  # tokens, prompt and answer together
    vocab_size: int  # ids the model has embeddings for
    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: GenerationDefaults
    worker: Worker

    def tokens_of(self, text: str, param: str) -> list[int]:
        return self.checked(self.tokenizer.encode(text), param)

    def checked(self, ids: list[int], param: str) -> list[int]:
        """`ids`, or RequestError when they are not a prompt that leaves room for an answer."""
        if not ids:
            raise RequestError(f"{param}: is empty, expected at least one token", param)
        if (worst := max(ids)) >= self.vocab_size:
            raise RequestError(f"{param}: token id {worst} is not below {self.vocab_size}", param)
        if len(ids) >= self.context:
            raise ApiError(
                400,
                f"{param}: {len(ids)} tokens fill the context of {self.context} (--context)",
                param=param,
                code="context_length_exceeded",
            )
        return ids


Load = Callable[[Callable[[str], None]], Served]


class Service:
    """Loads in a thread of its own, so that `/health` answers meanwhile.

    `load` gets a function to report its progress with. `on_end` is called in the loading thread when
    loading is over: with None when the model is ready, otherwise with the error.
    """

    def __init__(self, load: Load, on_end: Callable[[Exception | None], None] = lambda error: None) -> None:
        self._load = load
        self._on_end = on_end
        self._progress = "the model is loading"
        self._served: Served | None = None
        self._error: Exception | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="load", daemon=True).start()

    def stop(self, timeout: float) -> None:
        """End the engine's thread; waits up to `timeout` seconds for its current step."""
        if self._served is not None:
            self._served.worker.stop(timeout)

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

    def _report(self, progress: str) -> None:
        self._progress = progress

    def _run(self) -> None:
        try:
            served = self._load(self._report)
            served.worker.start()
            self._served = served
        except Exception as error:
            self._error = error
            self._on_end(error)
            if not isinstance(error, NextFitError):
                raise  # the thread's own report shows where
        else:
            self._on_end(None)
