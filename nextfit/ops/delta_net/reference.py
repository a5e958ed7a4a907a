from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nextfit.ops.batch import Batch

CHUNK = 64


@dataclass(frozen=True, slots=True)
class DeltaState:
    """Recurrent matrices of one layer, and the inputs of the last verify rows."""

    matrix: Tensor  # [slots, value heads, key dim, value dim], float32
    key: Tensor  # [slots, window, value heads, key dim]
    value: Tensor  # [slots, window, value heads, value dim]
    decay: Tensor  # [slots, window, value heads], log of alpha
    beta: Tensor  # [slots, window, value heads]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Inputs of the rule, [rows or (sequences, window), value heads, ...]; `decay` is log alpha."""

    query: Tensor
    key: Tensor
    value: Tensor
    decay: Tensor
    beta: Tensor

    def take(self, index: Tensor | slice) -> _Rows:
        return _Rows(*(getattr(self, f)[index] for f in self.__slots__))


def gated_delta_rule(
    state: DeltaState, batch: Batch, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor
) -> Tensor:
    """Outputs [rows, value heads, value dim], in the state's type; advances `state`.

    query, key [rows, value heads, key dim] (normed, the query scaled), value [rows, value heads, value dim],
    decay = log alpha and beta [rows, value heads], all in the state's type.
    """
    rows = _Rows(query, key, value, decay, beta)
    matrix = replayed(state, batch.slot_index, batch.replay)
    if 0 in batch.firsts:
        matrix.masked_fill_(batch.fresh[:, None, None, None], 0)
    out = torch.empty_like(value)
    d = batch.decode_sequences
    if d < len(batch.lengths):
        _prefill(matrix[d:], batch, rows, out)
    if isinstance(batch.slot_index, Tensor):
        state.matrix[batch.slots] = matrix
    if d:
        _verify(matrix[:d], state, batch, rows, out)
    return out


def _update(matrix: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> None:
    """S <- alpha S + k (x) beta (v - alpha S^T k), in place. A row with decay 0 and beta 0 changes nothing."""
    alpha = decay.exp()[..., None]
    read = torch.einsum("nhk,nhkv->nhv", key, matrix)
    delta = beta[..., None] * (value - alpha * read)
    matrix.mul_(alpha[..., None]).add_(key[..., None] * delta[..., None, :])


def replayed(state: DeltaState, slots: Tensor | slice, replay: Tensor) -> Tensor:
    """Matrices of `slots` after the first `replay` [n] logged rows of each; a view if `slots` is a slice."""
    matrix = state.matrix[slots]
    for j in range(int(replay.max())):
        live = (j < replay)[:, None]
        decay = torch.where(live, state.decay[slots, j], 0)
        beta = torch.where(live, state.beta[slots, j], 0)
        key = torch.where(live[..., None], state.key[slots, j], 0)
        value = torch.where(live[..., None], state.value[slots, j], 0)
        _update(matrix, key, value, decay, beta)
    return matrix


def _verify(matrix: Tensor, state: DeltaState, batch: Batch, rows: _Rows, out: Tensor) -> None:
    """Run the decode rows one after the other, and log their inputs; `matrix` stays as it is."""
    n = batch.decode_rows
    sequence, offset = batch.sequence[:n], batch.offset[:n]
    slot = batch.slots[sequence]
    for log, x in (
        (state.key, rows.key),
        (state.value, rows.value),
        (state.decay, rows.decay),
        (state.beta, rows.beta),
    ):
        log[slot, offset] = x[:n]
    longest = max(batch.lengths[: batch.decode_sequences])
    if longest > 1:
        matrix = matrix.clone()
    for j in range(longest):
        index = (offset == j).nonzero()[:, 0]
        live = sequence[index]
        r = rows.take(index)
        current = matrix if len(live) == len(matrix) else matrix[live]
        alpha = r.decay.exp()[..., None]
        reads = torch.stack([r.key, r.query], 2) @ current
        delta = r.beta[..., None] * (r.value - alpha * reads[:, :, 0])
        out[index] = alpha * reads[:, :, 1] + (r.query * r.key).sum(-1, keepdim=True) * delta
        if j + 1 < longest:
            current.mul_(alpha[..., None]).add_(r.key[..., None] * delta[..., None, :])
            if current is not matrix:
                matrix[live] = current


def _pieces(batch: Batch) -> tuple[list[list[tuple[int, int]]], int]:
    """Row ranges of the prefill sequences, cut at positions that are multiples of CHUNK."""
    out, longest = [], 0
    for s in range(batch.decode_sequences, len(batch.lengths)):
        row, end, position = batch.starts[s], batch.starts[s + 1], batch.firsts[s]
        cuts = []
        while row < end:
            n = min(CHUNK - position % CHUNK, end - row)
            cuts.append((row, n))
            row, position = row + n, position + n
        out.append(cuts)
        longest = max(longest, len(cuts))
    return out, longest


def _prefill(matrix: Tensor, batch: Batch, rows: _Rows, out: Tensor) -> None:
    """The chunk form: everything inside a chunk at once for all chunks, then the states chunk after chunk."""
    pieces, longest = _pieces(batch)
    device = out.device
    flat = [p for cuts in pieces for p in cuts]
    first = torch.tensor([p[0] for p in flat], device=device)
    count = torch.tensor([p[1] for p in flat], device=device)
    index = first[:, None] + torch.arange(CHUNK, device=device)
    valid = index < (first + count)[:, None]
    r = rows.take(torch.where(valid, index, first[:, None]))
    # a padded row neither decays nor writes
    decay = torch.where(valid[..., None], r.decay, 0).transpose(1, 2)
    beta = torch.where(valid[..., None], r.beta, 0).transpose(1, 2)[..., None]
    key = torch.where(valid[..., None, None], r.key, 0).transpose(1, 2)
    query, value = r.query.transpose(1, 2), r.value.transpose(1, 2)
    c = decay.cumsum(-1)
    ratio = (c[..., :, None] - c[..., None, :]).tril().exp().tril()  # exp(c_i - c_j), i >= j
    a = (beta * key @ key.transpose(-1, -2)) * ratio
    eye = torch.eye(CHUNK, dtype=a.dtype, device=device)
    rhs = torch.cat([beta * value, beta * key * c.exp()[..., None]], dim=-1)
    solved = torch.linalg.solve_triangular(a.tril(-1) + eye, rhs, upper=False, unitriangular=True)
    u, w = solved.split([value.shape[-1], key.shape[-1]], dim=-1)
    inner = (query @ key.transpose(-1, -2)) * ratio
    outer = query * c.exp()[..., None]
    carry = key * (c[..., -1:] - c).exp()[..., None]
    total = c[..., -1].exp()[..., None, None]
    base = [sum(len(cuts) for cuts in pieces[:s]) for s in range(len(pieces))]
    for step in range(longest):
        live = [s for s, cuts in enumerate(pieces) if step < len(cuts)]
        at = torch.tensor([base[s] + step for s in live], device=device)
        current = matrix[live]
        v = u[at] - w[at] @ current
        o = outer[at] @ current + inner[at] @ v
        matrix[live] = total[at] * current + carry[at].transpose(-1, -2) @ v
        keep = valid[at]
        out[index[at][keep]] = o.transpose(1, 2)[keep]
