"""Figures of `/metrics`, `/v1/loads` and `/server_info` against what clients were answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import nextfit
from nextfit.server.config import HttpConfig
from nextfit.server.service import Service
from tests.server.process import scripted
from tests.server.scripted import ScriptedEngine, live, running, says, unready, wait_for
from tests.support.scripted_server import load

LONG = "word " * 60
ANSWERS = {"count": "one two three four five six seven eight", "for ever": "again " * 5_000}
PARTS = ("_sum", "_bucket", "_count", "_created")


def read(url: str) -> dict[str, float]:
    """Samples by name, without the prefix and with their labels' values."""
    found = {}
    answer = httpx.get(f"{url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            assert sample.name.startswith("nextfit:") and family.documentation
            found["/".join([sample.name.removeprefix("nextfit:"), *sample.labels.values()])] = sample.value
    return found


def grown(url: str, before: dict[str, float], names: list[str]) -> dict[str, float]:
    now = read(url)
    return {name: now[name] - before.get(name, 0) for name in names}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The real engine and scheduler on given tokens: the last of four drafts is always wrong."""
    service = Service(load(ANSWERS, tokens_per_step=5, wrong_at=4, sequences=2, pause=0.002, context=8_192))
    with running(service) as url:
        yield url


def ask(url: str, text: str, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20)


def test_counts_are_those_of_the_answers(url: str) -> None:
    before = read(url)
    usages = [
        ask(url, f"{LONG} count").json()["usage"],
        ask(url, f"{LONG} count").json()["usage"],
        ask(url, f"{LONG} for ever", max_tokens=50, n=3).json()["usage"],
    ]
    names = ["request_success_total/stop", "request_success_total/length", "generation_tokens_total"]
    names += ["prompt_tokens_total", "prefix_cache_hits_total", "time_to_first_token_seconds_count"]
    names += ["e2e_request_latency_seconds_count", "request_time_per_output_token_seconds_count"]
    n, tokens = usages[2]["prompt_tokens"], [u["completion_tokens"] for u in usages]
    assert tokens[0] == tokens[1] > 0 and tokens[2] == 150
    cached = [u["prompt_tokens_details"]["cached_tokens"] for u in usages]
    assert cached[0] == cached[2] == 0 and cached[1] > 100
    wanted = {
        "request_success_total/stop": 2,
        "request_success_total/length": 3,
        "generation_tokens_total": sum(tokens),
        "prompt_tokens_total": 2 * usages[0]["prompt_tokens"] + 3 * n,
        # the second and third choice begin where the first has left a snapshot
        "prefix_cache_hits_total": sum(cached) + 2 * ((n - 1) // 16 * 16),
        "time_to_first_token_seconds_count": 5,
        "e2e_request_latency_seconds_count": 5,
        "request_time_per_output_token_seconds_count": 5,
    }
    wait_for(lambda: read(url)["num_requests_running"] == 0)
    assert grown(url, before, names) == wanted


def test_cached_tokens_are_told_however_an_answer_ends(url: str) -> None:
    text = "a text of its own, " * 9 + "count"
    (first, *warm), streamed = (
        [
            ask(url, text, **fields).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            for fields in ({}, {}, {"max_tokens": 2}, {"stop": "three"})
        ],
        [],
    )
    for fields in ({}, {"max_tokens": 2}, {"stop": ["three"]}):
        answer = ask(url, text, stream=True, stream_options={"include_usage": True}, **fields)
        usage = json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
        streamed.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert first < 100 < warm[0] and {*warm, *streamed} == {warm[0]}


def test_acceptance(url: str) -> None:
    """Of four drafts three are right, so a round gives four tokens; the last one has room for three drafts."""
    before = read(url)
    assert ask(url, "for ever", max_tokens=81).json()["usage"]["completion_tokens"] == 81
    wait_for(lambda: read(url)["num_requests_running"] == 0)
    names = ["num_drafts", "num_draft_tokens", "num_accepted_tokens"]
    found = grown(url, before, [f"spec_decode_{name}_total" for name in names])
    assert list(found.values()) == [20, 79, 60]
    assert grown(url, before, ["inter_token_latency_seconds_count"]) == {
        "inter_token_latency_seconds_count": 20
    }


def test_what_is_in_use(url: str) -> None:
    before = read(url).get("request_success_total/abort", 0)
    with ExitStack() as streams:
        body = {"messages": [{"role": "user", "content": "for ever"}], "stream": True}
        for _ in range(3):
            streams.enter_context(httpx.stream("POST", f"{url}/v1/chat/completions", json=body))
        wait_for(lambda: read(url).get("num_requests_running") == 2)
        found, loads = read(url), httpx.get(f"{url}/v1/loads").json()
        assert (found["num_requests_waiting"], found["slots_used"], found["slots_total"]) == (1, 2, 2)
        assert 0 < found["pages_used"] < found["pages_total"]
        assert 0 < found["kv_cache_usage_perc"] < 1
        assert found["snapshots_used"] > 0 and found["snapshots_total"] == 16
        wanted = {"total_running_reqs": 2, "total_waiting_reqs": 1, "total_reqs": 3, "avg_utilization": 1.0}
        assert wanted.items() <= loads["aggregate"].items()
        (one,) = loads["loads"]
        assert (one["num_running_reqs"], one["num_waiting_reqs"], one["max_running_requests"]) == (2, 1, 2)
        assert one["num_used_tokens"] > 0 and one["max_total_num_tokens"] == found["pages_total"] * 16
        streams.close()
        wait_for(lambda: read(url)["num_requests_running"] == 0)
        found = read(url)
        assert found["pages_used"] == found["num_requests_waiting"] == 0
        assert found["request_success_total/abort"] == before + 3


def test_memory_by_owner() -> None:
    with live(ScriptedEngine(says("x"))) as url:
        wait_for(lambda: "memory_peak_bytes/weights" in read(url))
        samples = read(url)
    tier = [samples[n] for n in ("host_pages_used", "pages_to_host_total", "pages_from_host_total")]
    assert tier == [5, 9, 4]
    found = {name: value for name, value in samples.items() if name.startswith("memory")}
    assert found == {
        "memory_planned_bytes/K/V pages": 60,
        "memory_allocated_bytes/weights": 100,
        "memory_allocated_bytes/K/V pages": 64,
        "memory_peak_bytes/weights": 100,
        "memory_peak_bytes/K/V pages": 32,
    }


def test_errors_by_kind() -> None:
    engine = ScriptedEngine(says("x" * 100))
    with (
        live(engine, HttpConfig(keys=("key",))) as url,
        httpx.Client(base_url=url, headers={"x-api-key": "key"}) as client,
    ):
        assert httpx.get(f"{url}/metrics").status_code == 401
        assert client.get("/nowhere").status_code == 404
        for body in ({"prompt": ""}, {"prompt": "a", "top_k": "x"}, {"prompt": "!"}, {"prompt": "?"}):
            client.post("/v1/completions", json=body)
        client.post("/v1/completions", json={"prompt": "?", "stream": True})
        text = client.get("/metrics").text
        found = {
            s.labels["code"]: s.value
            for family in text_string_to_metric_families(text)
            for s in family.samples
            if s.name == "nextfit:errors_total"
        }
        assert found == {"invalid_api_key": 1, "not_found": 1, "400": 2, "invalid_value": 1, "500": 2}
        assert 'request_success_total{finished_reason="error"} 2.0' in text
        assert 'finished_reason="abort"' not in text


def test_metrics_are_there_whatever_the_engine_does() -> None:
    with live(scripted("x" * 50, die_at=20), restart=True) as url:
        assert read(url)["engine_up"] == 1
        body = {"prompt": "a", "max_tokens": 50}
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 500
        wait_for(lambda: read(url)["engine_restarts_total"] == 1)
        wait_for(lambda: read(url)["engine_up"] == 1)
        assert read(url)["request_success_total/error"] == 1
    gate = threading.Event()

    def slow(report: object) -> Any:
        gate.wait(20)
        raise RuntimeError("planted")

    with unready(Service(slow)) as url:
        assert read(url)["engine_up"] == 0
        gate.set()


def test_server_info(url: str) -> None:
    info = httpx.get(f"{url}/server_info").json()
    assert (info["version"], info["names"], info["dtype"]) == (nextfit.__version__, ["scripted"], "float32")
    wanted = {"context": 8192, "sequences": 2, "draft": 4, "page_size": 16, "queue": 256}
    assert wanted.items() <= info["limits"].items()
    assert info["limits"]["kv_pages"] == read(url)["pages_total"]
