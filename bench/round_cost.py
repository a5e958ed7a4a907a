"""What the engine itself costs a round: `python -m bench.round_cost [--rounds 1000] [--profile]`.

A whole `Engine.step` of 8 decoding sequences on the scripted model, without the time inside that model; and of that
without choosing tokens from logits: scheduling and bookkeeping, the making of batches among it. Medians; the bound is
for this machine, quiet.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from typing import Any
from unittest import mock

from nextfit.engine import round
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.engine.sampler import choose_tokens
from tests.support.scripted_model import ScriptedEngine, ScriptedModel, wrong_sometimes

SEQUENCES = 8
LIMIT = 0.3  # ms
WARM = 20


def engine(depth: int, prompt: int, rounds: int, **settings: float) -> ScriptedEngine:
    """Eight requests of `prompt` tokens, past their prompts; a third of the positions is drafted wrong."""
    model = ScriptedModel(vocabulary=320, end=319, wrong=wrong_sometimes(0.3))
    length = (rounds + WARM + SEQUENCES) * (depth + 1)
    e = ScriptedEngine(
        lambda prompt: [3] * length,
        model=model,
        tokens_per_step=depth + 1,
        context=prompt + length + 2,
        sequences=SEQUENCES,
        prefill_chunk=SEQUENCES * prompt,
        kv_tokens=SEQUENCES * (prompt + length + 16),
        adaptive_draft=True,
        clock=lambda: 0.0,  # drafts cost nothing, so all of them are made
    )
    for i in range(SEQUENCES):
        params = SamplingParams(**{"temperature": 0, "seed": i, "ignore_eos": True, **settings})  # type: ignore[arg-type]
        e.add(Request(str(i), [(i * 37 + j) % 300 for j in range(prompt)], params))
    while sum(s.decoding for s in e.scheduler.running) < SEQUENCES:
        e.step()
    for _ in range(WARM):
        e.step()
    return e


def times(e: ScriptedEngine, rounds: int) -> tuple[float, float, float]:
    """Median ms of a step, of what the engine has of it, and of that without the choosing of tokens."""
    whole, own, bookkeeping = [], [], []
    choosing = 0.0

    def timed(*args: Any) -> Any:
        nonlocal choosing
        start = time.perf_counter()
        found = choose_tokens(*args)
        choosing += time.perf_counter() - start
        return found

    with mock.patch.object(round, "choose_tokens", timed):
        for _ in range(rounds):
            choosing, inside, start = 0.0, e.model.forward_seconds, time.perf_counter()
            e.step()
            whole.append((time.perf_counter() - start) * 1e3)
            own.append(whole[-1] - (e.model.forward_seconds - inside) * 1e3)
            bookkeeping.append(own[-1] - choosing * 1e3)
    return statistics.median(whole), statistics.median(own), statistics.median(bookkeeping)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument(
        "--profile", action="store_true", help="show where the time of the drafted rounds goes"
    )
    a = parser.parse_args()
    for depth in (0, 4):
        for prompt in (20, 2000):
            for name, settings in (
                ("greedy", {}),
                ("sampled", {"temperature": 1, "top_p": 0.95, "top_k": 20}),
            ):
                whole, own, keeping = times(engine(depth, prompt, a.rounds, **settings), a.rounds)
                over = f"  over the limit of {LIMIT} ms" if keeping > LIMIT else ""
                print(
                    f"{SEQUENCES} sequences, draft {depth}, prompts of {prompt:4}, {name:7}: engine {own:.3f} ms "
                    f"of {whole:.3f} ms; scheduling and bookkeeping {keeping:.3f} ms{over}",
                    flush=True,
                )
    if a.profile:
        e, profile = engine(4, 20, a.rounds), cProfile.Profile()
        profile.runcall(times, e, a.rounds)
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
