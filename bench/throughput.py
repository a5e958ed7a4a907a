"""Tokens a second of concurrent greedy requests against one alone, on the bundled model:

    python -m bench.throughput [--sequences 8] [--rounds 5] [--no-adaptive-draft] [--draft 4] [--profile]

Prompts of 64 tokens, answers of 128, whole runs with their prefill; every run has prompts of its own. Alone, together,
alone, together ... in one process; the ratio is that of the medians. The bound is 3 at 8 sequences.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.llm import LLM

PROMPT, ANSWER = 64, 128
BOUND = 3.0


def speed(llm: LLM, sequences: int, run: int) -> float:
    """Generated tokens a second."""
    params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    for i in range(sequences):
        prompt = [(31 * run + 17 * i + j * (7 + i)) % 900 for j in range(PROMPT)]
        llm.engine.add(Request(f"{run}-{i}", prompt, params))
    tokens, start = 0, time.perf_counter()
    while llm.engine.has_work():
        tokens += sum(len(out.tokens) for out in llm.engine.step())
    assert tokens == sequences * ANSWER, f"{tokens} tokens"
    return tokens / (time.perf_counter() - start)


def profile(llm: LLM, sequences: int) -> None:
    """Where the time of a run goes, by operator."""
    with torch.profiler.profile() as found:
        speed(llm, sequences, run=1000)
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=40))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draft", type=int, default=4)
    parser.add_argument("--no-adaptive-draft", action="store_true")
    parser.add_argument(
        "--profile", action="store_true", help="operators of one run of each, after the table"
    )
    a = parser.parse_args()
    llm = LLM(
        context=1024,
        sequences=a.sequences,
        draft=a.draft,
        adaptive_draft=not a.no_adaptive_draft,
        snapshots=0,
    )
    runs = [(speed(llm, 1, 2 * r), speed(llm, a.sequences, 2 * r + 1)) for r in range(a.rounds + 1)]
    pairs = runs[1:]  # the first warms up
    alone, together = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    print(f"draft {a.draft}, {torch.get_num_threads()} threads, {a.rounds} runs of each")
    print(f"1 request     {alone:7.1f} tok/s")
    print(f"{a.sequences} requests    {together:7.1f} tok/s    ratio {together / alone:.2f}")
    if a.sequences == 8 and together / alone < BOUND:
        print(f"below the bound of {BOUND}")
    if a.profile:
        for sequences in (1, a.sequences):
            profile(llm, sequences)


if __name__ == "__main__":
    main()
