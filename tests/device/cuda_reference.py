"""The reference operators on CUDA tensors against the same on the CPU: `python -m tests.device.cuda_reference`.

A script, not a collected test: CI has no GPU. It fails (exit code 1) where the two differ.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.model import Model
from tests.support.random_model import random_weights, small_config

CONFIG = small_config(ple_layers=(1, 5), num_experts=300, num_experts_per_tok=10)
LENGTHS = (1, 3, 37, 64, 120, 200)


def generate(
    device: str, dtype: torch.dtype, **limits: Any
) -> tuple[dict[str, list[tuple[int, float]]], int]:
    """Tokens and log-probabilities of fixed requests, greedy and sampled, each asked twice; pages that came back."""
    weights = {k: v.to(device) for k, v in random_weights(CONFIG, 0, dtype).items()}
    engine = Engine(Model(CONFIG, weights, dtype), EngineConfig(context=400, **limits), ends=(304,))
    out: dict[str, list[tuple[int, float]]] = {}
    for time in ("first", "again"):
        for n in LENGTHS:
            params = SamplingParams(max_tokens=24, temperature=float(n % 2), top_p=0.9, seed=n, logprobs=1)
            engine.add(Request(f"{time} {n}", [(7 * i * i + n) % 304 for i in range(n)], params))
            out[f"{time} {n}"] = []
        while engine.has_work():
            for o in engine.step():
                out[o.request_id] += [(t.token, t.logprob or 0.0) for t in o.tokens]
    return out, engine.host_pages.returned


def main() -> int:
    plain = {"sequences": 1, "prefill_chunk": 400, "draft": 0, "snapshots": 0}
    batched = {"sequences": 8, "prefill_chunk": 64, "draft": 4}
    tier = batched | {"sequences": 2, "kv_tokens": 1, "host_kv_tokens": 800}
    print("torch", torch.__version__, torch.cuda.get_device_name())
    failed = 0
    for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        cpu, _ = generate("cpu", dtype, **plain)
        for name, limits in (("solo", plain), ("batched, chunked, drafted", batched), ("host tier", tier)):
            gpu, returned = generate("cuda", dtype, **limits)
            same = all([t for t, _ in cpu[k]] == [t for t, _ in gpu[k]] for k in cpu)
            far = max(abs(a[1] - b[1]) for k in cpu for a, b in zip(cpu[k], gpu[k], strict=False))
            failed += not same or far > bound or (returned > 0) != (limits is tier)
            print(f"{dtype} {name:26} tokens equal {same}  largest logprob difference {far:.1e}", end="")
            print(f"  {returned} pages back from pinned memory")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
