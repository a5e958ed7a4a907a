from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.ops.batch import Batch
from nextfit.ops.precision import matmul_dtype
from nextfit.ops.sparse_attention.index import best_blocks
from nextfit.ops.sparse_attention.pages import KVPages

MASK_ELEMENTS = 1 << 22  # rows x history of one masked product; bounds memory at any context


def attend(
    query: Tensor, index_query: Tensor, pages: KVPages, batch: Batch, budget: int, ratio: int
) -> Tensor:
    """Attention output [rows, heads, head dim], in the type of `query` [rows, heads, head dim].

    Each row sees the tokens of its `budget` / `ratio` best complete blocks, chosen with `index_query`
    [rows, index heads, index dim], and the open tail behind them; all rows share one choice among heads.
    The step's own keys, values and block keys are already in `pages`.
    """
    out = torch.empty_like(query)
    blocks = budget // ratio
    for s, (first, n) in enumerate(zip(batch.firsts, batch.lengths, strict=True)):
        # rows that see no more blocks than the budget attend to everything
        dense = min(n, max(0, (blocks + 1) * ratio - 1 - first))
        a = batch.starts[s]
        table, decode = batch.pages[s], s < batch.decode_sequences
        if dense:
            rows = slice(a, a + dense)
            out[rows] = _masked(query[rows], None, pages, table, first, ratio)
        if dense < n:
            rows = slice(a + dense, a + n)
            at = first + dense
            position = torch.arange(at, first + n, device=query.device)
            visible = (position + 1) // ratio
            keys = pages.blocks(table, (first + n) // ratio)
            chosen = best_blocks(index_query[rows], keys, visible, blocks)
            if decode:
                out[rows] = _gathered(query[rows], chosen, pages, table, position, ratio)
            else:
                out[rows] = _masked(query[rows], chosen, pages, table, at, ratio)
    return out


def _masked(
    query: Tensor, chosen: Tensor | None, pages: KVPages, table: Tensor, first: int, ratio: int
) -> Tensor:
    """Rows at positions `first`, ... against their whole history under a mask, in tiles of bounded size.

    `chosen` [rows, k] are each row's blocks; None: all of them.
    """
    history = first + len(query)
    key, value = (x.to(matmul_dtype(x.dtype, x.device)) for x in pages.tokens(table, history))
    step = max(1, MASK_ELEMENTS // history)
    token = torch.arange(history, device=query.device)
    out = []
    for a in range(0, len(query), step):
        q = query[a : a + step]
        position = torch.arange(first + a, first + a + len(q), device=query.device)[:, None]
        mask = token <= position
        if chosen is not None:
            seen = torch.zeros(len(q), -(-history // ratio), dtype=torch.bool, device=query.device)
            seen.scatter_(1, chosen[a : a + step], True)
            tail = token >= (position + 1) // ratio * ratio
            mask &= seen.repeat_interleave(ratio, dim=1)[:, :history] | tail
        # [kv heads, group, rows, dim]: the group's heads share their keys through a stride of 0
        grouped = q.to(key.dtype).unflatten(1, (key.shape[1], -1)).permute(1, 2, 0, 3)
        k, v = (x.permute(1, 0, 2)[:, None].expand(-1, grouped.shape[1], -1, -1) for x in (key, value))
        y = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask)
        out.append(y.permute(2, 0, 1, 3).flatten(1, 2).to(query.dtype))
    return torch.cat(out)


def _gathered(
    query: Tensor, chosen: Tensor, pages: KVPages, table: Tensor, position: Tensor, ratio: int
) -> Tensor:
    """Rows against exactly their chosen tokens; the few rows of a decode or verify step."""
    inside = torch.arange(ratio, device=query.device)
    tokens = (chosen[:, :, None] * ratio + inside).flatten(1)
    tail = ((position + 1) // ratio * ratio)[:, None] + inside[:-1]
    tokens = torch.cat([tokens, tail], dim=1)
    valid = tokens <= position[:, None]
    dtype = matmul_dtype(query.dtype, query.device)
    key, value = pages.gather(table, torch.where(valid, tokens, 0))
    k, v = (x.to(dtype).transpose(1, 2) for x in (key, value))
    q = query.to(dtype).unflatten(1, (k.shape[1], -1))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None, :])
    return y.flatten(1, 2).to(query.dtype)
