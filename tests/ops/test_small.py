"""Norms, rotation, the n-gram gate and hash, hyper-connections and linear layers, row by row in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.checkpoint.packed import Stack, decode
from nextfit.ops import hyper, ngram
from nextfit.ops.history import History, extend
from nextfit.ops.linear import linear
from nextfit.ops.norm import gated_rms_norm, l2_norm, rms_norm
from nextfit.ops.rope import rope, rope_table
from tests.ops.common import ROWS, SPACE, batch, generator
from tests.support.packing import random_blocks
from tests.support.random_model import small_config

EPS = 1e-6


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def naive_rms(x: list[float], gain: list[float]) -> list[float]:
    scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + EPS)
    return [v * scale * g for v, g in zip(x, gain, strict=True)]


def close(a: Tensor, b: list, tolerance: float = 1e-12) -> bool:
    return bool(torch.allclose(a.double(), torch.tensor(b, dtype=torch.float64), atol=tolerance))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("groups", [1, 4])
def test_rms_norm(rows: int, groups: int) -> None:
    g = generator(rows)
    x, gain = torch.randn(rows, 12, generator=g).double(), torch.randn(12, generator=g).double()
    n = 12 // groups
    wanted = [
        [v for a in range(0, 12, n) for v in naive_rms(row[a : a + n], gain.tolist()[a : a + n])]
        for row in x.tolist()
    ]
    assert close(rms_norm(x, gain, EPS, groups), wanted)


def test_rms_norm_rounds_once() -> None:
    x, gain = (
        torch.randn(50, 64, generator=generator(0)).bfloat16(),
        torch.rand(64, generator=generator(1)) + 0.5,
    )
    exact = rms_norm(x.double(), gain.double(), EPS)
    assert torch.equal(rms_norm(x, gain, EPS), exact.float().bfloat16())


def test_zeros_stay_zeros() -> None:
    zero = torch.zeros(2, 8)
    for y in (rms_norm(zero, torch.ones(8), EPS), l2_norm(zero, EPS)):
        assert torch.equal(y, zero)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("activation", ["sigmoid", "silu"])
def test_gated_norm_and_l2_norm(rows: int, activation: str) -> None:
    g = generator(rows)
    x, z = (torch.randn(rows, 2, 6, generator=g, dtype=torch.float64) for _ in "xz")
    weight = torch.randn(6, generator=g, dtype=torch.float64)
    wanted = []
    for row, gates in zip(x.tolist(), z.tolist(), strict=True):
        for head, gate in zip(row, gates, strict=True):
            open_ = [sigmoid(v) * (v if activation == "silu" else 1) for v in gate]
            wanted.append([a * b for a, b in zip(naive_rms(head, weight.tolist()), open_, strict=True)])
    assert close(gated_rms_norm(x, z, weight, EPS, activation).flatten(0, 1), wanted)
    lengths = [[v / math.sqrt(sum(u * u for u in h) + EPS) for v in h] for row in x.tolist() for h in row]
    assert close(l2_norm(x, EPS).flatten(0, 1), lengths)


@pytest.mark.parametrize("rows", ROWS)
def test_rope(rows: int) -> None:
    g, theta, rotary, width = generator(rows), 1e7, 6, 10
    x = torch.randn(rows, 2, width, generator=g, dtype=torch.float64)
    positions = torch.randint(0, 1 << 18, (rows,), generator=g)
    got = rope(x, rope_table(positions, rotary, theta, torch.float64))
    for row, p in enumerate(positions.tolist()):
        for head in range(2):
            wanted = x[row, head].tolist()
            for j in range(rotary // 2):
                a, b = x[row, head, j].item(), x[row, head, j + rotary // 2].item()
                angle = p * theta ** (-2 * j / rotary)
                wanted[j] = a * math.cos(angle) - b * math.sin(angle)
                wanted[j + rotary // 2] = b * math.cos(angle) + a * math.sin(angle)
            assert close(got[row, head], wanted, 1e-9)


@pytest.mark.parametrize("rows", ROWS)
def test_ngram_gate(rows: int) -> None:
    g = generator(rows)
    key, query = (torch.randn(rows, 3, 5, generator=g, dtype=torch.float64) for _ in "kq")
    value = torch.randn(rows, 5, generator=g, dtype=torch.float64)
    query[0, 0] = 0  # the sign of 0 is 0
    query[0, 1] = key[0, 1] * 1e-9  # below the clamp
    got = ngram.gate(key, query, value)
    for row in range(rows):
        for s in range(3):
            a = float(key[row, s] @ query[row, s]) / math.sqrt(5)
            a = math.copysign(math.sqrt(max(abs(a), 1e-6)), a) if a else 0.0
            assert close(got[row, s], [sigmoid(a) * v for v in value[row].tolist()])


REAL = small_config(
    vocab_size=248320,
    ngram_vocab_size_base=20_000_000,
    heads_per_ngram=8,
    ple_embed_dim=2560,
    eos_token_id=248044,
    hidden_size=2560,
)
# spec section 3.1: rows of ids [10, 11, 248044, 12, 13] at the start of a sequence
VECTORS = """
6826666 27775725 51991156 74082527 82622748 119600976 135816374 152166807
174244281 190221032 211723794 232787707 243645790 275729718 280030017 303574322
2940504 22060242 51620224 61004244 80476372 100300474 130036651 149684858
176155633 188444023 204598098 221538224 251457628 261736411 285242727 303372722
4679147 20352667 52599150 74683044 98198172 106977280 121027876 141408284
169789359 198612961 210924170 220705730 246230035 272812674 295242179 309152779
10272144 38375960 56169038 77269436 82103390 104512879 128875317 156088582
166704986 181067027 214019790 236371812 246423428 277700973 295065937 303933063
2372911 26244889 58181291 70892635 93217067 113992001 125154417 146704472
177001882 191203173 206256009 222909216 243785810 265022014 285514102 308573248
"""


def test_hash_constants_of_the_real_model() -> None:
    h = ngram_hash(REAL, 1)
    assert h.multipliers == (23703573157769, 20109073645365, 8052911324071)
    assert h.sizes[:3] == (20000003, 20000023, 20000033) and h.sizes[-1] == 20000171
    assert h.offsets[:3] == (0, 20000003, 40000026) and h.offsets[-1] == 300001275
    assert h.rows == 320_001_536


@pytest.mark.parametrize("sizes", [[5], [1, 1, 1, 1, 1], [2, 3], [4, 1]])
@pytest.mark.parametrize("decode", [0, 1])
def test_hash_vectors(sizes: list[int], decode: int) -> None:
    """Exactly, in whatever steps the tokens come and whatever the slot held before."""
    ids = torch.tensor([10, 11, 248044, 12, 13])
    stale = torch.full((2, 2, 1), 99)
    history = History(stale.clone(), torch.full((2, 5, 1), 98), initial=248044)
    found, at, replay = [], 0, 0
    for n in sizes:
        b = batch([n], [at], decode, replay=[replay])
        tokens = extend(history, b, ids[at : at + n, None])
        found.append(ngram.row_ids(tokens, ngram_hash(REAL, 1), 248044))
        at, replay = at + n, n if decode else 0
    wanted = torch.tensor([int(x) for x in VECTORS.split()]).view(5, 16)
    assert torch.equal(torch.cat(found), wanted)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("inject", [False, True])
def test_hyper(rows: int, inject: bool) -> None:
    g, streams, hidden, rank = generator(rows), 3, 4, 5
    wide = streams * hidden
    x, gain = torch.randn(rows, wide, generator=g).double(), torch.rand(wide, generator=g).double() + 0.5
    down = torch.randn(rank + streams * inject, wide, generator=g).double()
    up = torch.randn(wide, rank, generator=g).double()
    u = torch.full((rows, hidden), torch.nan, dtype=torch.float64)
    factors = hyper.read(x, gain, down, up, rank, streams, EPS, rows // 2, SPACE, u)
    y = torch.randn(rows, hidden, generator=g).double()
    assert factors.shape == (rows, streams * inject)
    for row in range(rows):
        n = rms_norm(x[row], gain, EPS, streams)
        low = [sum(a * b for a, b in zip(w, n.tolist(), strict=True)) / streams for w in down.tolist()]
        mid = torch.tensor([v * sigmoid(v) for v in low[:rank]], dtype=torch.float64)
        gated = torch.sigmoid(up @ mid) * n
        assert torch.allclose(u[row], sum(gated.split(hidden)) / streams, atol=1e-12)
        assert close(factors[row], [2 * sigmoid(v) for v in low[rank:]])
    if inject:
        z = x.clone()
        hyper.write(z, y, factors)
        for s in range(streams):
            part = slice(s * hidden, (s + 1) * hidden)
            assert torch.allclose(z[:, part], x[:, part] + factors[:, s, None] * y, atol=1e-12)


@pytest.mark.parametrize("rows", [0, *ROWS])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_linear(rows: int, dtype: torch.dtype) -> None:
    """Plain, packed and stacked weights, with no, some and only decode rows."""
    g = generator(rows)
    x = torch.randn(rows, 64, generator=g).to(dtype)
    plain, packed = torch.randn(10, 64, generator=g).to(dtype), random_blocks("q8_0", (6, 64))
    packed.parts["data"].view(-1, 34)[:, 1] &= 0x37  # small scales
    for weight in (plain, packed, Stack((plain, packed, plain))):
        wanted = x.double() @ decode(weight, torch.float32).double().T
        for decode_rows in {0, rows // 2, rows}:
            out = torch.full(wanted.shape, torch.nan, dtype=dtype)
            y = linear(x, weight, decode_rows, SPACE, out)
            assert y is out and torch.equal(y, linear(x, weight, decode_rows, SPACE))
            assert y.dtype == dtype and y.shape == wanted.shape
            bound = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 2e-2}[dtype]
            assert torch.allclose(y.double(), wanted, rtol=bound, atol=bound * 20)
