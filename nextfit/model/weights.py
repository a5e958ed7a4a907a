"""Resident weights by slot name, handed to the parts of the model by prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from nextfit.checkpoint.packed import Packed, Stack, Weight


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


def weight_bytes(slots: Mapping[str, Any]) -> Counter[str]:
    """Owner in the memory plan -> bytes that its weights take, the n-gram table's in its file."""
    found: Counter[str] = Counter()
    for name, weight in slots.items():
        if name.startswith("mtp."):
            owner = "draft"
        elif name.endswith(".table"):
            owner = "n-gram table"
        else:
            owner = "experts" if ".experts." in name else "weights"
        found[owner] += _bytes(weight)
    return found


def _bytes(weight: Any) -> int:
    if isinstance(weight, Stack):
        return sum(_bytes(p) for p in weight.parts)
    if isinstance(weight, Packed):
        return sum(x.nbytes for x in weight.parts.values())
    return weight.nbytes
