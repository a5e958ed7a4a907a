"""How often a draft is accepted: by noise coupling and by rejection sampling, on the same logits.

    python -m bench.acceptance [--model PATH] [--tokens 256]

Rejection sampling accepts with probability 1 - TV, the most that anything can. Noise coupling accepts where both
argmaxes under one Gumbel noise agree, with probability at least (1 - TV) / (1 + TV): the exact one is the sum over i
of 1 / sum over j of max(p_j / p_i, q_j / q_i), and it is also counted with the engine's own noise. Drafts are those
of the draft head and, as its weights are random here, the trunk's own logits with Gaussian noise added. "tokens
lost" takes every draft of a round of 4 for equally likely. Figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nextfit.checkpoint import open_checkpoint
from nextfit.llm import logits
from nextfit.models import default_path
from nextfit.ops.sampling import choose
from tests.support.checkpoint_writer import tensors, write_checkpoint
from tests.support.random_model import random_parts, small_config

TEMPERATURES = (0.3, 0.6, 1.0, 1.5)
BLUR = (0.25, 1.0)  # standard deviation of what is added to the trunk's logits
DEPTH = 4
SEEDS = 40


def coupled(p: Tensor, q: Tensor) -> Tensor:
    """Probability that one noise chooses the same of log-probabilities p and q [rows, n], [rows]."""
    rows = []
    for a, b in zip(p, q, strict=True):
        ratio = torch.maximum(a[None] - a[:, None], b[None] - b[:, None])  # [i, j], logarithms
        rows.append((-ratio.logsumexp(1)).exp().sum())
    return torch.stack(rows)


def counted(target: Tensor, draft: Tensor, temperature: float) -> float:
    """Share of equal choices under the engine's noise, over seeds."""
    positions = torch.arange(len(target))
    settings = dict(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, choice=0)
    same = [
        (
            choose(target, positions, seed=s, **settings) == choose(draft, positions, seed=s, **settings)
        ).double()  # type: ignore[arg-type]
        for s in range(SEEDS)
    ]
    return float(torch.stack(same).mean())


def tokens(acceptance: float) -> float:
    """Tokens of a round of `DEPTH` drafts that are each accepted so often."""
    return float(sum(acceptance**k for k in range(DEPTH + 1)))


def show(name: str, target: Tensor, draft: Tensor) -> None:
    for temperature in TEMPERATURES:
        p, q = (target / temperature).log_softmax(-1), (draft / temperature).log_softmax(-1)
        tv = (p.exp() - q.exp()).abs().sum(-1) / 2
        best, exact = float((1 - tv).mean()), float(coupled(p, q).mean())
        bound, share = float(((1 - tv) / (1 + tv)).mean()), counted(target, draft, temperature)
        assert bound - 1e-9 <= exact <= best + 1e-9, "outside of the bounds"
        loss = 1 - tokens(exact) / tokens(best)
        print(
            f"| {name} | {temperature} | {best:.3f} | {exact:.3f} | {share:.3f} | {bound:.3f} | {loss:.1%} |",
            flush=True,
        )


def models(path: Path | None, folder: Path) -> Iterator[tuple[str, Path]]:
    yield ("bundled" if path is None else path.name), path or default_path()
    c = small_config()
    values = tensors(c, random_parts(c), dtype=torch.float32)
    write_checkpoint(folder, c, values)
    yield "random, 8 layers", folder


def ids(path: Path, count: int) -> NDArray[np.int64]:
    c = open_checkpoint(path).require().config
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, min(c.vocab_size, c.eos_token_id), (count,), generator=g).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", type=int, default=256)
    a = parser.parse_args()
    print("| drafts of | temperature | rejection, 1 - TV | coupled | counted | bound | tokens lost |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in models(a.model, Path(folder)):
            text = ids(path, a.tokens)
            trunk = torch.from_numpy(logits(path, text)).double()
            head = torch.from_numpy(logits(path, text, draft=True)).double()
            show(f"{name}, draft head", trunk[1:], head)  # row p of the head and row p + 1 say the same token
            g = torch.Generator().manual_seed(1)
            for blur in BLUR:
                noise = torch.randn(trunk.shape, generator=g, dtype=torch.float64)
                show(f"{name}, trunk and noise {blur}", trunk, trunk + blur * noise)


if __name__ == "__main__":
    main()
