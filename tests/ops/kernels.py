"""For tests of kernels: under Triton's interpreter, or on a card where TRITON_INTERPRET=0; on poisoned memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ["TRITON_INTERPRET"] == "1"  # tests/conftest.py sets it unless it is set
DEVICE = "cpu" if INTERPRETED else "cuda"

# around every number of rows at which a kernel may change its mind: tiles of 16 and 64 among them
ROWS = [0, 1, 2, 15, 16, 17, 63, 64, 65]
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
# Of one rounding, relative to the largest value: a unit in the last place. The interpreter does not round to bf16 but
# cuts off, which a card does not.
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normally distributed values, the same on every device."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g).to(DEVICE, dtype)


def poison(x: Tensor) -> Tensor:
    """Fill with NaN; integers with a value that no index is."""
    if x.dtype == torch.bool:
        return x.fill_(True)
    return x.fill_(torch.nan if x.is_floating_point() else torch.iinfo(x.dtype).min)


@contextmanager
def poisoned() -> Iterator[None]:
    """What operators allocate, outputs and scratch, is poisoned: what a kernel does not write is seen."""
    names = [(torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in names:
            plain = getattr(owner, name)

            def filled(*args: Any, plain: Any = plain, **kwargs: Any) -> Tensor:
                return poison(plain(*args, **kwargs))

            patch.setattr(owner, name, filled)
        yield


def close(found: Tensor, wanted: Tensor, relative: float) -> bool:
    """Equal up to `relative` of the largest value wanted; NaN is never close."""
    assert found.shape == wanted.shape and found.dtype == wanted.dtype, (found.shape, found.dtype)
    if not wanted.numel():
        return True
    far = (found.double() - wanted.double()).abs().max()
    return bool(far <= relative * wanted.double().abs().max())


def strided(x: Tensor) -> Tensor:
    """The same values as a view with gaps on every axis, the gaps NaN."""
    wide = poison(x.new_empty([2 * n + 3 for n in x.shape]))
    view = wide[tuple(slice(1, 1 + 2 * n, 2) for n in x.shape)]
    return view.copy_(x)
