"""Prefill and decode on the CPU against transformers, in one process, A B A B.

    python -m bench.cpu_speed CHECKPOINT [--long 8192] [--rounds 2]

Both compute in bf16 on the same weights. Logits of both are compared before anything is timed. The printed
ratios are medians over the rounds; absolute times of a shared machine mean little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers.models.qwen4_exp import Qwen4ExpForCausalLM

from nextfit.checkpoint import open_checkpoint
from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.llm import load_model, logits

DECODE = 32  # tokens per measurement


class Ours:
    name = "nextfit"

    def __init__(self, path: str, context: int) -> None:
        model = load_model(open_checkpoint(path).require(), "bfloat16", "cpu", draft=False)
        # no snapshots, so no hits: the same prompt comes again
        limits = EngineConfig(context=context, sequences=1, draft=0, snapshots=0)
        self.engine = Engine(model, limits, ends=())

    def prefill(self, ids: list[int]) -> float:
        return self._run(ids, 1)

    def decode(self, ids: list[int]) -> float:
        """Seconds a token, single tokens after the prompt."""
        return self._run(ids, 1 + DECODE, timed_after=1) / DECODE

    def _run(self, ids: list[int], count: int, timed_after: int = 0) -> float:
        self.engine.add(Request("bench", ids, SamplingParams(max_tokens=count, temperature=0)))
        start, done = time.perf_counter(), 0
        while self.engine.has_work():
            done += sum(len(o.tokens) for o in self.engine.step())
            if timed_after and done == timed_after:
                start, timed_after = time.perf_counter(), 0
        return time.perf_counter() - start


class Theirs:
    name = "transformers"

    def __init__(self, path: str) -> None:
        self.model = Qwen4ExpForCausalLM.from_pretrained(
            path, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()

    @torch.no_grad()
    def prefill(self, ids: list[int]) -> float:
        start = time.perf_counter()
        self.model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        return time.perf_counter() - start

    @torch.no_grad()
    def decode(self, ids: list[int]) -> float:
        out = self.model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        start = time.perf_counter()
        for _ in range(DECODE):
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            out = self.model(token, past_key_values=out.past_key_values, use_cache=True)
        return (time.perf_counter() - start) / DECODE


@torch.no_grad()
def agreement(path: str, theirs: Theirs, ids: list[int]) -> tuple[float, float]:
    """Share of equal argmax and mean KL(ours || theirs) over the positions of `ids`."""
    a = torch.from_numpy(logits(path, torch.tensor(ids).numpy(), dtype="bfloat16")).log_softmax(-1)
    b = theirs.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return (a.argmax(-1) == b.argmax(-1)).float().mean().item(), (a.exp() * (a - b)).sum(-1).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--long", type=int, default=8192, help="tokens of the long prompt; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, 500, (max(a.long, 512),), generator=generator).tolist()
    theirs, ours = Theirs(a.checkpoint), Ours(a.checkpoint, len(text) + 2 * DECODE)
    same, kl = agreement(a.checkpoint, theirs, text[:256])
    print(f"argmax agreement {same:.3f}, KL {kl:.1e} over 256 positions, {torch.get_num_threads()} threads")
    measure("prefill 512", lambda e: 512 / e.prefill(text[:512]), ours, theirs, a.rounds)
    measure("decode after 512", lambda e: 1 / e.decode(text[:512]), ours, theirs, a.rounds)
    if a.long:
        measure(f"prefill {a.long}", lambda e: a.long / e.prefill(text), ours, theirs, max(1, a.rounds - 1))


def measure(
    what: str, speed: Callable[[Ours | Theirs], float], ours: Ours, theirs: Theirs, rounds: int
) -> None:
    pairs = [(speed(ours), speed(theirs)) for _ in range(rounds)]
    mine, other = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    ratio = statistics.median(a / b for a, b in pairs)
    print(
        f"{what:18} nextfit {mine:7.1f} tok/s   transformers {other:7.1f} tok/s   ratio {ratio:5.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
