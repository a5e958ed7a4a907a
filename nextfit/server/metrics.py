"""What `/metrics` tells, as Prometheus text.

A metric that vLLM has too bears its name with our prefix, so that a dashboard needs no more than a replacement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nextfit.engine.config import EngineConfig
from nextfit.engine.request import Output
from nextfit.memory.ledger import Account
from nextfit.server.messages import Gauges
from nextfit.server.worker import Worker

PREFIX = "nextfit:"
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)  # seconds
REQUEST_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000)  # seconds


class Metrics:
    """Everything about one server; `worker` returns its face of the engine, None while there is none."""

    def __init__(self, worker: Callable[[], Worker | None]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Engine(worker))
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", REQUEST_BUCKETS
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Between two steps that gave a request tokens.", TOKEN_BUCKETS
        )
        self.per_token = self._histogram(
            "request_time_per_output_token_seconds", "After the first, mean of a request.", TOKEN_BUCKETS
        )
        self.whole = self._histogram(
            "e2e_request_latency_seconds", "From a request's arrival to its end.", REQUEST_BUCKETS
        )
        self.ended = self._counter(
            "request_success",
            "Requests that ended, by reason: stop, length, abort or error.",
            "finished_reason",
        )
        self.errors = self._counter("errors", "Refusals and faults, by `error.code` or else status.", "code")

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, words, registry=self._registry, buckets=buckets)

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, words, labels, registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class Timer:
    """Follows one choice from its request's arrival, in seconds of the monotonic clock, to its end."""

    def __init__(self, metrics: Metrics, arrived: float) -> None:
        self._metrics, self._arrived = metrics, arrived
        self._tokens = 0
        self._first = self._last = 0.0
        self._ended = False

    def advance(self, output: Output) -> None:
        """Called as outputs arrive, however late the client reads them."""
        now = time.monotonic()
        if output.tokens:
            self._tokens += len(output.tokens)
            if self._last:
                self._metrics.inter_token.observe(now - self._last)
            else:
                self._first = now
                self._metrics.first_token.observe(now - self._arrived)
            self._last = now
        if output.finish_reason is not None:
            self.end("abort" if output.finish_reason == "cancelled" else output.finish_reason)

    def end(self, reason: str | None) -> None:
        """The first call counts; None: the engine refused the request."""
        if self._ended:
            return
        self._ended = True
        if reason is None:
            return
        self._metrics.ended.labels(reason).inc()
        self._metrics.whole.observe(time.monotonic() - self._arrived)
        if self._tokens > 1:
            self._metrics.per_token.observe((self._last - self._first) / (self._tokens - 1))


class _Engine(Collector):
    """What the engine said last of itself. Its counters begin anew when it is started again."""

    def __init__(self, worker: Callable[[], Worker | None]) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        worker = self._worker()
        up = worker is not None and worker.failure is None
        yield _gauge("engine_up", "1 when requests can be served.", up)
        if worker is None:
            return
        yield _counter("engine_restarts", "How often the engine was started again.", worker.restarts)
        yield _gauge("engine_silence_seconds", "Since the engine's last sign of life.", worker.silence)
        gauges, ready = worker.gauges, worker.ready
        if gauges is None or ready is None:
            return
        waiting = max(0, worker.in_flight - gauges.running)
        yield _gauge("num_requests_waiting", "Requests in the queue.", waiting)
        for name, words, value in _in_use(gauges, ready.config):
            yield _gauge(name, words, value)
        for name, words, value in _counted(gauges):
            yield _counter(name, words, value)
        yield from _memory(gauges.memory)


def _in_use(g: Gauges, c: EngineConfig) -> tuple[tuple[str, str, float], ...]:
    return (
        ("num_requests_running", "Requests that are computed.", g.running),
        ("kv_cache_usage_perc", "Share of the pages that requests hold, 0 to 1.", g.pages / c.pages()),
        ("pages_used", "K/V pages that requests hold.", g.pages),
        ("pages_cached", "K/V pages that the prefix cache alone holds.", g.cached_pages),
        ("pages_total", "K/V pages.", c.pages()),
        ("slots_used", "Recurrent slots that requests hold.", g.running),
        ("slots_total", "Recurrent slots.", c.sequences),
        ("snapshots_used", "Recurrent states in the prefix cache.", g.snapshots),
        ("host_pages_used", "Pages of the prefix cache in host memory.", g.host_pages),
        ("host_pages_total", "Pages that the host tier has room for.", c.host_pages()),
        ("snapshots_total", "Recurrent states that the prefix cache has room for.", c.snapshots),
    )


def _counted(g: Gauges) -> tuple[tuple[str, str, float], ...]:
    t = g.totals
    return (
        ("prompt_tokens", "Tokens of prompts.", t.prompt_tokens),
        ("generation_tokens", "Tokens that were generated.", t.completion_tokens),
        ("prefix_cache_queries", "Tokens of prompts, the base of prefix_cache_hits.", t.prompt_tokens),
        ("prefix_cache_hits", "Tokens of prompts that the prefix cache had.", t.cached_tokens),
        ("spec_decode_num_drafts", "Decode rounds, of each request.", t.rounds),
        ("spec_decode_num_draft_tokens", "Tokens that were drafted.", t.drafted),
        ("spec_decode_num_accepted_tokens", "Drafted tokens that were right.", t.accepted),
        ("pages_to_host", "Pages that were copied to host memory.", g.sent_pages),
        ("pages_from_host", "Pages that came back from there.", g.returned_pages),
        ("engine_steps", "Steps computed.", g.steps),
        ("num_preemptions", "Requests sent back to the queue for want of pages.", g.preemptions),
    )


def _memory(accounts: list[Account]) -> Iterator[Metric]:
    for kind, words in (
        ("planned", "Bytes planned before loading, by owner."),
        ("allocated", "Bytes allocated, by owner."),
        ("peak", "Bytes in use at most, by owner."),
    ):
        metric = GaugeMetricFamily(f"{PREFIX}memory_{kind}_bytes", words, labels=["owner"])
        for account in accounts:
            if (value := getattr(account, kind)) is not None:
                metric.add_metric([account.owner], value)
        yield metric


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, words, value)


def _counter(name: str, words: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, words, value)
