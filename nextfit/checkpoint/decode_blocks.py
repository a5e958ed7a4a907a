"""Decoders of GGUF block formats, vectorised over blocks (spec/gguf.md section 3).

Every decoder takes `b`, uint8 [n, bytes of a block], and fills `out`, float32 [n, elements of a block].
Products are float32, in the order of ggml's own reference (scale by sub-scale, by code, then the
minimum), and never fused, so that every backend gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

Decoder = Callable[[Tensor, Tensor], None]

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@lru_cache(maxsize=32)
def _quads(table: tuple[int, ...], interleaved: bool, device: torch.device) -> Tensor:
    """int32 [65536]: the four values (int8) of two bytes of 4-bit codes, read as a little-endian number.

    Order: low halves, then high halves; `interleaved`: byte after byte, the low half first.
    """
    codes = torch.arange(1 << 16)
    shifts = (0, 4, 8, 12) if interleaved else (0, 8, 4, 12)
    nibbles = torch.stack([(codes >> s) & 15 for s in shifts], dim=-1)
    return torch.tensor(table, dtype=torch.int8)[nibbles].view(torch.int32).flatten().to(device)


def _look_up(x: Tensor, table: tuple[int, ...], interleaved: bool) -> Tensor:
    index = own_copy(x).view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    return _quads(table, interleaved, x.device).index_select(0, index.view(-1))


def look_up_pairs(x: Tensor, table: tuple[int, ...]) -> Tensor:
    """int8 [n, 2m] from bytes [n, m], m even; byte i holds elements 2i (low half) and 2i + 1."""
    return _look_up(x, table, True).view(torch.int8).view(len(x), -1)


def _look_up_halves(x: Tensor, table: tuple[int, ...]) -> Tensor:
    """int8 [n, 2m] from bytes [n, m], m even; byte j holds elements j (low half) and j + m."""
    quads = _look_up(x, table, False).view(torch.int16).view(len(x), -1, 2)
    return quads.transpose(1, 2).contiguous().view(torch.int8).view(len(x), -1)


def own_copy(x: Tensor) -> Tensor:
    """A contiguous copy that starts at an aligned address, so that it may be viewed as a wider dtype."""
    return x.clone(memory_format=torch.contiguous_format)


def _half(b: Tensor, at: int) -> Tensor:
    """float32 [n, 1]: the IEEE half at byte `at` of each block."""
    return own_copy(b[:, at : at + 2]).view(torch.float16).float()


def _nibbles(x: Tensor) -> Tensor:
    """uint8 [..., 2, m] from bytes [..., m]: low halves, then high halves."""
    own = own_copy(x).unsqueeze(-2)
    return torch.cat([own & 15, own >> 4], dim=-2)


def _crumbs(x: Tensor) -> Tensor:
    """uint8 [..., 4, m] from bytes [..., m]: their 2-bit fields, the lowest first."""
    own = own_copy(x).unsqueeze(-2)
    return torch.cat([own & 3, (own >> 2) & 3, (own >> 4) & 3, own >> 6], dim=-2)


def _fifth_bits(x: Tensor) -> Tensor:
    """uint8 [n, 32] of 0 or 16 from bytes [n, 4]: bit i of the little-endian number belongs to element i."""
    spread = _spread(x.device).index_select(0, x.reshape(-1).to(torch.int32))
    return spread.view(torch.uint8).view(len(x), 32)


@lru_cache(maxsize=8)
def _spread(device: torch.device) -> Tensor:
    """int64 [256]: the bits of a byte as eight bytes of 0 or 16."""
    bits = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
    return (bits * 16).to(torch.uint8).view(torch.int64).flatten().to(device)


def q4_0(b: Tensor, out: Tensor) -> None:
    codes = _nibbles(b[:, 2:]).view(torch.int8).sub_(8)
    out.copy_(codes.view(-1, 32)).mul_(_half(b, 0))


def q4_1(b: Tensor, out: Tensor) -> None:
    codes = _nibbles(b[:, 4:]).view(-1, 32)
    out.copy_(codes).mul_(_half(b, 0)).add_(_half(b, 2))


def q5_0(b: Tensor, out: Tensor) -> None:
    codes = _nibbles(b[:, 6:]).view(-1, 32).bitwise_or_(_fifth_bits(b[:, 2:6]))
    out.copy_(codes.view(torch.int8).sub_(16)).mul_(_half(b, 0))


def q5_1(b: Tensor, out: Tensor) -> None:
    codes = _nibbles(b[:, 8:]).view(-1, 32).bitwise_or_(_fifth_bits(b[:, 4:8]))
    out.copy_(codes).mul_(_half(b, 0)).add_(_half(b, 2))


def q8_0(b: Tensor, out: Tensor) -> None:
    out.copy_(b[:, 2:].view(torch.int8)).mul_(_half(b, 0))


def iq4_nl(b: Tensor, out: Tensor) -> None:
    out.copy_(_look_up_halves(b[:, 2:], IQ4)).mul_(_half(b, 0))


def mxfp4(b: Tensor, out: Tensor) -> None:
    scale = _half_e8m0(b.device).index_select(0, b[:, 0].to(torch.int32))
    out.copy_(_look_up_halves(b[:, 1:], E2M1_DOUBLED)).mul_(scale[:, None])


@lru_cache(maxsize=8)
def _half_e8m0(device: torch.device) -> Tensor:
    """float32 [256]: 2^(e - 128), exact below the normal range too; half the scale, for doubled codes."""
    e = torch.arange(256, dtype=torch.int32)
    bits = torch.where(e < 2, 0x00200000 << e.clamp(max=1), (e - 1) << 23)
    return bits.to(torch.int32).view(torch.float32).to(device)


def nvfp4(b: Tensor, out: Tensor) -> None:
    scales = _half_ue4m3(b.device).index_select(0, b[:, :4].reshape(-1).to(torch.int32))
    codes = _look_up_halves(b[:, 4:].reshape(-1, 8), E2M1_DOUBLED)
    out.view(-1, 16).copy_(codes).mul_(scales[:, None])


@lru_cache(maxsize=8)
def _half_ue4m3(device: torch.device) -> Tensor:
    """float32 [256]: half the scale; the sign bit does not count and 0x7F reads as 0."""
    x = torch.arange(256, dtype=torch.int32)
    exponent, mantissa = (x >> 3) & 15, (x & 7).float()
    normal = (1 + mantissa / 8) * torch.exp2((exponent - 7).float())
    values = torch.where(exponent == 0, mantissa / 512, normal) / 2
    values[0x7F] = 0
    return values.to(device)


def q2_k(b: Tensor, out: Tensor) -> None:
    packed = own_copy(b[:, :16])
    scales = (packed & 15).float().mul_(_half(b, 80)).unsqueeze(-1)
    minima = (packed >> 4).float().mul_(_half(b, 82)).unsqueeze(-1)
    codes = _crumbs(b[:, 16:80].view(-1, 2, 32))
    out.view(-1, 16, 16).copy_(codes.view(-1, 16, 16)).mul_(scales).sub_(minima)


def q3_k(b: Tensor, out: Tensor) -> None:
    low = _nibbles(b[:, 96:104]).view(-1, 16)
    high = _crumbs(b[:, 104:108]).view(-1, 16)
    scales = (low | (high << 4)).view(torch.int8).sub_(32).float().mul_(_half(b, 108)).unsqueeze(-1)
    codes = _crumbs(b[:, 32:96].view(-1, 2, 32)).view(-1, 8, 32)
    mask = own_copy(b[:, :32])  # bit i: third bit of elements 32i on
    for i in range(8):
        bits = mask >> (i - 2) if i > 2 else mask << (2 - i)
        codes[:, i].bitwise_or_(bits.bitwise_and_(4))
    out.copy_(codes.view(torch.int8).sub_(4).view(-1, 256))
    out.view(-1, 16, 16).mul_(scales)


def _scales_and_minima(b: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [n, 8, 1] each: d * sc and dmin * m of a Q4_K or Q5_K block."""
    low, high, mixed = own_copy(b[:, 4:16]).view(torch.int32).unbind(1)  # four bytes at a time
    words = torch.stack(
        [
            low & 0x3F3F3F3F,
            (mixed & 0x0F0F0F0F) | ((low >> 2) & 0x30303030),
            high & 0x3F3F3F3F,
            ((mixed >> 4) & 0x0F0F0F0F) | ((high >> 2) & 0x30303030),
        ],
        dim=1,
    )
    factors = own_copy(b[:, :4]).view(torch.float16).float().unsqueeze(-1)
    products = words.view(torch.uint8).float().view(-1, 2, 8).mul_(factors)
    return products[:, 0].unsqueeze(-1), products[:, 1].unsqueeze(-1)


def q4_k(b: Tensor, out: Tensor) -> None:
    scales, minima = _scales_and_minima(b)
    codes = _nibbles(b[:, 16:].view(-1, 4, 32))
    out.view(-1, 8, 32).copy_(codes.view(-1, 8, 32)).mul_(scales).sub_(minima)


def q5_k(b: Tensor, out: Tensor) -> None:
    scales, minima = _scales_and_minima(b)
    codes = _nibbles(b[:, 48:].view(-1, 4, 32)).view(-1, 8, 32)
    high = own_copy(b[:, 16:48])
    for i in range(8):
        bits = high >> (i - 4) if i > 4 else high << (4 - i)
        codes[:, i].bitwise_or_(bits.bitwise_and_(16))
    out.view(-1, 8, 32).copy_(codes).mul_(scales).sub_(minima)


def q6_k(b: Tensor, out: Tensor) -> None:
    codes = _nibbles(b[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    codes |= _crumbs(b[:, 128:192].view(-1, 2, 32)) << 4
    scales = b[:, 192:208].view(torch.int8).float().mul_(_half(b, 208))
    out.copy_(codes.view(torch.int8).sub_(32).view(-1, 256))
    out.view(-1, 16, 16).mul_(scales.unsqueeze(-1))


def iq4_xs(b: Tensor, out: Tensor) -> None:
    low = _nibbles(b[:, 4:8]).transpose(1, 2).reshape(-1, 8)
    high = _crumbs(b[:, 2:4]).transpose(1, 2).reshape(-1, 8)
    scales = (low | (high << 4)).view(torch.int8).sub_(32).float().mul_(_half(b, 0))
    codes = _look_up_halves(b[:, 8:].reshape(-1, 16), IQ4)
    out.view(-1, 8, 32).copy_(codes.view(-1, 8, 32)).mul_(scales.unsqueeze(-1))


def _by_gguf(name: str) -> Decoder:
    """A decoder that calls PyPI gguf's NumPy code, for the types whose code books live there."""

    def decode(b: Tensor, out: Tensor) -> None:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        values = dequantize(b.cpu().contiguous().numpy(), GGMLQuantizationType[name.upper()])
        out.copy_(torch.from_numpy(values))

    return decode


BLOCK_DECODERS: dict[str, Decoder] = {
    "q4_0": q4_0,
    "q4_1": q4_1,
    "q5_0": q5_0,
    "q5_1": q5_1,
    "q8_0": q8_0,
    "q2_k": q2_k,
    "q3_k": q3_k,
    "q4_k": q4_k,
    "q5_k": q5_k,
    "q6_k": q6_k,
    "iq4_nl": iq4_nl,
    "iq4_xs": iq4_xs,
    "mxfp4": mxfp4,
    "nvfp4_gguf": nvfp4,
    **{name: _by_gguf(name) for name in ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")},
}
