"""An engine that emits a script. Imports little, so that a process of it starts quickly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nextfit.config import GenerationDefaults
from nextfit.engine.config import EngineConfig
from nextfit.engine.request import Output, Request, Sampled, Stats
from nextfit.errors import RequestError
from nextfit.memory.ledger import Account
from nextfit.server.loop import Built
from nextfit.server.messages import Gauges, Ready

CONTEXT = 256
END = 257  # <|im_end|> of the byte-level tokenizer


@dataclass
class Running:
    request: Request
    left: list[int]
    sent: int = 0


@dataclass
class ScriptedEngine:
    """Emits `script` to every request, `tps` tokens a step, after `silent` steps that emit nothing.

    With `gate`, a step waits until it is set. `die_at` raises in that step; a prompt that begins with
    byte `!` is refused and one that begins with `?` fails in its first step.
    """

    script: Callable[[Request], Sequence[int]]
    tps: int = 1
    silent: int = 0
    pause: float = 0.0
    gate: threading.Event | None = None
    die_at: int | None = None
    steps: int = 0
    flushed: int = 0
    running: dict[str, Running] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def add(self, request: Request, grammar: object = None) -> None:
        if request.prompt[0] == ord("!"):
            raise RequestError(
                "max_tokens: 9 and a prompt of 250 tokens are over the context of 256", "max_tokens"
            )
        self.seen.append(request)
        self.running[request.id] = Running(request, list(self.script(request)))

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.running.pop(request_id, None)

    def flush_cache(self) -> None:
        self.flushed += 1

    def has_work(self) -> bool:
        return bool(self.running)

    def gauges(self) -> Gauges:
        return Gauges(
            running=len(self.running),
            waiting=0,
            pages=2 * len(self.running),
            cached_pages=3,
            snapshots=1,
            host_pages=5,
            sent_pages=9,
            returned_pages=4,
            steps=self.steps,
            preemptions=0,
            totals=Stats(),
            memory=[Account("weights", None, 100, 100), Account("K/V pages", 60, 64, 32)],
        )

    def step(self) -> list[Output]:
        if self.gate is not None:
            self.gate.wait(10)
        time.sleep(self.pause)
        self.steps += 1
        if self.steps == self.die_at:
            raise ZeroDivisionError("planted")
        if self.steps <= self.silent:
            return []
        outputs = [self._advance(running) for running in list(self.running.values())]
        for output in outputs:
            if output.finish_reason is not None:
                del self.running[output.request_id]
        return outputs

    def _advance(self, running: Running) -> Output:
        request, limit = running.request, running.request.params.max_tokens
        if request.prompt[0] == ord("?"):
            return Output(request.id, (), "error", error="the draft head gave NaN")
        new: list[Sampled] = []
        reason, stop_token = None, None
        while len(new) < self.tps and reason is None:
            token = running.left.pop(0) if running.left else END
            if token == END:
                reason, stop_token = "stop", END
                break
            top = tuple((token + i, -0.5 - i) for i in range(request.params.logprobs or 0))
            new.append(Sampled(token, -0.5 if request.params.logprobs is not None else None, top))
            running.sent += 1
            if limit is not None and running.sent == limit:
                reason = "length"
        stats = Stats(len(request.prompt), running.sent, cached_tokens=16)
        return Output(request.id, tuple(new), reason, stop_token, None, stats)  # type: ignore[arg-type]


def says(text: str) -> Callable[[Request], list[int]]:
    return lambda request: list(text.encode())


def built(engine: ScriptedEngine, context: int = CONTEXT, sequences: int = 8) -> Built:
    defaults = GenerationDefaults((END,), temperature=0.7, top_p=0.95, top_k=20)
    config = EngineConfig(context=context, sequences=sequences)
    return Built(engine, Ready(config, defaults, "cpu", "bfloat16"), engine.gauges, engine.flush_cache)
