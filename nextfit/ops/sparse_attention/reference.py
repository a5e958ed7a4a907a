from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.ops.batch import Batch
from nextfit.ops.precision import matmul_dtype
from nextfit.ops.sparse_attention.index import best_blocks
from nextfit.ops.sparse_attention.pages import KVPages

ROWS = 128  # of a sequence that attend at a time
STAGE = 1024  # tokens of the history that they attend to at a time


def attend(
    query: Tensor, index_query: Tensor, pages: KVPages, batch: Batch, budget: int, ratio: int
) -> Tensor:
    """Attention output [rows, heads, head dim], in the type of `query` [rows, heads, head dim].

    Each row sees the tokens of its `budget` / `ratio` best complete blocks, chosen with `index_query`
    [rows, index heads, index dim], and the open tail behind them; all rows share one choice among heads.
    The step's own keys, values and block keys are already in `pages`. Memory grows neither with the rows nor
    with the history.
    """
    out = torch.empty_like(query)
    for s, (first, n) in enumerate(zip(batch.firsts, batch.lengths, strict=True)):
        one = _Sequence(pages, batch.pages[s], s < batch.decode_sequences, budget // ratio, ratio)
        for a in range(0, n, ROWS):
            rows = slice(batch.starts[s] + a, batch.starts[s] + min(n, a + ROWS))
            one.attend(query[rows], index_query[rows], first + a, out[rows])
    return out


@dataclass(frozen=True, slots=True)
class _Sequence:
    """The history of one sequence, and how its rows see it."""

    pages: KVPages
    table: Tensor  # [width] int64
    decode: bool
    blocks: int  # that a row chooses
    ratio: int

    def attend(self, query: Tensor, index_query: Tensor, first: int, out: Tensor) -> None:
        """Rows at positions `first`, ...; those that see no more than the blocks to choose see everything."""
        dense = min(len(query), max(0, (self.blocks + 1) * self.ratio - 1 - first))
        if dense:
            out[:dense] = self._streamed(query[:dense], None, first)
        if dense < len(query):
            position = torch.arange(first + dense, first + len(query), device=query.device)
            visible, keys = (position + 1) // self.ratio, partial(self.pages.blocks, self.table)
            chosen = best_blocks(index_query[dense:], keys, visible, self.blocks)
            if self.decode:
                out[dense:] = self._gathered(query[dense:], chosen, position)
            else:
                out[dense:] = self._streamed(query[dense:], chosen, first + dense)

    def _streamed(self, query: Tensor, chosen: Tensor | None, first: int) -> Tensor:
        """Rows at positions `first`, ... against their whole history under a mask, STAGE tokens of it at a time.

        `chosen` [rows, k] are each row's blocks; None: all of them.
        """
        history, device = first + len(query), query.device
        dtype = matmul_dtype(query.dtype, device)
        position = torch.arange(first, history, device=device)[:, None]
        # [kv heads, group, rows, dim]: the group's heads share their keys through a stride of 0
        q = query.to(dtype).unflatten(1, (self.pages.key.shape[2], -1)).permute(1, 2, 0, 3)
        out, total = torch.zeros_like(q), torch.full(q.shape[:3], _nothing(dtype), dtype=dtype, device=device)
        stage = max(1, STAGE // self.ratio) * self.ratio
        for a in range(0, history, stage):
            _join(out, total, *self._stage(q, chosen, position, a, min(a + stage, history)))
        return out.permute(2, 0, 1, 3).flatten(1, 2).to(query.dtype)

    def _stage(
        self, q: Tensor, chosen: Tensor | None, position: Tensor, first: int, end: int
    ) -> tuple[Tensor, Tensor]:
        """`_part` of the tokens `first` to `end` of the history."""
        token = torch.arange(first, end, device=q.device)
        mask = token <= position
        if chosen is not None:
            tail = token >= (position + 1) // self.ratio * self.ratio
            mask &= _tokens_of(chosen, first // self.ratio, end - first, self.ratio) | tail
        stored = self.pages.tokens(self.table, first, end)
        k, v = (x.to(q.dtype).permute(1, 0, 2)[:, None].expand(-1, q.shape[1], -1, -1) for x in stored)
        return _part(q, k, v, mask)

    def _gathered(self, query: Tensor, chosen: Tensor, position: Tensor) -> Tensor:
        """Rows against exactly their chosen tokens; the few rows of a decode or verify step."""
        ratio = self.ratio
        inside = torch.arange(ratio, device=query.device)
        tokens = (chosen[:, :, None] * ratio + inside).flatten(1)
        tail = ((position + 1) // ratio * ratio)[:, None] + inside[:-1]
        tokens = torch.cat([tokens, tail], dim=1)
        valid = tokens <= position[:, None]
        dtype = matmul_dtype(query.dtype, query.device)
        stored = self.pages.gather(self.table, torch.where(valid, tokens, 0))
        k, v = (x.to(dtype).transpose(1, 2) for x in stored)
        q = query.to(dtype).unflatten(1, (k.shape[1], -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None, :])
        return y.flatten(1, 2).to(query.dtype)


def _tokens_of(chosen: Tensor, first: int, tokens: int, ratio: int) -> Tensor:
    """Which of `tokens` tokens, the first that of block `first`, are in a row's `chosen` blocks: [rows, tokens]."""
    blocks = -(-tokens // ratio)
    block = chosen - first
    block = torch.where((block >= 0) & (block < blocks), block, blocks)  # all others are in one more column
    seen = torch.zeros(len(chosen), blocks + 1, dtype=torch.bool, device=chosen.device).scatter_(
        1, block, True
    )
    return seen[:, :-1].repeat_interleave(ratio, dim=1)[:, :tokens]


def _nothing(dtype: torch.dtype) -> float:
    """Logarithm of a sum of no exponentials; finite, so that differences of it are."""
    return torch.finfo(dtype).min / 2


def _join(out: Tensor, total: Tensor, part: Tensor, weight: Tensor) -> None:
    """Add a part to the attention over other parts, in place; both as `_part` returns them."""
    both = torch.logaddexp(total, weight)
    out.mul_((total - both).exp_()[..., None]).addcmul_(part, (weight - both).exp_()[..., None])
    total.copy_(both)


def _part(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over a part of the history, and the logarithm of the sum of its exponentials.

    q [kv heads, group, rows, dim], k and v [kv heads, group, tokens, dim], mask [rows, tokens] ->
    [kv heads, group, rows, dim], [kv heads, group, rows]. A row that sees nothing gets zeros of no weight.
    """
    bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, -torch.inf)
    out, total = (_fused if q.device.type == "cpu" else _plain)(q, k, v, bias)
    return out, torch.where(mask.any(-1), total, _nothing(total.dtype))


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """What F.scaled_dot_product_attention calls on a CPU, which keeps the sum to itself."""
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return attention(q, k, v, attn_mask=bias[None, None])


def _plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias
    total = scores.logsumexp(-1)
    return torch.nan_to_num((scores - total[..., None]).exp_()) @ v, total
