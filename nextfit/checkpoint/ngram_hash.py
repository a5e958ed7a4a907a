"""Constants of the hashed n-gram embedding, derived from the configuration (spec section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

from nextfit.config import ModelConfig

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class NgramHash:
    """Multipliers of the n-gram ids and, per head, the modulus and the first row of the table."""

    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    rows: int  # of the table, padded


def _splitmix64(z: int) -> int:
    z = (z + _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@lru_cache(maxsize=8)
def _primes_from(start: int, count: int) -> tuple[int, ...]:
    """The first `count` primes >= start."""
    found: list[int] = []
    n = max(2, start)
    while len(found) < count:
        if n < 4 or (n % 2 and all(n % d for d in range(3, isqrt(n) + 1, 2))):
            found.append(n)
        n += 1
    return tuple(found)


def ngram_hash(c: ModelConfig, layer: int) -> NgramHash:
    """Constants of n-gram layer `layer` (0-based trunk layer, one of `c.ple_layers`)."""
    j = sorted(c.ple_layers).index(layer)
    half = max(1, ((1 << 63) - 1) // c.vocab_size // 2)
    base = c.seed + 10007 * j
    mixed = (_splitmix64((base + _GAMMA * (i + 1)) & _MASK) for i in range(c.ngram_size))
    heads = c.ngram_heads
    sizes = _primes_from(c.ngram_vocab_size_base, heads * (j + 1))[heads * j :]
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += size
    pad = c.make_ngram_vocab_size_divisible_by
    return NgramHash(tuple(2 * (m % half) + 1 for m in mixed), sizes, tuple(offsets), -(-total // pad) * pad)
