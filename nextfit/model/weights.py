"""Resident weights by slot name, handed to the parts of the model by prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from nextfit.checkpoint.packed import Weight


class Weights:
    """A view of the slots below one prefix: `w["q_norm"]` is the slot `<prefix>q_norm`."""

    def __init__(self, slots: Mapping[str, Any], prefix: str = "") -> None:
        self._slots, self._prefix = slots, prefix

    def below(self, prefix: str) -> Weights:
        return Weights(self._slots, self._prefix + prefix)

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._slots

    def matrix(self, name: str) -> Weight:
        """A MATRIX or EXPERTS slot."""
        weight: Weight = self._slots[self._prefix + name]
        return weight

    def vector(self, name: str) -> Tensor:
        """A GAIN, VECTOR, DECAY or CONV slot, float32."""
        tensor: Tensor = self._slots[self._prefix + name]
        return tensor
