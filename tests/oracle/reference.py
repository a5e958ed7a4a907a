"""The model in transformers' own classes, float32, with NextFit's rule for equal block scores.

transformers takes `torch.topk`'s unspecified choice among equal scores; here the lower block wins.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import transformers.models.qwen4_exp.modeling_qwen4_exp as hf
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.models.qwen4_exp import Qwen4ExpTextConfig

from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.config import ModelConfig


@contextmanager
def lower_block_first() -> Iterator[None]:
    plain = torch.Tensor.topk

    def topk(self: Tensor, k: int, dim: int = -1, **kwargs: bool) -> object:
        if self.ndim != 1:  # only the indexer's block scores are one-dimensional
            return plain(self, k, dim=dim, **kwargs)
        values, index = torch.sort(self, dim=0, descending=True, stable=True)
        return torch.return_types.topk((values[:k], index[:k]))

    torch.Tensor.topk = topk  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.Tensor.topk = plain  # type: ignore[method-assign]


def hf_config(c: ModelConfig) -> Qwen4ExpTextConfig:
    third = c.rotary_dim // 2 // 3
    return Qwen4ExpTextConfig(
        hidden_size=c.hidden_size,
        num_hidden_layers=c.num_hidden_layers,
        vocab_size=c.vocab_size,
        max_position_embeddings=c.max_position_embeddings,
        layer_types=[t.replace("full", "indexed") for t in c.layer_types],
        rms_norm_eps=c.rms_norm_eps,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": c.rope_theta,
            "partial_rotary_factor": c.rotary_dim / c.head_dim,
            "mrope_interleaved": True,
            "mrope_section": [c.rotary_dim // 2 - 2 * third, third, third],
        },
        indexer_n_heads=c.indexer_n_heads,
        indexer_kv_heads=1,
        indexer_head_dim=c.indexer_head_dim,
        indexer_budget=c.indexer_budget,
        indexer_compress_ratio=c.indexer_compress_ratio,
        linear_num_key_heads=c.linear_num_key_heads,
        linear_num_value_heads=c.linear_num_value_heads,
        linear_key_head_dim=c.linear_key_head_dim,
        linear_value_head_dim=c.linear_value_head_dim,
        linear_conv_kernel_dim=c.linear_conv_kernel_dim,
        output_gate_type=c.output_gate_type,
        num_experts=c.num_experts,
        num_experts_per_tok=c.num_experts_per_tok,
        moe_intermediate_size=c.moe_intermediate_size,
        shared_expert_intermediate_size=c.shared_expert_intermediate_size,
        norm_topk_prob=c.norm_topk_prob,
        hc_count=c.hc_count,
        hc_lowrank=c.hc_lowrank,
        ple_layer_ids=[i + 1 for i in c.ple_layers],
        ple_embed_dim=c.ple_embed_dim,
        ple_conv_kernel_size=c.ple_conv_kernel_size,
        ngram_size=c.ngram_size,
        heads_per_ngram=c.heads_per_ngram,
        ngram_vocab_size_base=c.ngram_vocab_size_base,
        make_ngram_vocab_size_divisible_by=c.make_ngram_vocab_size_divisible_by,
        split_ngram_parts=c.split_ngram_parts,
        seed=c.seed,
        eos_token_id=c.eos_token_id,
        bos_token_id=c.eos_token_id,
        pad_token_id=c.eos_token_id,
        tie_word_embeddings=c.tie_word_embeddings,
        hidden_act="silu",
    )


def hf_state_dict(c: ModelConfig, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parts (tests.support.random_model) under transformers' module names, trunk and `mtp.*`."""
    out = {}
    for name, x in parts.items():
        key = name if name.startswith(("mtp.", "lm_head")) else f"model.{name}"
        if key.endswith(".experts.gate_proj"):
            up = parts[name.replace("gate_proj", "up_proj")]
            out[key.replace("gate_proj", "gate_up_proj")] = torch.cat([x, up], 1)
        elif not key.endswith(".experts.up_proj"):
            out[key + ".weight" * key.endswith("ngram_embedding")] = x[:, None] if "conv1d" in key else x
    for i in c.ple_layers:
        h, p = ngram_hash(c, i), f"model.layers.{i}.ple.ple_embedding."
        out[p + "layer_multipliers"] = torch.tensor(h.multipliers)
        out[p + "ngram_heads_offsets"] = torch.tensor(h.offsets)
        out[p + "ngram_heads_vocab_sizes"] = torch.tensor(h.sizes)
    return out


class Reference:
    """Trunk logits and draft-head logits by transformers' blocks."""

    def __init__(self, c: ModelConfig, parts: dict[str, Tensor]) -> None:
        state = hf_state_dict(c, parts)
        config = hf_config(c)
        config._attn_implementation = "eager"
        self.model = hf.Qwen4ExpForCausalLM(config).eval()
        trunk = {k: v for k, v in state.items() if not k.startswith("mtp.")}
        if c.tie_word_embeddings:
            trunk["lm_head.weight"] = trunk["model.embed_tokens.weight"]
        missing, unexpected = self.model.load_state_dict(trunk, strict=False)
        assert not unexpected and not missing, (missing, unexpected)
        self.mtp = {k[4:]: v for k, v in state.items() if k.startswith("mtp.")}
        self.streams = torch.empty(0)
        self.model.model.hyper_connection_mixer.register_forward_pre_hook(self._keep)

    def _keep(self, _module: object, args: tuple[Tensor, ...]) -> None:
        self.streams = args[0][0].clone()

    def logits(self, ids: list[int]) -> Tensor:
        """[tokens, vocabulary]; leaves the residual streams of the run in `streams`."""
        with torch.no_grad(), lower_block_first():
            return self.model(torch.tensor([ids])).logits[0]

    def draft(self, ids: list[int], steps: int) -> tuple[Tensor, Tensor]:
        """Draft logits [tokens - 1, vocabulary], then `steps` recursive ones on their own argmax."""
        self.logits(ids)
        with torch.no_grad(), lower_block_first():
            return self._draft(torch.tensor(ids), self.streams, steps)

    def _draft(self, ids: Tensor, streams: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        c = copy.deepcopy(self.model.config)
        c.num_hidden_layers, c.layer_types, c.ple_layer_ids = 1, ["indexed_attention"], []
        c._attn_implementation = "eager"
        eps, d = c.rms_norm_eps, c.hidden_size
        layer, mixer = (
            hf.Qwen4ExpTextDecoderLayer(c, 0).eval(),
            hf.Qwen4ExpTextGatedResidual(c, use_combine=False),
        )
        embed_norm = hf.Qwen4ExpTextRMSNorm(d, eps=eps)
        hidden_norm = hf.Qwen4ExpTextRMSNorm(d * c.hc_count, eps=eps)
        for module, prefix in ((layer, "layers.0."), (mixer, "hyper_connection_mixer.")):
            own = {k[len(prefix) :]: v for k, v in self.mtp.items() if k.startswith(prefix)}
            module.load_state_dict(own, strict=True)
        embed_norm.weight.data.copy_(self.mtp["pre_fc_norm_embedding.weight"])
        hidden_norm.weight.data.copy_(self.mtp["pre_fc_norm_hidden.weight"])
        cache = DynamicCache(config=c)

        def run(tokens: Tensor, x: Tensor, first: int) -> tuple[Tensor, Tensor]:
            e = embed_norm(self.model.model.embed_tokens(tokens[None])) @ self.mtp["fc_embedding.weight"].T
            n = hidden_norm(x[None]).unflatten(-1, (c.hc_count, d))
            z = (n @ self.mtp["fc_hidden.weight"].T + e[:, :, None]).flatten(2)
            total = first + len(tokens)  # the indexer wants the angles of the whole history
            rotation = self.model.model.rotary_emb(z, torch.arange(total).expand(3, 1, -1))
            mask = torch.full((len(tokens), total), -torch.inf).triu(1 + first)[None, None]
            z = layer(z, rotation, attention_mask=mask, cache=cache)
            return self.model.lm_head(mixer(z))[0], z[0]

        rows, z = run(ids[1:], streams[:-1], 0)
        out, last, token = [], z[-1:], rows[-1:].argmax(-1)
        for i in range(steps):
            logits, last = run(token, last, len(ids) - 1 + i)
            out.append(logits[0])
            token = logits.argmax(-1)
        return rows, torch.stack(out) if out else rows[:0]
