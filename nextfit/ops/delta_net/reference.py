from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nextfit.ops.batch import Batch

CHUNK = 64
TOGETHER = 8  # chunks


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
    out = torch.empty_like(value)
    if batch.decode_sequences:
        _verify(state, batch, rows, out)
    if batch.decode_sequences < len(batch.lengths):
        _prefill(state, batch, rows, out)
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


def _verify(state: DeltaState, batch: Batch, rows: _Rows, out: Tensor) -> None:
    """Commit the accepted rows of the last step, run the decode rows one after the other, and log their inputs."""
    d, n = batch.decode_sequences, batch.decode_rows
    slots = batch.decode_slots
    matrix = replayed(state, slots, batch.replay[:d])
    if 0 in batch.firsts[:d]:
        matrix.masked_fill_(batch.fresh[:d, None, None, None], 0)
    if isinstance(slots, Tensor):
        state.matrix[slots] = matrix
    sequence, offset = batch.sequence[:n], batch.offset[:n]
    slot = batch.slots[sequence]
    for log, x in (
        (state.key, rows.key),
        (state.value, rows.value),
        (state.decay, rows.decay),
        (state.beta, rows.beta),
    ):
        log[slot, offset] = x[:n]
    longest = max(batch.lengths[:d])
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


def _pieces(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """(slot, first row, rows) of the prefill sequences, cut at positions that are multiples of CHUNK."""
    slots = batch.slots.tolist()
    for s in range(batch.decode_sequences, len(batch.lengths)):
        row, end, position = batch.starts[s], batch.starts[s + 1], batch.firsts[s]
        while row < end:
            n = min(CHUNK - position % CHUNK, end - row)
            yield slots[s], row, n
            row, position = row + n, position + n


def _prefill(state: DeltaState, batch: Batch, rows: _Rows, out: Tensor) -> None:
    """The chunk form, a few chunks at a time, so that memory depends neither on the rows nor on the sequences."""
    for s in range(batch.decode_sequences, len(batch.lengths)):
        slot = int(batch.slots[s])
        one = slice(slot, slot + 1)  # a view, so that replaying is in place
        matrix = replayed(state, one, batch.replay[s : s + 1])
        if batch.firsts[s] == 0:
            matrix.zero_()
    pieces = list(_pieces(batch))
    for a in range(0, len(pieces), TOGETHER):
        _chunks(state.matrix, pieces[a : a + TOGETHER], rows, out)


def _chunks(matrix: Tensor, pieces: list[tuple[int, int, int]], rows: _Rows, out: Tensor) -> None:
    """Everything inside a chunk at once for all chunks, then the states, chunk after chunk."""
    device = out.device
    first = torch.tensor([row for _, row, _ in pieces], device=device)
    count = torch.tensor([n for _, _, n in pieces], device=device)
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
    for i, (slot, row, n) in enumerate(pieces):
        current = matrix[slot]
        v = u[i] - w[i] @ current
        o = outer[i] @ current + inner[i] @ v
        current.mul_(total[i]).add_(carry[i].transpose(-1, -2) @ v)
        out[row : row + n] = o.transpose(0, 1)[:n]
