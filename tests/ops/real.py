"""Calls of every operator with a Triton route, at the sizes of the real model.

`tests.ops.offline` compiles what they launch, on tensors that are never read or written; `tests.device.kernels`
compares them with the references on a card.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from nextfit.ops import norm
from nextfit.ops.dispatch import Operator

STREAMS, HIDDEN, EPS = 4, 2560, 1e-6
ROWS = 40
Calls = Iterator[tuple[Operator[Any], tuple[Any, ...]]]


class Make(Protocol):
    """A tensor of normally distributed values, or of anything where only its shape matters."""

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor: ...


def calls(t: torch.dtype, make: Make) -> Calls:
    """Operators and arguments, for activations of type `t`."""
    yield from norms(t, make)


def norms(t: torch.dtype, make: Make) -> Calls:
    wide, gain = make(ROWS, STREAMS * HIDDEN, dtype=t), make(STREAMS * HIDDEN)
    yield norm._RMS, (wide, gain, EPS, STREAMS)
    yield norm._RMS, (wide, gain, EPS)
    yield norm._RMS, (make(ROWS, 24, 2, 256, dtype=t)[:, :, 0], make(256), EPS)
    yield norm._GATED, (make(ROWS, 48, 128, dtype=t), make(ROWS, 48, 128, dtype=t), make(128), EPS, "sigmoid")
