"""Seconds to the first token of a prompt whose beginning is in the prefix cache, against one computed whole:

    python -m bench.warm_prefix [--tokens 2048] [--rounds 5]

On the bundled model, with drafts. Each round has a prompt of its own: asked for the first time, then again with another
end of 16 tokens. Cold, warm, cold, warm ... in one process; the ratio is that of the medians. The bound is 5 at 2,048.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.llm import LLM

BOUND = 5.0


def first_token(llm: LLM, prompt: list[int], cached: int) -> float:
    """Seconds from the request to its first token, of which the cache must have had `cached` prompt tokens."""
    llm.engine.add(Request("r", prompt, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)))
    start, first = time.perf_counter(), 0.0
    while llm.engine.has_work():
        for out in llm.engine.step():
            first = time.perf_counter() - start
            assert out.tokens and out.stats is not None and out.stats.cached_tokens == cached, out.stats
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    llm = LLM(context=a.tokens + 64)
    page = llm.engine.config.page_size
    cold, warm = [], []
    for r in range(a.rounds + 1):
        prompt = [(29 * r + i * (3 + r) + i * i % 11) % 900 for i in range(a.tokens)]
        end = [(r + 5 * i) % 900 for i in range(16)]
        cold.append(first_token(llm, prompt, 0))
        warm.append(first_token(llm, prompt + end, (a.tokens - 1) // page * page))
    before, after = statistics.median(cold[1:]), statistics.median(warm[1:])  # the first round warms up
    print(f"prefix of {a.tokens} tokens, {torch.get_num_threads()} threads, {a.rounds} prompts")
    print(f"cold    {before * 1e3:8.1f} ms")
    print(f"warm    {after * 1e3:8.1f} ms    ratio {before / after:.1f}")
    if before / after < BOUND:
        print(f"below the bound of {BOUND}")


if __name__ == "__main__":
    main()
