"""Adaptive draft depth against every fixed one on the bundled model: `python -m bench.adaptive_draft [--tokens 160]`.

The same requests, A B A B in one process. Answers that differ from those without drafts are counted: in bf16 a sum
depends on the number of rows, and a near-tie may fall the other way (`tests/engine` compares in fp64). Seconds are
CPU time of the engine's thread, so that a busy machine disturbs little. The first tokens, in which depth is learnt,
count.
"""

from __future__ import annotations

import argparse
import statistics
import time

from nextfit.engine.engine import Engine
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request, Stats
from nextfit.llm import LLM

DEPTHS = (0, 1, 2, 4, 8)


def run(llm: LLM, sequences: int, temperature: float, count: int) -> tuple[list[list[int]], float, Stats]:
    """Tokens of each request, seconds from the first token on, counts."""
    e: Engine = llm.engine
    before = e.totals()
    tokens: dict[str, list[int]] = {}
    for i in range(sequences):
        params = SamplingParams(temperature=temperature, seed=i, max_tokens=count, ignore_eos=True)
        e.add(Request(str(i), [(37 * i + 11 * j) % 900 for j in range(32)], params))
        tokens[str(i)] = []
    start = 0.0
    while e.has_work():
        for out in e.step():
            tokens[out.request_id] += [t.token for t in out.tokens]
        if not start and all(tokens.values()):
            start = time.thread_time()
    seconds, after = time.thread_time() - start, e.totals()
    rounds, drafted, accepted = (
        getattr(after, name) - getattr(before, name) for name in ("rounds", "drafted", "accepted")
    )
    return list(tokens.values()), seconds, Stats(rounds=rounds, drafted=drafted, accepted=accepted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=1.0)
    a = parser.parse_args()
    # no snapshots: each run is a cold one
    limits = dict(context=1024, sequences=a.sequences, prefill_chunk=256, snapshots=0)
    engines = {str(d): LLM(draft=d, adaptive_draft=False, **limits) for d in DEPTHS}  # type: ignore[arg-type]
    engines["adaptive"] = LLM(draft=max(DEPTHS), **limits)  # type: ignore[arg-type]
    for llm in engines.values():
        llm.engine._clock = time.thread_time
    found: dict[str, list[float]] = {name: [] for name in engines}
    counts: dict[str, Stats] = {}
    wanted: list[list[int]] = []
    differ = 0
    for _ in range(a.rounds):
        for name, llm in engines.items():
            tokens, seconds, counts[name] = run(llm, a.sequences, a.temperature, a.tokens)
            wanted = wanted or tokens
            differ += sum(t != w for t, w in zip(tokens, wanted, strict=True))
            found[name].append(a.sequences * a.tokens / seconds)
    best = max((n for n in found if n != "adaptive"), key=lambda n: statistics.median(found[n]))
    ratio = statistics.median(x / y for x, y in zip(found["adaptive"], found[best], strict=True))
    print(
        f"{a.sequences} sequence(s), temperature {a.temperature}: adaptive / best fixed ({best}) = {ratio:.3f}"
    )
    print(f"  {differ} of {len(engines) * a.rounds * a.sequences} answers differ")
    for name, speeds in found.items():
        c = counts[name]
        print(
            f"  {name:>8}: {statistics.median(speeds):6.1f} tok/s, {c.drafted / max(1, c.rounds):.2f} drafts a "
            f"round, {c.accepted / max(1, c.drafted):.2f} of them accepted"
        )


if __name__ == "__main__":
    main()
