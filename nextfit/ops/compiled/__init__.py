"""Compiled operators for decode and verify rows on a CPU, bf16 weights and activations.

A step of a few rows is bound by reading its weights; PyTorch's operators spend as long again on being called. These
read each weight once and fuse what lies between. `kernels` is None where no compiler was found when the package was
installed, or where the processor lacks what they were compiled for: then PyTorch's operators serve everything.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nextfit.checkpoint.packed import Packed

LANES = 32  # widths are multiples of it


def _load() -> Any:
    try:
        from nextfit.ops.compiled import _kernels  # type: ignore[attr-defined]
    except ImportError:
        return None
    return _kernels if _kernels.runs_here() else None


kernels = _load()


def format_of(x: Tensor, *weights: object) -> str:
    """The format that an operator's route is chosen by: the type that rows x and `weights` have in common.

    It is said with what sets it apart where they have none, or are not laid out as the compiled operators read them:
    contiguous weights, widths that are multiples of LANES.
    """
    name = str(x.dtype).removeprefix("torch.")
    laid_out = x.stride(-1) == 1
    for w in weights:
        if not isinstance(w, Tensor):
            return f"{name} on {w.format if isinstance(w, Packed) else 'a stack of weights'}"
        if w.dtype != x.dtype:
            return f"{name} on {w.dtype}".replace("torch.", "")
        laid_out = laid_out and w.is_contiguous() and w.shape[-1] % LANES == 0
    return name if laid_out and x.shape[-1] % LANES == 0 or x.device.type != "cpu" else f"{name}, odd layout"
