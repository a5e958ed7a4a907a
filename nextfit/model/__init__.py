"""The forward pass, written once over ragged rows."""

from nextfit.model.model import DraftHead, Model
from nextfit.model.state import State, StateShape

__all__ = ["DraftHead", "Model", "State", "StateShape"]
