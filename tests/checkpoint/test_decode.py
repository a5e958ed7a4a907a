"""Every quantised format decodes to exactly the values of its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from nextfit.checkpoint import decode as decode_module
from nextfit.checkpoint.formats import FORMATS
from nextfit.checkpoint.packed import Packed, Stack, decode, expert, gather_rows
from tests.support.packing import HALVES, pack, random_blocks

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
BLOCKS = [name for name, f in FORMATS.items() if f.kind == "block"]
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
# zeros, subnormals, the largest, negative ones
EXTREME = (0.0, -0.0, 6e-8, 6.1e-5, -3e-7, 65504.0, -65504.0, -1.5, 1.0)


def by_gguf(w: Packed) -> Tensor:
    kind = GGMLQuantizationType[w.format.removesuffix("_gguf").upper()]
    with np.errstate(all="ignore"):
        return torch.from_numpy(dequantize(w.parts["data"].numpy(), kind)).reshape(w.shape)


def same_bits(a: Tensor, b: Tensor) -> bool:
    assert a.dtype == b.dtype == torch.float32
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def extreme_blocks(name: str) -> Packed:
    """Random codes with every pair of extreme scales."""
    w = random_blocks(name, (len(EXTREME) ** 2, FORMATS[name].block), seed=3)
    pairs = np.array([(a, b) for a in EXTREME for b in EXTREME], np.float16)
    for values, at in zip(pairs.T, HALVES.get(name, ()), strict=False):
        w.parts["data"][:, at : at + 2] = torch.from_numpy(values.copy().view(np.uint8).reshape(-1, 2))
    return w


def moved(w: Packed, device: str) -> Packed:
    return Packed(w.format, w.shape, {role: x.to(device) for role, x in w.parts.items()})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_decode_to_the_bits_of_gguf(name: str, device: str) -> None:
    for w in (random_blocks(name, (3, 37, 2 * FORMATS[name].block), seed=1), extreme_blocks(name)):
        assert same_bits(decode(moved(w, device), torch.float32).cpu(), by_gguf(w))


@pytest.mark.parametrize("device", DEVICES)
def test_scaled_formats_are_the_same_on_every_device(device: str) -> None:
    g = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 127, (131, 256), generator=g, dtype=torch.uint8)
    scale = torch.randint(0, 127, (131, 32), generator=g, dtype=torch.uint8).view(torch.float8_e4m3fn)
    for w in (
        pack("nvfp4", (131, 512), codes, scale=scale, scale_2=torch.tensor(0.3)),
        pack("fp8_block", (131, 256), codes, scale=torch.rand(2, 2, generator=g)),
        pack("fp8_tensor", (131, 256), codes, scale=torch.tensor(0.3)),
    ):
        there = moved(w, device)
        assert same_bits(decode(there, torch.float32).cpu(), decode(w, torch.float32))
        ids = torch.tensor([[130, 0], [7, 7]])
        assert torch.equal(
            gather_rows(there, ids.to(device), torch.float32).cpu(), decode(w, torch.float32)[ids]
        )


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4_gguf"])
def test_every_scale_byte_is_decoded(name: str) -> None:
    w = random_blocks(name, (256, FORMATS[name].block), seed=2)
    w.parts["data"][:, : 4 if name == "nvfp4_gguf" else 1] = torch.arange(256, dtype=torch.uint8)[:, None]
    assert same_bits(decode(w, torch.float32), by_gguf(w))


def e4m3(code: int) -> float:
    sign, exponent, mantissa = -1 if code & 128 else 1, (code >> 3) & 15, code & 7
    if code & 127 == 127:
        return float("nan")
    return sign * (mantissa / 512 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def test_nvfp4_of_safetensors_equals_its_definition() -> None:
    g = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (2, 5, 24), generator=g, dtype=torch.uint8)
    scale = torch.randint(0, 127, (2, 5, 3), generator=g, dtype=torch.uint8)
    factor = torch.tensor([0.0123, 3e-5])
    w = pack("nvfp4", (2, 5, 48), codes, scale=scale.view(torch.float8_e4m3fn), scale_2=factor)
    got = decode(w, torch.float32)
    for e, row, i in np.ndindex(2, 5, 48):
        code = (int(codes[e, row, i // 2]) >> (4 * (i % 2))) & 15
        value = (-1 if code & 8 else 1) * E2M1[code & 7] * e4m3(int(scale[e, row, i // 16]))
        assert float(got[e, row, i]) == float(np.float32(value) * np.float32(factor[e]))


@pytest.mark.parametrize("columns", [256, 200, 77])
def test_fp8_with_scales_equals_its_definition(columns: int) -> None:
    g = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (2, 131, columns), generator=g, dtype=torch.uint8)
    codes[(codes & 127) == 127] = 8
    values = torch.tensor([[e4m3(int(c))] for c in codes.flatten()]).view(codes.shape)
    scale = torch.rand(2, 2, -(-columns // 128), generator=g)
    each = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :131, :columns]
    w = pack("fp8_block", (2, 131, columns), codes, scale=scale)
    assert torch.equal(decode(w, torch.float32), values * each)
    w = pack("fp8_tensor", (2, 131, columns), codes, scale=torch.tensor(0.37))
    assert torch.equal(decode(w, torch.float32), values * torch.tensor(0.37))


def test_fp8_nan_stays_nan() -> None:
    w = pack(
        "fp8_tensor", (1, 4), torch.tensor([[127, 255, 0, 8]], dtype=torch.uint8), scale=torch.tensor(1.0)
    )
    assert decode(w, torch.float32).isnan().tolist() == [[True, True, False, False]]


def test_gguf_nvfp4_takes_a_factor_for_the_tensor_or_for_each_expert() -> None:
    plain = random_blocks("nvfp4_gguf", (3, 4, 128))
    data, values = plain.parts["data"], by_gguf(plain)
    one = pack("nvfp4_gguf", (3, 4, 128), data, scale=torch.tensor(0.3))
    assert torch.equal(decode(one, torch.float32), values * torch.tensor(0.3))
    factors = torch.tensor([0.3, 2.0, -1.1])
    each = pack("nvfp4_gguf", (3, 4, 128), data, scale=factors)
    assert torch.equal(decode(each, torch.float32), values * factors[:, None, None])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("chunk", [1, 700, 1 << 19])
def test_other_dtypes_are_the_float32_values_rounded_once(
    dtype: torch.dtype, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = random_blocks("q4_k", (5, 7, 256))
    values = by_gguf(w)
    monkeypatch.setattr(decode_module, "CHUNK", chunk)
    assert torch.equal(decode(w, dtype), values.to(dtype))
    assert same_bits(decode(w, torch.float32), values)


@pytest.mark.parametrize("name", BLOCKS)
def test_experts_and_rows_are_found(name: str) -> None:
    w = random_blocks(name, (3, 5, FORMATS[name].block))
    values = by_gguf(w)
    second = expert(w, 1)
    assert isinstance(second, Packed) and second.shape == (5, FORMATS[name].block)
    assert second.parts["data"].data_ptr() == w.parts["data"][1].data_ptr()
    assert torch.equal(decode(second, torch.float32), values[1])
    ids = torch.tensor([[4, 0], [4, 2]])
    assert torch.equal(gather_rows(second, ids, torch.float32), values[1][ids])


def test_rows_of_scaled_formats_bring_their_scales() -> None:
    g = torch.Generator().manual_seed(0)
    f8 = torch.randn(300, 256, generator=g).to(torch.float8_e4m3fn)
    block = pack("fp8_block", (300, 256), f8, scale=torch.rand(3, 2, generator=g))
    whole = pack("fp8_tensor", (300, 256), f8, scale=torch.tensor(0.1))
    scale = torch.rand(300, 32, generator=g).to(torch.float8_e4m3fn)
    four = pack("nvfp4", (300, 512), f8.view(torch.uint8), scale=scale, scale_2=torch.tensor(0.7))
    ids = torch.tensor([299, 0, 128, 127])
    for w in (block, whole, four):
        assert torch.equal(gather_rows(w, ids, torch.float32), decode(w, torch.float32)[ids]), w.format


def test_plain_tensors_stacks_and_tables() -> None:
    x = torch.randn(4, 3, 256)
    assert decode(x, torch.float32) is x
    assert torch.equal(decode(expert(x, 2), torch.float32), x[2])
    assert torch.equal(gather_rows(x[0], torch.tensor([2, 2]), torch.float64), x[0, [2, 2]].double())
    w = random_blocks("q8_0", (4, 5, 256))
    both = torch.cat([x.bfloat16(), by_gguf(w).bfloat16()], 1)
    stack = Stack((x, w))
    assert torch.equal(decode(stack, torch.bfloat16), both)
    assert torch.equal(decode(expert(stack, 3), torch.bfloat16), both[3])

    class Table:
        def gather(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
            return x[0][ids].to(dtype)

    assert torch.equal(gather_rows(Table(), torch.tensor([1]), torch.float32), x[0, [1]])
