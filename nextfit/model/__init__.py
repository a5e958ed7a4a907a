"""The forward pass, written once over ragged rows."""

from nextfit.model.buffers import Buffers, Take, new_buffers
from nextfit.model.model import DraftHead, Model
from nextfit.model.state import State, StateShape
from nextfit.model.weights import weight_bytes

__all__ = ["Buffers", "DraftHead", "Model", "State", "StateShape", "Take", "new_buffers", "weight_bytes"]
