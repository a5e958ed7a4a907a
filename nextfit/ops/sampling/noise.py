"""Gumbel noise from a counter-based generator: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011)."""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int | Tensor, int | Tensor]
) -> tuple[Tensor, ...]:
    """Ten rounds on four counter words in the low 32 bits of int64 tensors; returns four such words.

    int64 products wrap modulo 2^64, so both halves of a 32 x 32 bit product are exact.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _LOW) ^ c1 ^ k0,
            p1 & _LOW,
            ((p0 >> 32) & _LOW) ^ c3 ^ k1,
            p0 & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def gumbel(seed: int | Tensor, choice: int | Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Noise g(seed, choice, position, token), float64, of the broadcast shape of `positions` and `tokens`.

    Tensors are int64; those of `seed` and `choice` broadcast to that shape too.
    """
    positions, tokens = torch.broadcast_tensors(positions, tokens)
    zero = torch.zeros_like(tokens)
    word = philox((tokens, positions, zero + choice, zero), (seed & _LOW, (seed >> 32) & _LOW))[0]
    uniform = (word.to(torch.float64) + 0.5) / 2**32
    return -torch.log(-torch.log(uniform))
