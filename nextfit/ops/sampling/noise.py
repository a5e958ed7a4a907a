"""Gumbel noise from a counter-based generator: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011).

numpy makes it, on the host: these many operators on few candidates cost a third of torch's, and no thread waits.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words = NDArray[np.integer] | int  # of 32 bits each, in any integer type

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> list[NDArray[np.uint64]]:
    """Ten rounds on four counter words; returns four words of the shape that all of them broadcast to."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    words = (c2, c0, c1, c3, k0, k1)
    shape = np.broadcast(*words).shape
    lanes = np.empty((6, *shape), dtype=np.uint64)
    for i, word in enumerate(words):
        lanes[i] = word
    multiplied, mixed, keys = lanes.reshape(3, 2, -1)
    factors = np.array(_MULTIPLIERS[::-1], dtype=np.uint64)[:, None]
    steps = np.array(_KEY_STEPS, dtype=np.uint64)[:, None]
    half, low = np.uint64(32), np.uint64(_LOW)
    for _ in range(10):  # what lies above a word's 32 bits is cut off where it would count
        product = multiplied * factors
        high = product >> half
        high ^= mixed
        high ^= keys
        high &= low
        multiplied, mixed = high[::-1], product
        keys += steps
    mixed = mixed & low
    return [word.reshape(shape) for word in (multiplied[1], mixed[0], multiplied[0], mixed[1])]


def gumbel(seed: int | Tensor, choice: int | Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Noise g(seed, choice, position, token), float64, of the shape that all of them broadcast to.

    Tensors are int64; the noise is on the device of `tokens`.
    """
    seeds = _host(seed)
    counter = (_host(tokens), _host(positions), _host(choice), 0)
    word = philox(counter, (seeds & _LOW, (seeds >> 32) & _LOW))[0]
    noise = -np.log(-np.log((word + 0.5) / 2**32))
    return torch.from_numpy(noise).to(tokens.device)


def _host(x: int | Tensor) -> Words:
    return x.cpu().numpy() if isinstance(x, Tensor) else x
