"""The two numeric classes of rows (design section 1.3): decode and verify rows come first, then prefill rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def by_class(f: Callable[..., Tensor], decode_rows: int, *rows: Tensor) -> Tensor:
    """`f(decode, *rows)` for the first `decode_rows` of every tensor and for the others, joined again.

    A row's result must not depend on which kinds of rows share the step, so `f` sees one kind at a time.
    """
    if decode_rows == 0 or decode_rows == len(rows[0]):
        return f(decode_rows > 0, *rows)
    return torch.cat([f(True, *(r[:decode_rows] for r in rows)), f(False, *(r[decode_rows:] for r in rows))])
