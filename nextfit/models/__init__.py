"""Checkpoints that ship with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def default_path() -> Path:
    """Folder of the bundled default checkpoint (random weights: see its MODEL_CARD.md)."""
    return Path(str(files(__name__))) / "default"
