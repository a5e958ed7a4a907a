"""The forward pass for training: whole rows at once, differentiable, on the parts of the checkpoint by name.

It computes what `nextfit.model` computes (a test holds the two together): every expert is evaluated and
weighted, as one wide product, and a row holds several conversations that do not see one another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.checkpoint.names import Kind, draft_slots, trunk_slots
from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.config import ModelConfig
from nextfit.ops import ngram
from nextfit.ops.history import Extended
from nextfit.ops.norm.reference import gated_rms_norm, l2_norm  # kernels have no gradients
from nextfit.ops.rope import rope, rope_table

Parts = Mapping[str, Tensor]
CHUNK = 64
RESET = -60.0  # log of a decay that leaves nothing


def new_parts(c: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Part name -> initial float32 values."""
    g = torch.Generator().manual_seed(seed)
    out = {}
    for slot in [*trunk_slots(c), *draft_slots(c)]:
        axis = len(slot.shape) - 2 if slot.kind in (Kind.MATRIX, Kind.EXPERTS) else 0
        for part in slot.parts:
            shape = (*slot.shape[:axis], part.rows, *slot.shape[axis + 1 :])
            out[part.name] = _initial(slot.kind, part.name, shape, g)
    return out


def _initial(kind: Kind, name: str, shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=g)
    if kind is Kind.GAIN:
        return torch.zeros(shape)
    if kind is Kind.DECAY:
        return torch.log(torch.rand(shape, generator=g) * 7 + 1)
    if kind is Kind.VECTOR:
        if name.endswith("dt_bias"):  # steps from 0.002 to 0.2
            step = torch.exp(torch.rand(shape, generator=g) * math.log(100) + math.log(0.002))
            return step + torch.log(-torch.expm1(-step))
        return torch.ones(shape)
    if kind is Kind.CONV:
        return noise * 0.3
    if kind is Kind.TABLE:
        return noise * 0.3
    if name == "embed_tokens.weight":
        return noise * 0.5
    small = ("o_proj", "out_proj", "down_proj", "lm_head", "mix_weight_up", "block_inject")
    return noise * (0.5 if any(s in name for s in small) else 1.0) / math.sqrt(shape[-1])


@dataclass(frozen=True)
class Rows:
    """What a batch says besides its tokens."""

    position: Tensor  # [rows, width] int64
    document: Tensor  # [rows, width] int64
    cos: tuple[Tensor, Tensor]  # rotations of every position, [rows * width, rotary dim / 2]
    block_cos: tuple[Tensor, Tensor]  # of every block's first position
    asked: Tensor  # [rows, n] int64: places whose attention the indexer is compared with
    sparse: bool

    @classmethod
    def of(cls, c: ModelConfig, position: Tensor, asked: int, sparse: bool, dtype: torch.dtype) -> Rows:
        table = [
            rope_table(p.flatten(), c.rotary_dim, c.rope_theta, dtype)
            for p in (position, position[:, :: c.indexer_compress_ratio])
        ]
        places = torch.randint(0, position.shape[1], (position.shape[0], asked), device=position.device)
        return cls(position, (position == 0).cumsum(1), table[0], table[1], places, sparse)


def rms(x: Tensor, w: Tensor, eps: float, groups: int = 1) -> Tensor:
    y = x.float().unflatten(-1, (groups, -1))
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y.flatten(-2) * (1 + w)).to(x.dtype)


def matmul(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.to(x.dtype).T


def conv(x: Tensor, taps: Tensor, position: Tensor, dilation: int = 1) -> Tensor:
    """x [rows, width, channels]; what a tap finds before the conversation's beginning is 0."""
    k = taps.shape[1]
    y = x.float() * taps[:, k - 1]
    for i in range(k - 1):
        back = dilation * (k - 1 - i)
        shifted = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]].float() * taps[:, i]
        y = y + shifted * (position >= back)[..., None]
    return y.to(x.dtype)


def read(c: ModelConfig, p: Parts, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    n = rms(x, p[f"{name}.hc_norm.weight"], c.rms_norm_eps, c.hc_count)
    low = matmul(n, p[f"{name}.input_mix_weight_down.weight"]) / c.hc_count
    gate = torch.sigmoid(matmul(F.silu(low), p[f"{name}.input_mix_weight_up.weight"]))
    u = (gate * n).unflatten(-1, (c.hc_count, -1)).mean(-2)
    inject = p.get(f"{name}.block_inject_weight.weight")
    if inject is None:  # the last read, which nothing is written back after
        return u, x[..., :0]
    return u, 2 * torch.sigmoid(matmul(n, inject) / c.hc_count)


def write(x: Tensor, y: Tensor, inject: Tensor) -> Tensor:
    return x + (inject[..., None] * y[..., None, :]).flatten(-2)


def scan(a: Tensor, b: Tensor) -> Tensor:
    """States before every step of S <- A S + B from 0: a, b [batch, steps, k, *] -> [batch, steps, k, v]."""
    n, shift = a.shape[1], 1
    while shift < n:
        b = torch.cat([b[:, :shift], b[:, shift:] + a[:, shift:] @ b[:, :-shift]], 1)
        a = torch.cat([a[:, :shift], a[:, shift:] @ a[:, :-shift]], 1)
        shift *= 2
    return F.pad(b[:, :-1], (0, 0, 0, 0, 1, 0))


def delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """The gated delta rule over [batch, heads, width, ...] from an empty state, float32; width % CHUNK == 0."""
    shape = v.shape
    q, k, v = (x.flatten(0, 1).unflatten(1, (-1, CHUNK)) for x in (q, k, v))
    c = decay.flatten(0, 1).unflatten(1, (-1, CHUNK)).cumsum(-1)
    beta = beta.flatten(0, 1).unflatten(1, (-1, CHUNK))[..., None]
    ratio = (c[..., :, None] - c[..., None, :]).tril().exp().tril()
    eye = torch.eye(CHUNK, device=q.device)
    lower = (beta * k @ k.transpose(-1, -2) * ratio).tril(-1) + eye
    rhs = torch.cat([beta * v, beta * k * c.exp()[..., None]], -1)
    u, w = torch.linalg.solve_triangular(lower, rhs, upper=False, unitriangular=True).chunk(2, -1)
    carry = (k * (c[..., -1:] - c).exp()[..., None]).transpose(-1, -2)
    total = c[..., -1].exp()[..., None, None] * torch.eye(k.shape[-1], device=q.device)
    before = scan(total - carry @ w, carry @ u)
    inner = (q @ k.transpose(-1, -2)) * ratio
    out = (q * c.exp()[..., None]) @ before + inner @ (u - w @ before)
    return out.flatten(1, 2).view(shape)


def delta_net(c: ModelConfig, p: Parts, u: Tensor, position: Tensor) -> Tensor:
    nk, nv, dk, dv = (
        c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim,
    )  # fmt: skip
    mixed = F.silu(
        conv(matmul(u, p["linear_attn.in_proj_qkv.weight"]), p["linear_attn.conv1d.weight"], position)
    )
    q, k, v = mixed.split([nk * dk, nk * dk, nv * dv], -1)
    q = l2_norm(q.unflatten(-1, (nk, dk)), c.rms_norm_eps) * dk**-0.5
    k = l2_norm(k.unflatten(-1, (nk, dk)), c.rms_norm_eps)
    a = matmul(u, p["linear_attn.in_proj_a.weight"]).float()
    decay = -p["linear_attn.A_log"].exp() * F.softplus(a + p["linear_attn.dt_bias"])
    decay = torch.where((position == 0)[..., None], RESET, decay.clamp_min(RESET))
    beta = torch.sigmoid(matmul(u, p["linear_attn.in_proj_b.weight"])).float()
    q, k = (x.repeat_interleave(nv // nk, 2).transpose(1, 2) for x in (q, k))
    v = v.unflatten(-1, (nv, dv)).float().transpose(1, 2)
    o = delta_rule(q, k, v, decay.transpose(1, 2), beta.transpose(1, 2)).transpose(1, 2)
    z = matmul(u, p["linear_attn.in_proj_z.weight"]).unflatten(-1, (nv, dv))
    y = gated_rms_norm(o.to(u.dtype), z, p["linear_attn.norm.weight"], c.rms_norm_eps, c.output_gate_type)
    return matmul(y.flatten(-2), p["linear_attn.out_proj.weight"])


def index_scores(c: ModelConfig, p: Parts, u: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Index queries [rows, width, heads, dim] and block keys [rows, blocks, dim]."""
    h, d, ratio = c.indexer_n_heads, c.indexer_head_dim, c.indexer_compress_ratio
    b, t = u.shape[:2]
    both = matmul(u, p["self_attn.indexer.index_qk_proj.weight"])
    q, raw = both[..., : h * d].unflatten(-1, (h, d)), both[..., h * d :]
    q = rope(rms(q, p["self_attn.indexer.q_layernorm.weight"], c.rms_norm_eps).flatten(0, 1), rows.cos)
    pooled = raw.unflatten(1, (-1, ratio)).float().mean(2).to(u.dtype)
    key = rms(pooled, p["self_attn.indexer.k_layernorm.weight"], c.rms_norm_eps)
    key = rope(key.flatten(0, 1)[:, None], rows.block_cos)[:, 0]
    return q.view(b, t, h, d), key.view(b, t // ratio, d)


def scored(q: Tensor, key: Tensor) -> Tensor:
    """[rows, n, heads, dim], [rows, blocks, dim] -> [rows, n, blocks] float32, lower blocks a little ahead."""
    total = torch.einsum("bthd,bsd->bhts", q.float(), key.float()).relu().sum(1) / math.sqrt(q.shape[-1])
    return total - 1e-6 * torch.arange(key.shape[1], device=q.device)


def visible_blocks(rows: Rows, ratio: int, place: Tensor) -> Tensor:
    """Complete blocks of the same conversation at `place` [rows, n]: [rows, n, blocks] bool."""
    last = torch.arange(ratio - 1, rows.position.shape[1], ratio, device=place.device)
    same = rows.document.gather(1, place)[..., None] == rows.document[:, ::ratio][:, None]
    return same & (last <= place[..., None])


def seen(c: ModelConfig, rows: Rows, q: Tensor, key: Tensor) -> Tensor:
    """Which tokens each place attends to, [rows, 1, width, width] bool."""
    width, ratio, device = rows.position.shape[1], c.indexer_compress_ratio, rows.position.device
    here = torch.arange(width, device=device)
    mask = (rows.document[:, :, None] == rows.document[:, None]) & (here <= here[:, None])
    budget = c.indexer_budget // ratio
    if rows.sparse and width // ratio > budget:
        score = scored(q, key)
        score = score.masked_fill(~visible_blocks(rows, ratio, here.expand_as(rows.position)), -torch.inf)
        last = score.topk(budget, -1).values[..., -1:]
        chosen = (score >= last).repeat_interleave(ratio, -1)
        mask = mask & (chosen | (here >= ((here + 1) // ratio * ratio)[:, None]))
    return mask[:, None]


def index_loss(c: ModelConfig, rows: Rows, q: Tensor, k: Tensor, index_q: Tensor, key: Tensor) -> Tensor:
    """KL from the attention at `rows.asked`, pooled over heads and blocks, to the softmax of block scores."""
    ratio, place = c.indexer_compress_ratio, rows.asked
    visible = visible_blocks(rows, ratio, place)
    with torch.no_grad():
        group = c.num_attention_heads // c.num_key_value_heads
        rowed = q.gather(1, place[..., None, None].expand(-1, -1, *q.shape[2:])).unflatten(2, (-1, group))
        s = torch.einsum("btkgd,bskd->bkgts", rowed.float(), k.float()) * c.head_dim**-0.5
        blocks = visible.repeat_interleave(ratio, -1)
        s = s.masked_fill(~blocks[:, None, None], -1e9)
        target = s.softmax(-1).mean((1, 2)).unflatten(-1, (-1, ratio)).sum(-1)
    asked = index_q.gather(1, place[..., None, None].expand(-1, -1, *index_q.shape[2:]))
    guess = scored(asked, key).masked_fill(~visible, -1e9).log_softmax(-1)
    loss = (target * (target.clamp_min(1e-9).log() - guess)).sum(-1)
    some = visible.any(-1)
    return (loss * some).sum() / some.sum().clamp_min(1)


def attention(c: ModelConfig, p: Parts, u: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    b, t = u.shape[:2]
    heads, kv, d = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    q, gate = matmul(u, p["self_attn.q_proj.weight"]).unflatten(-1, (heads, 2, d)).unbind(3)
    q = rope(rms(q, p["self_attn.q_norm.weight"], c.rms_norm_eps).flatten(0, 1), rows.cos).view(
        b, t, heads, d
    )
    k = matmul(u, p["self_attn.k_proj.weight"]).unflatten(-1, (kv, d))
    k = rope(rms(k, p["self_attn.k_norm.weight"], c.rms_norm_eps).flatten(0, 1), rows.cos).view(b, t, kv, d)
    v = matmul(u, p["self_attn.v_proj.weight"]).unflatten(-1, (kv, d))
    index_q, key = index_scores(c, p, u.detach(), rows)
    with torch.no_grad():
        mask = seen(c, rows, index_q, key)
    keys, values = (x.repeat_interleave(heads // kv, 2).transpose(1, 2) for x in (k, v))
    y = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=mask).transpose(1, 2)
    y = (y * torch.sigmoid(gate)).flatten(-2)
    return matmul(y, p["self_attn.o_proj.weight"]), index_loss(c, rows, q, k, index_q, key)


def experts(c: ModelConfig, p: Parts, u: Tensor) -> tuple[Tensor, Tensor]:
    """Output, and the loss that keeps the experts equally busy."""
    prob = matmul(u, p["mlp.gate.weight"]).float().softmax(-1)
    best, ids = prob.topk(c.num_experts_per_tok, -1)
    if c.norm_topk_prob:
        best = best / best.sum(-1, keepdim=True)
    weight = torch.zeros_like(prob).scatter(-1, ids, best)
    gate, up = (matmul(u, p[f"mlp.experts.{n}_proj"].flatten(0, 1)) for n in ("gate", "up"))
    h = (F.silu(gate) * up).unflatten(-1, (c.num_experts, -1)) * weight.to(u.dtype)[..., None]
    y = h.flatten(-2) @ p["mlp.experts.down_proj"].to(u.dtype).transpose(1, 2).flatten(0, 1)
    gate, up = (matmul(u, p[f"mlp.shared_expert.{n}_proj.weight"]) for n in ("gate", "up"))
    shared = matmul(F.silu(gate) * up, p["mlp.shared_expert.down_proj.weight"])
    y = y + shared * torch.sigmoid(matmul(u, p["mlp.shared_expert_gate.weight"]))
    busy = (weight > 0).float().flatten(0, -2).mean(0) / c.num_experts_per_tok
    return y, c.num_experts * (busy * prob.flatten(0, -2).mean(0)).sum()


def layer(c: ModelConfig, linear: bool, p: Parts, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Streams, and the losses of indexer and balance."""
    u, inject = read(c, p, "attn_hyper_connection", x)
    if linear:
        y, index = delta_net(c, p, u, rows.position), x.new_zeros((), dtype=torch.float32)
    else:
        y, index = attention(c, p, u, rows)
    x = write(x, y, inject)
    u, inject = read(c, p, "mlp_hyper_connection", x)
    y, balance = experts(c, p, u)
    return write(x, y, inject), index, balance


def ngram_rows(c: ModelConfig, number: int, tokens: Tensor) -> Tensor:
    """Table rows [rows, width, heads] of layer `number`; conversations end in the boundary token."""
    (b, t), before, device = tokens.shape, c.ngram_size - 1, tokens.device
    flat = F.pad(tokens, (before, 0), value=c.eos_token_id).flatten()
    index = torch.arange(t, device=device) + before + (t + before) * torch.arange(b, device=device)[:, None]
    hashed = ngram.row_ids(
        Extended(flat[:, None], index.flatten(), ()), ngram_hash(c, number), c.eos_token_id
    )
    return hashed.view(b, t, -1)


def ngram_layer(c: ModelConfig, p: Parts, x: Tensor, ids: Tensor, rows: Rows) -> Tensor:
    e = F.embedding(ids, p["ple.ple_embedding.ngram_embedding"]).flatten(2).to(x.dtype)
    key, value = matmul(e, p["ple.key_proj.weight"]), matmul(e, p["ple.value_proj.weight"])
    key = rms(key, p["ple.norm_key.weight"], c.rms_norm_eps, c.hc_count).unflatten(-1, (c.hc_count, -1))
    query = rms(x, p["ple.norm_query.weight"], c.rms_norm_eps, c.hc_count).unflatten(-1, (c.hc_count, -1))
    gated = ngram.gate(*(y.flatten(0, 1) for y in (key, query, value))).view(x.shape)
    inputs = rms(gated, p["ple.norm_conv.weight"], c.rms_norm_eps, c.hc_count)
    return x + gated + F.silu(conv(inputs, p["ple.conv1d.weight"], rows.position, c.ngram_size))


class Net:
    """Parameters by part name, and the compiled pieces that use them."""

    def __init__(self, c: ModelConfig, parts: dict[str, Tensor], dtype: torch.dtype, compiled: bool) -> None:
        self.config, self.dtype, self.parts = c, dtype, parts
        compile = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.layer, self.ngram_layer, self.scores = compile(layer), compile(ngram_layer), compile(scores)
        self.join = compile(join)

    def below(self, prefix: str) -> dict[str, Tensor]:
        return {k[len(prefix) :]: v for k, v in self.parts.items() if k.startswith(prefix)}

    def streams(self, tokens: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Streams after the last layer [rows, width, streams * hidden], losses of indexers and balance."""
        c = self.config
        x = F.embedding(tokens, self.parts["embed_tokens.weight"]).to(self.dtype).repeat(1, 1, c.hc_count)
        index = balance = torch.zeros((), device=x.device)
        for i, kind in enumerate(c.layer_types):
            p = self.below(f"layers.{i}.")
            if i in c.ple_layers:
                own = {k: v for k, v in p.items() if k.startswith("ple.")}
                x = self.ngram_layer(c, own, x, ngram_rows(c, i, tokens), rows)
            p = {k: v for k, v in p.items() if not k.startswith("ple.")}
            x, a, b = self.layer(c, kind == "linear_attention", p, x, rows)
            index, balance = index + a, balance + b
        return x, index, balance

    def draft(self, x: Tensor, following: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """The draft head's streams from the trunk's (or its own) x and each place's next token."""
        p = self.below("mtp.")
        own = {k: v for k, v in p.items() if not k.startswith(("layers.", "hyper"))}
        e = F.embedding(following, self.parts["embed_tokens.weight"]).to(self.dtype)
        z = self.join(self.config, own, x, e)
        return self.layer(self.config, False, self.below("mtp.layers.0."), z, rows)

    def losses(self, x: Tensor, targets: Tensor, draft: bool = False) -> tuple[Tensor, Tensor]:
        """Cross-entropy [rows, width] float32 and whether the best token is the target."""
        name = ("mtp." if draft else "") + "hyper_connection_mixer"
        mixer = {k: v for k, v in self.parts.items() if k.startswith(name)}
        return self.scores(self.config, name, mixer, self.parts["lm_head.weight"], x, targets)


def join(c: ModelConfig, p: Parts, x: Tensor, e: Tensor) -> Tensor:
    e = matmul(rms(e, p["pre_fc_norm_embedding.weight"], c.rms_norm_eps), p["fc_embedding.weight"])
    h = rms(x, p["pre_fc_norm_hidden.weight"], c.rms_norm_eps).unflatten(-1, (c.hc_count, -1))
    return (matmul(h, p["fc_hidden.weight"]) + e[..., None, :]).flatten(-2)


def logits(c: ModelConfig, name: str, mixer: Parts, head: Tensor, x: Tensor) -> Tensor:
    return matmul(read(c, mixer, name, x)[0], head)


def scores(
    c: ModelConfig, name: str, mixer: Parts, head: Tensor, x: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    y = logits(c, name, mixer, head, x).float()
    loss = F.cross_entropy(y.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
    return loss, y.argmax(-1) == targets
