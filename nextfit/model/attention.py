"""Sparse attention (QSA, spec section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nextfit.config import ModelConfig
from nextfit.model.buffers import Buffers
from nextfit.model.weights import Weights
from nextfit.ops.batch import Batch
from nextfit.ops.linear import linear
from nextfit.ops.norm import rms_norm
from nextfit.ops.rope import rope, rope_table
from nextfit.ops.sparse_attention import KVPages, attend, completing_rows


@dataclass(frozen=True, slots=True)
class Angles:
    """Rotations of one step, shared by its attention layers."""

    rows: tuple[Tensor, Tensor]  # of every row's position
    closing: Tensor  # rows that complete an index block
    blocks: tuple[Tensor, Tensor]  # of the first position of each of those blocks

    @classmethod
    def of(cls, c: ModelConfig, batch: Batch, dtype: torch.dtype) -> Angles:
        closing = completing_rows(batch, c.indexer_compress_ratio)
        first = batch.positions[closing] - (c.indexer_compress_ratio - 1)
        tables = (rope_table(p, c.rotary_dim, c.rope_theta, dtype) for p in (batch.positions, first))
        return cls(next(tables), closing, next(tables))


class SparseAttention:
    """The token mixer of the full layers and of the draft head."""

    def __init__(self, c: ModelConfig, w: Weights) -> None:
        self.in_proj, self.out_proj = w.matrix("in_proj"), w.matrix("o_proj")
        self.q_norm, self.k_norm = w.vector("q_norm"), w.vector("k_norm")
        self.index_q_norm, self.index_k_norm = w.vector("index_q_norm"), w.vector("index_k_norm")
        self.heads, self.kv_heads, self.head_dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.index_heads, self.index_dim = c.indexer_n_heads, c.indexer_head_dim
        self.budget, self.ratio, self.eps = c.indexer_budget, c.indexer_compress_ratio, c.rms_norm_eps
        kv = self.kv_heads * self.head_dim
        self.sizes = [
            2 * self.heads * self.head_dim,
            kv,
            kv,
            self.index_heads * self.index_dim,
            self.index_dim,
        ]

    def __call__(self, u: Tensor, pages: KVPages, batch: Batch, angles: Angles, buffers: Buffers) -> Tensor:
        """Block input u [rows, hidden] -> output [rows, hidden]."""
        n, space = batch.decode_rows, buffers.space
        q, k, v, index_q, raw = linear(u, self.in_proj, n, space).split(self.sizes, dim=1)
        q, gate = q.unflatten(1, (self.heads, 2, self.head_dim)).unbind(2)
        q = rope(rms_norm(q, self.q_norm, self.eps), angles.rows)
        k = rope(rms_norm(k.unflatten(1, (self.kv_heads, -1)), self.k_norm, self.eps), angles.rows)
        pages.write(batch, k, v.unflatten(1, (self.kv_heads, -1)))
        index_q = rope(
            rms_norm(index_q.unflatten(1, (self.index_heads, -1)), self.index_q_norm, self.eps), angles.rows
        )
        pooled = rms_norm(pages.pool(batch, raw, angles.closing, self.ratio), self.index_k_norm, self.eps)
        block_keys = rope(pooled[:, None], angles.blocks)[:, 0]
        pages.write_blocks(batch, angles.closing, self.ratio, block_keys)
        y = attend(q, index_q, pages, batch, self.budget, self.ratio)
        y = (y * torch.sigmoid(gate)).flatten(1)
        return linear(y, self.out_proj, n, space, buffers.outputs)
