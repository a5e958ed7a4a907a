from __future__ import annotations

import math

import torch
from torch import Tensor

from nextfit.checkpoint.ngram_hash import NgramHash
from nextfit.ops.history import Extended


def row_ids(tokens: Extended, constants: NgramHash, eos: int) -> Tensor:
    """Table rows of each token's n-grams, [rows, heads] int64; `tokens` has one int64 channel of ids.

    A previous token equal to `eos` hides itself and everything older; the current token hides nothing. Raises
    IndexError where an id is negative.
    """
    if int(tokens.values.min()) < 0:
        raise IndexError(f"{int(tokens.values.min())} is no token id")
    multipliers, heads = constants.multipliers, len(constants.sizes)
    per_n = heads // (len(multipliers) - 1)
    device = tokens.values.device
    sizes = torch.tensor(constants.sizes, device=device)
    offsets = torch.tensor(constants.offsets, device=device)
    mixed = tokens.back(0) * multipliers[0]
    hidden = torch.zeros_like(mixed, dtype=torch.bool)
    out = []
    for n, multiplier in enumerate(multipliers[1:], start=1):
        previous = tokens.back(n)
        hidden = hidden | (previous == eos)
        mixed = mixed ^ (torch.where(hidden, eos, previous) * multiplier)
        part = slice((n - 1) * per_n, n * per_n)
        out.append(mixed % sizes[part] + offsets[part])
    return torch.cat(out, dim=1)


def gate(key: Tensor, query: Tensor, value: Tensor) -> Tensor:
    """G_s = sigmoid(signed sqrt(k_s . q_s / sqrt(hidden))) * v for each stream.

    key, query [rows, streams, hidden] (normed), value [rows, hidden] -> [rows, streams, hidden]. In the
    activation type throughout, as in the reference implementation.
    """
    a = (key * query).sum(-1, keepdim=True) / math.sqrt(key.shape[-1])
    a = a.abs().clamp_min(1e-6).sqrt() * a.sign()
    return torch.sigmoid(a) * value[:, None, :]
