"""Real files of other tools through our loader, against logits that an independent implementation stored.

The stored references are exact about two things that their description leaves out: those of micro-nvfp4
were computed after rounding the dequantised experts and table to bfloat16 once, and the draft rows of the
GGUF files with the draft experts as they were before quantisation, which micro-nvfp4 holds. `as_stored` does
so too. The weights as they are loaded are compared with transformers itself.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nextfit.checkpoint import open_checkpoint
from nextfit.checkpoint.load import load_weights
from nextfit.checkpoint.names import Kind, draft_slots, trunk_slots
from nextfit.checkpoint.packed import decode
from nextfit.config import ModelConfig
from nextfit.model import Model
from tests.model.drive import trunk_logits
from tests.oracle.reference import Reference
from tests.oracle.test_draft import drafted
from tests.oracle.test_trunk import distance, group_value_heads

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = sorted(p.name for p in FIXTURES.iterdir() if p.suffix == ".gguf" or p.is_dir())
NVFP4 = "micro-nvfp4"
TOLERANCE = 1e-4
DRAFT_EXPERTS = ("mtp.layers.0.mlp.experts.gate_up", "mtp.layers.0.mlp.experts.down")


@cache
def load(name: str) -> tuple[ModelConfig, dict]:
    checkpoint = open_checkpoint(FIXTURES / name)
    assert not checkpoint.problems and not checkpoint.tensors.warnings
    return checkpoint.config, load_weights(checkpoint)


def values(slot: str, weight: object) -> Tensor:
    """Dequantised weight, float32."""
    if slot.endswith("ple.table"):
        return weight.gather(torch.arange(weight.shape[0]), torch.float32)  # type: ignore[attr-defined]
    return decode(weight, torch.float32)  # type: ignore[arg-type]


def as_stored(name: str) -> Model:
    config, weights = load(name)
    if name == NVFP4:
        rounded = {
            k: values(k, w).bfloat16()
            for k, w in weights.items()
            if k.endswith("ple.table") or (".experts." in k and not k.startswith("mtp."))
        }
    else:
        rounded = {k: load(NVFP4)[1][k] for k in DRAFT_EXPERTS}
    return Model(config, weights | rounded, torch.float32)


@cache
def stored(name: str) -> dict[str, Tensor]:
    with np.load(FIXTURES / f"{name.removesuffix('.gguf')}.ref.npz") as f:
        return {k: torch.from_numpy(f[k]) for k in f.files}


def text() -> list[int]:
    ids: list[int] = np.load(FIXTURES / "ids.npy").tolist()
    return ids


def test_fixtures_are_there() -> None:
    assert len(FILES) == 4 and sum(f.endswith(".gguf") for f in FILES) == 3


@pytest.mark.parametrize("name", FILES)
def test_stored_references(name: str) -> None:
    model, wanted = as_stored(name), stored(name)
    assert distance(trunk_logits(model, text()), wanted["logits"]) < TOLERANCE
    rows, steps = drafted(model, text(), [len(text())], decode=False)
    assert distance(rows, wanted["mtp"]) < TOLERANCE
    assert distance(steps, wanted["mtp_steps"]) < TOLERANCE


@pytest.mark.parametrize("name", [f for f in FILES if f != NVFP4])
def test_stored_trunk_of_the_file_as_loaded(name: str) -> None:
    model = Model(*load(name), torch.float32)
    assert distance(trunk_logits(model, text()), stored(name)["logits"]) < TOLERANCE


def parts_of(config: ModelConfig, weights: dict) -> dict[str, Tensor]:
    """Dequantised weights by part name, as the released checkpoint stores them."""
    out: dict[str, Tensor] = {}
    for slot in [*trunk_slots(config), *draft_slots(config)]:
        x = values(slot.name, weights[slot.name])
        if slot.kind is Kind.GAIN:
            x = x - 1
        elif slot.kind is Kind.DECAY:
            x = (-x).log()
        axis = len(slot.shape) - 2 if slot.kind in (Kind.MATRIX, Kind.EXPERTS) else 0
        pieces = x.split([p.rows for p in slot.parts], axis)
        out |= {p.name: piece for p, piece in zip(slot.parts, pieces, strict=True)}
    return group_value_heads(config, out) if config.value_heads_tiled else out


@pytest.mark.parametrize("name", FILES)
def test_file_as_loaded_against_transformers(name: str) -> None:
    config, weights = load(name)
    model = Model(config, weights, torch.float32)
    reference = Reference(config, parts_of(config, weights))
    assert distance(trunk_logits(model, text()), reference.logits(text())) < TOLERANCE
    wanted, wanted_steps = reference.draft(text(), 3)
    rows, steps = drafted(model, text(), [len(text())], decode=False)
    assert distance(rows, wanted) < TOLERANCE
    assert distance(steps, wanted_steps) < TOLERANCE


# Measured 2026-11-30 on the 160 tokens, for IQ4_XS, Q2_K, Q4_K_M, nvfp4: argmax agreement 0.975, 0.975,
# 0.975, 0.994; mean KL 1.3e-5, 1.8e-5, 1.3e-5, 1.5e-5; largest KL 2.3e-4, 4.2e-4, 3.6e-4, 6.5e-4.
@pytest.mark.parametrize("name", FILES)
def test_bfloat16_stays_close(name: str) -> None:
    """KL(float32 || bfloat16) of each token in nats, and how often both have the same likeliest token."""
    got = trunk_logits(Model(*load(name), torch.bfloat16), text()).float()
    wanted = trunk_logits(Model(*load(name), torch.float32), text())
    p, q = wanted.log_softmax(-1), got.log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    agreement = float((got.argmax(-1) == wanted.argmax(-1)).float().mean())
    print(f"{name}: argmax agreement {agreement:.4f}, KL mean {kl.mean():.2e}, largest {kl.max():.2e} nats")
    assert agreement >= 0.955
    assert float(kl.mean()) < 3e-5
    assert float(kl.max()) < 1.5e-3
