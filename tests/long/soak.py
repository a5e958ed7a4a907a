"""Mixed traffic on a real server for a while: `python -m tests.long.soak --minutes 30`.

The bundled model in float64, with few slots, pages and snapshots, so that requests wait and are preempted, and
prefixes are evicted, go to the host and come back; that all of it happened is checked. Clients chat, complete, ask
for several choices, share beginnings, sample with seeds, leave at any moment and send what must be refused. Every
answer that is waited for must be what `LLM` gives to that request alone, cold, whole and without drafts. The exit
code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from nextfit.llm import LLM
from nextfit.text import MarkupReader, Tools
from nextfit.text.events import Reply
from tests.long.server import CHAT, COMPLETIONS, STUCK_SECONDS, idle, serving

CONTEXT, CHUNK, CLIENTS = 512, 128, 8
OPTIONS = {
    "--dtype": "float64",
    "--context": CONTEXT,
    "--sequences": 8,
    "--prefill-chunk": CHUNK,
    "--kv-tokens": CONTEXT,
    "--answer-reserve": 1,
    "--host-kv-tokens": 2 * CONTEXT,
    "--snapshots": 12,
    "--snapshot-every": 256,
    "--log-level": "warning",
}
HAPPENS = [
    "num_preemptions_total",
    "prefix_cache_hits_total",
    "pages_to_host_total",
    "pages_from_host_total",
    "spec_decode_num_accepted_tokens_total",
]
GROWTH_MIB = 8.0  # of memory, from the middle third of the run to its last


@dataclass(frozen=True)
class Question:
    """A request and the right answers of its choices: (reasoning, text, finish reason) each."""

    path: str
    body: dict[str, Any]
    answers: list[tuple[str, str, str]]


def taken_apart(text: str, reason: str) -> tuple[str, str, str]:
    """The answer to a chat's prompt, which ends inside a thought."""
    reader, reply = MarkupReader(Tools([]), thinking=True), Reply()
    for event in reader.push(text) + reader.finish(cut=reason != "stop"):
        reply.add(event)
    return reply.reasoning, reply.content, reason


def questions(count: int, seed: int) -> list[Question]:
    """`count` different requests, several for each beginning, with the answers of each one alone."""
    rng = random.Random(seed)
    llm = LLM(dtype="float64", context=CONTEXT, sequences=1, prefill_chunk=CONTEXT, draft=0, snapshots=0)
    beginnings = [[rng.randrange(900) for _ in range(n)] for n in (20, 70, 150, 300)]
    out = []
    for i in range(count):
        body: dict[str, Any] = {
            "max_tokens": rng.choice([1, 8, 30, 90]),
            "temperature": rng.choice([0, 0.7, 1]),
            "seed": i,
            "top_p": rng.choice([1.0, 0.9]),
            "frequency_penalty": rng.choice([0, 0, 0.5]),
            "repetition_penalty": rng.choice([1.0, 1.0, 1.2]),
        }
        settings = dict(body)
        if rng.random() < 0.3:
            path = CHAT
            messages = [{"role": "user", "content": f"Tell me about number {rng.randrange(5)}, please."}]
            assert llm.template is not None
            prompt = llm.template.render(messages)
            assert prompt.endswith("<think>\n")
            ids = llm.tokenizer.encode(prompt)
            body["messages"] = messages
        else:
            path = COMPLETIONS
            kind = rng.random()
            tail = rng.choice([0, 1, 17, 40]) if kind < 0.6 else rng.randrange(100, 350)
            ids = (rng.choice(beginnings) if kind < 0.6 else []) + [rng.randrange(900) for _ in range(tail)]
            body["prompt"] = ids
        n = rng.choice([1, 1, 1, 3])
        body["n"] = n
        results = [llm.generate(prompt_token_ids=[ids], params=settings | {"choice": c})[0] for c in range(n)]
        given = [(r.text, r.finish_reason) for r in results]
        out.append(Question(path, body, [taken_apart(*g) if path == CHAT else ("", *g) for g in given]))
    return out


def said(choice: Mapping[str, Any], where: str) -> tuple[str, str]:
    """Reasoning and text of a choice of either API, whole or a piece of it."""
    if "text" in choice:
        return "", choice["text"]
    return choice[where].get("reasoning_content") or "", choice[where].get("content") or ""


REFUSED: list[dict[str, Any]] = [
    {"prompt": [1] * CONTEXT},
    {"prompt": [1, 2], "max_tokens": 5000},
    {"prompt": [10**6], "max_tokens": 2},
    {"prompt": "a", "temperature": -1},
    {"prompt": []},
    {"max_tokens": 3},
]


@dataclass
class Soak:
    """Clients that ask until `end`, and what they saw."""

    url: str
    questions: list[Question]
    end: float  # of the monotonic clock
    seen: Counter = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)  # seconds between two pieces of a streamed answer
    longest: float = 0.0  # seconds of a request

    def run(self, seed: int) -> threading.Thread:
        thread = threading.Thread(target=self._client, args=(random.Random(seed),))
        thread.start()
        return thread

    def _client(self, rng: random.Random) -> None:
        with httpx.Client(base_url=self.url, timeout=STUCK_SECONDS) as client:
            while time.monotonic() < self.end and len(self.faults) < 20:
                question = rng.choice(self.questions)
                start = time.monotonic()
                try:
                    what = self._one(client, question, rng)
                except Exception as error:
                    self.faults.append(f"{type(error).__name__}: {error} for {question.body}"[:500])
                else:
                    self.seen[what] += 1
                    self.longest = max(self.longest, time.monotonic() - start)

    def _one(self, client: httpx.Client, q: Question, rng: random.Random) -> str:
        way = rng.random()
        if way < 0.05:
            answer = client.post(COMPLETIONS, json=rng.choice(REFUSED))
            assert answer.status_code in (400, 422) and answer.json()["error"]["message"], answer.text
            return "refused, as it must be"
        if way < 0.15:
            try:
                client.post(q.path, json=q.body, timeout=httpx.Timeout(10, read=rng.random() * 0.3 + 1e-3))
            except httpx.ReadTimeout:
                return "left before the answer"
            return "answered before the client could leave"
        if way < 0.25:
            with client.stream("POST", q.path, json=q.body | {"stream": True}) as answer:
                for _, _ in zip(range(rng.randint(0, 12)), answer.iter_lines(), strict=False):
                    pass
            return "left a stream"
        if way < 0.6:
            found = self._streamed(client, q)
        else:
            choices = client.post(q.path, json=q.body).raise_for_status().json()["choices"]
            found = [(*said(c, "message"), c["finish_reason"]) for c in choices]
        assert found == q.answers, f"{found} instead of {q.answers}"
        self.seen["answers compared"] += len(found)
        return "streamed" if way < 0.6 else "whole"

    def _streamed(self, client: httpx.Client, q: Question) -> list[tuple[str, str, str]]:
        thoughts, texts, reasons = ([""] * len(q.answers) for _ in range(3))
        last = [0.0] * len(q.answers)
        with client.stream("POST", q.path, json=q.body | {"stream": True}) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = httpx.Response(200, content=line.removeprefix("data: ")).json()
                for choice in event["choices"]:
                    i = choice["index"]
                    thought, text = said(choice, "delta")
                    thoughts[i], texts[i] = thoughts[i] + thought, texts[i] + text
                    if thought or text:
                        now = time.monotonic()
                        if last[i]:
                            self.gaps.append(now - last[i])
                        last[i] = now
                    reasons[i] = choice["finish_reason"] or reasons[i]
        return list(zip(thoughts, texts, reasons, strict=True))


def chunk_seconds(url: str, seed: int) -> float:
    """Median time of a step that computes a whole chunk of a prompt, with nothing beside it."""
    rng, times, chunks = random.Random(seed), [], CONTEXT // CHUNK - 1
    for _ in range(5):
        body = {"prompt": [rng.randrange(900) for _ in range(chunks * CHUNK)], "max_tokens": 1}
        start = time.monotonic()
        httpx.post(f"{url}{COMPLETIONS}", json=body, timeout=STUCK_SECONDS).raise_for_status()
        times.append((time.monotonic() - start) / chunks)
    return statistics.median(times)


def soak(minutes: float, seed: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Rows of a table, and what was wrong."""
    asked = questions(60, seed)
    with serving(OPTIONS) as server:
        chunk = chunk_seconds(server.url, seed)
        before = idle(server)
        end = time.monotonic() + 60 * minutes
        soaking = Soak(server.url, asked, end)
        threads = [soaking.run(seed + 1 + i) for i in range(CLIENTS)]
        memory = []
        while any(t.is_alive() for t in threads):
            memory.append(server.memory())
            time.sleep(1)
        after = idle(server)
        chunk = max(chunk, chunk_seconds(server.url, seed + 1))
        counts = {n: server.gauge(n) for n in HAPPENS}
    faults = list(soaking.faults) + [f"{n} is 0" for n, count in counts.items() if not count]
    third = len(memory) // 3
    middle, last = statistics.median(memory[third : 2 * third]), statistics.median(memory[2 * third :])
    if last - middle > GROWTH_MIB:
        faults.append(f"memory grew from {middle:.1f} to {last:.1f} MiB")
    if any(after[n] > before[n] + (CLIENTS if n.endswith("files") else 0) for n in before):
        faults.append(f"in use before {before}, after {after}")
    p99 = statistics.quantiles(soaking.gaps, n=100)[98]
    if p99 > 2 * chunk:
        faults.append(f"99 of 100 gaps are below {p99:.3f} s; two chunks take {2 * chunk:.3f} s")
    rows = [(what, f"{count:,}") for what, count in sorted(soaking.seen.items())]
    rows += [(name.removesuffix("_total"), f"{count:,.0f}") for name, count in counts.items()]
    rows += [
        ("longest request", f"{soaking.longest:.2f} s"),
        ("gap between pieces: median, p99", f"{statistics.median(soaking.gaps):.3f}, {p99:.3f} s"),
        ("its bound: two chunks", f"{2 * chunk:.3f} s"),
        ("memory: middle third, last third", f"{middle:.1f}, {last:.1f} MiB"),
        *((f"{what}: before, after", f"{before[what]:.0f}, {after[what]:.0f}") for what in before),
    ]
    return rows, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows, faults = soak(args.minutes, args.seed)
    for what, value in rows:
        print(f"{what:40}{value}")
    print("\n".join(faults) or "nothing was wrong")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
