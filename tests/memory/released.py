"""The released model's configuration, as its config.json spells it (spec section 1)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from nextfit.config import ModelConfig
from nextfit.memory.plan_weights import Weights, from_format

FILE = Path(__file__).parents[2] / "docs" / "released" / "config.json"
RAW = json.loads(FILE.read_text())
RELEASED = ModelConfig.from_hf(RAW, "config.json")


@cache
def released(formats: str = "bf16") -> Weights:
    return from_format(RELEASED, formats)


def write_config(folder: Path) -> Path:
    """A folder with nothing but a config.json."""
    (folder / "config.json").write_text(json.dumps(RAW))
    return folder
