"""Writes small GGUF models from `random_model.random_parts`, the way llama.cpp's converter lays them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import quantize
from torch import Tensor

from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.config import ModelConfig

Draft = Literal["inside", "without", "only", "bare"]

_V = GGUFValueType
_BY_PYTHON = {bool: _V.BOOL, int: _V.UINT32, float: _V.FLOAT32, str: _V.STRING}

# ours -> GGUF, for a block; `{}` stands before what the converter puts there
_LAYER = {
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.indexer.q_layernorm.weight": "indexer.q_norm.weight",
    "self_attn.indexer.k_layernorm.weight": "indexer.k_norm.weight",
    "ple.key_proj.weight": "ple_key.weight",
    "ple.value_proj.weight": "ple_value.weight",
    "ple.norm_key.weight": "ple_norm_key.weight",
    "ple.norm_query.weight": "ple_norm_query.weight",
    "ple.norm_conv.weight": "ple_norm_conv.weight",
    "ple.conv1d.weight": "ple_conv1d.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.experts.gate_proj": "ffn_gate_exps.weight",
    "mlp.experts.up_proj": "ffn_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}
_HYPER = {
    "hc_norm.weight": "norm.weight",
    "input_mix_weight_down.weight": "down.weight",
    "input_mix_weight_up.weight": "up.weight",
    "block_inject_weight.weight": "inject.weight",
}
_OTHER = {
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
}


@dataclass(frozen=True)
class Value:
    """A metadata value with its type in the file."""

    type: GGUFValueType
    value: Any
    of: GGUFValueType | None = None  # type of an array's values


def ints(values: list[int], of: GGUFValueType = _V.INT32) -> Value:
    return Value(_V.ARRAY, values, of)


def _tile(c: ModelConfig, part: str, x: np.ndarray) -> np.ndarray:
    """Value heads from the released order (grouped by key head) to GGUF's (tiled over key heads)."""
    nk, nv, dv = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_value_head_dim
    name = part.rpartition("linear_attn.")[2]
    axis = 1 if name == "out_proj.weight" else 0
    if c.value_heads_tiled or name == part or name == "norm.weight":
        return x
    width = dv if name.startswith(("in_proj_qkv", "in_proj_z", "conv1d", "out_proj")) else 1
    head, values = np.split(x, [x.shape[axis] - nv * width], axis)
    s = values.shape
    values = values.reshape(*s[:axis], nk, nv // nk, width, *s[axis + 1 :]).swapaxes(axis, axis + 1)
    return np.concatenate([head, values.reshape(s)], axis)


def _name(c: ModelConfig, part: str) -> str:
    if part in _OTHER:
        name = _OTHER[part]
        return f"blk.{c.num_hidden_layers}.{name}" if name.startswith("nextn.") else name
    owner, _, leaf = part.partition("hyper_connection_mixer.")
    if leaf:
        place = f"blk.{c.num_hidden_layers}.nextn.hc_head_" if owner == "mtp." else "output_hc_"
        return place + _HYPER[leaf]
    draft = part.startswith("mtp.")
    _, number, rest = part.removeprefix("mtp.").split(".", 2)
    block = f"blk.{c.num_hidden_layers if draft else number}."
    for ours, theirs in (("attn_hyper_connection.", "hc_attn_"), ("mlp_hyper_connection.", "hc_ffn_")):
        if rest.startswith(ours):
            return block + theirs + _HYPER[rest.removeprefix(ours)]
    return block + _LAYER[rest]


def gguf_tensors(
    c: ModelConfig, parts: Mapping[str, Tensor], *, per_head: bool = False, fused: bool = False
) -> dict[str, np.ndarray]:
    """GGUF name -> float32 values in torch order.

    `per_head`: the table as one tensor for each hash head; `fused`: gate and up experts in one tensor.
    """
    out: dict[str, np.ndarray] = {}
    index = c.indexer_n_heads * c.indexer_head_dim
    for part, tensor in parts.items():
        x = _tile(c, part, tensor.float().numpy())
        if part.endswith("ngram_embedding"):
            h = ngram_hash(c, c.ple_layers[0])
            heads = [x[o : o + s] for o, s in zip(h.offsets, h.sizes, strict=True)]
            whole = {"per_layer_token_embd.weight": x}
            out |= {f"ple_ngram_embd.{i}.weight": x for i, x in enumerate(heads)} if per_head else whole
        elif part.endswith("index_qk_proj.weight"):
            block = _name(c, part.replace("indexer.index_qk_proj", "q_norm")).removesuffix(
                "attn_q_norm.weight"
            )
            out[f"{block}indexer.q_proj.weight"], out[f"{block}indexer.k_proj.weight"] = x[:index], x[index:]
        elif part in ("mtp.fc_embedding.weight", "mtp.fc_hidden.weight"):
            both = [parts[f"mtp.{k}.weight"].float().numpy() for k in ("fc_embedding", "fc_hidden")]
            out[f"blk.{c.num_hidden_layers}.nextn.eh_proj.weight"] = np.concatenate(both, 1)
        else:
            name = _name(c, part)
            if name.endswith(".ssm_a"):
                x = -torch.from_numpy(x).exp().numpy()
            elif "norm" in name and not name.endswith("ssm_norm.weight"):
                x = 1 + x
            out[name] = x.reshape(-1) if name.endswith("ffn_gate_inp_shexp.weight") else x
    for name in [n for n in out if fused and n.endswith("ffn_gate_exps.weight")]:
        up = out.pop(name.replace("gate", "up"))
        out[name.replace("gate_exps", "gate_up_exps")] = np.concatenate([out.pop(name), up], 1)
    return out


def gguf_metadata(c: ModelConfig, draft: Draft = "inside") -> dict[str, Value]:
    """Metadata as the converter writes it, the tokenizer being bytes and unused ids."""
    extra = int(draft != "without")
    full = [t == "full_attention" for t in c.layer_types] + [True] * extra
    u, f = _V.UINT32, _V.FLOAT32
    a = {
        "block_count": Value(u, c.num_hidden_layers + extra),
        "context_length": Value(u, c.max_position_embeddings),
        "embedding_length": Value(u, c.hidden_size),
        "attention.head_count": Value(u, c.num_attention_heads),
        "attention.head_count_kv": Value(u, c.num_key_value_heads),
        "attention.key_length": Value(u, c.head_dim),
        "attention.value_length": Value(u, c.head_dim),
        "attention.layer_norm_rms_epsilon": Value(f, c.rms_norm_eps),
        "rope.dimension_count": Value(u, c.rotary_dim),
        "rope.freq_base": Value(f, c.rope_theta),
        "expert_count": Value(u, c.num_experts),
        "expert_used_count": Value(u, c.num_experts_per_tok),
        "expert_feed_forward_length": Value(u, c.moe_intermediate_size),
        "expert_shared_feed_forward_length": Value(u, c.shared_expert_intermediate_size),
        "ssm.conv_kernel": Value(u, c.linear_conv_kernel_dim),
        "ssm.state_size": Value(u, c.linear_key_head_dim),
        "ssm.group_count": Value(u, c.linear_num_key_heads),
        "ssm.time_step_rank": Value(u, c.linear_num_value_heads),
        "ssm.inner_size": Value(u, c.linear_num_value_heads * c.linear_value_head_dim),
        "full_attention_interval": Value(u, 4),
        "attention.recurrent_layers": Value(_V.ARRAY, [not x for x in full], _V.BOOL),
        "hyper_connection.count": Value(u, c.hc_count),
        "hyper_connection.low_rank": Value(u, c.hc_lowrank),
        "attention.indexer.head_count": Value(u, c.indexer_n_heads),
        "attention.indexer.key_length": Value(u, c.indexer_head_dim),
        "attention.indexer.top_k": Value(u, c.indexer_budget),
        "attention.compress_ratios": ints([c.indexer_compress_ratio * x for x in full]),
    }
    if extra:
        a["nextn_predict_layers"] = Value(u, 1)
    if draft in ("inside", "without"):
        a |= _ngram_metadata(c)
    return {f"qwen4exp.{k}": v for k, v in a.items()} | _tokenizer(c)


def _ngram_metadata(c: ModelConfig) -> dict[str, Value]:
    h, u = ngram_hash(c, c.ple_layers[0]), _V.UINT32
    return {
        "ple.layers": ints(list(c.ple_layers)),
        "ple.ngram_size": Value(u, c.ngram_size),
        "ple.heads_per_ngram": Value(u, c.heads_per_ngram),
        "ple.conv_kernel": Value(u, c.ple_conv_kernel_size),
        "ple.eos_token_id": Value(u, c.eos_token_id),
        "embedding_length_per_layer_input": Value(u, c.ngram_head_dim),
        "ple.layer_multipliers": ints(list(h.multipliers), _V.UINT64),
        "ple.head_vocab_sizes": ints(list(h.sizes), _V.UINT64),
        "ple.head_offsets": ints(list(h.offsets), _V.UINT64),
    }


def _tokenizer(c: ModelConfig) -> dict[str, Value]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    tokens = [chr(b) if b in printable else chr(next(others)) for b in range(256)]
    tokens += ["!!", *(f"[PAD{i}]" for i in range(257, c.vocab_size))]
    types = [1] * 257 + [5] * (c.vocab_size - 257)
    tokens[c.eos_token_id], types[c.eos_token_id] = "<|endoftext|>", 3
    s = "tokenizer.ggml."
    return {
        f"{s}model": Value(_V.STRING, "gpt2"),
        f"{s}pre": Value(_V.STRING, "qwen35"),
        f"{s}tokens": Value(_V.ARRAY, tokens, _V.STRING),
        f"{s}token_type": ints(types),
        f"{s}merges": Value(_V.ARRAY, ["! !"], _V.STRING),
        f"{s}eos_token_id": Value(_V.UINT32, c.eos_token_id),
        "tokenizer.chat_template": Value(_V.STRING, "{{ messages[0].content }}"),
    }


def _kept_float(name: str, x: np.ndarray) -> bool:
    """Tensors that the converter leaves in F32 whatever the file's type is."""
    marks = ("norm", "ffn_gate_inp", "ssm_conv1d", ".scale", ".input_scale")
    return x.ndim == 1 or any(m in name for m in marks)


def _nvfp4(x: np.ndarray) -> np.ndarray:
    """Blocks of 64 as ggml lays them out: four scales, then bytes of elements j and j + 8 of each 16."""
    rows = x.reshape(-1, 16)
    scale = torch.from_numpy(np.abs(rows).max(1) / 6).to(torch.float8_e4m3fn)
    unit = scale.float().numpy()[:, None]
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    units = np.divide(rows, unit, out=np.zeros_like(rows), where=unit > 0)
    codes = np.abs(np.abs(units)[:, :, None] - levels).argmin(2) | ((units < 0) << 3)
    packed = (codes[:, :8] | (codes[:, 8:] << 4)).astype(np.uint8).reshape(-1, 32)
    blocks = np.concatenate([scale.view(torch.uint8).numpy().reshape(-1, 4), packed], 1)
    return blocks.reshape(*x.shape[:-1], x.shape[-1] // 64 * 36)


def encoded(name: str, x: np.ndarray, kind: str) -> tuple[np.ndarray, GGMLQuantizationType]:
    """In type `kind`, or F16 where a row is not a whole number of its blocks."""
    type = GGMLQuantizationType[kind]
    if _kept_float(name, x):
        type = GGMLQuantizationType.F32
    elif x.shape[-1] % GGML_QUANT_SIZES[type][0]:
        type = GGMLQuantizationType.F16
    x = np.ascontiguousarray(x, dtype=np.float32)
    return _nvfp4(x) if type == GGMLQuantizationType.NVFP4 else quantize(x, type), type


def write_gguf(
    path: Path,
    c: ModelConfig,
    parts: Mapping[str, Tensor],
    *,
    kind: str | Callable[[str], str] = "F32",
    draft: Draft = "inside",
    per_head: bool = False,
    fused: bool = False,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
    split: int = 0,
    empty_first: bool = True,
) -> Path:
    """Write a model to `path` and return the (first) file.

    `kind`: a ggml type, or one for each tensor name. `draft`: the draft head in the file, not there, or in
    a companion file that repeats embedding and output ("only") or borrows them ("bare"). `metadata` and
    `tensors` replace entries; None leaves one out. `split`: tensors per shard, the first shard having none
    (`empty_first`).
    """
    data = gguf_tensors(c, parts, per_head=per_head, fused=fused)
    mine, shared = f"blk.{c.num_hidden_layers}.", ("token_embd.weight", "output.weight")
    if draft == "without":
        data = {n: x for n, x in data.items() if not n.startswith(mine)}
    elif draft in ("only", "bare"):
        data = {n: x for n, x in data.items() if n.startswith(mine) or (draft == "only" and n in shared)}
    data |= tensors or {}  # type: ignore[arg-type]
    values = gguf_metadata(c, draft)
    for key, value in (metadata or {}).items():
        if value is None:
            values.pop(key)
        else:
            values[key] = value if isinstance(value, Value) else Value(_BY_PYTHON[type(value)], value)
    architecture = values.pop("general.architecture", Value(_V.STRING, "qwen4exp")).value
    writer = GGUFWriter(
        path, architecture, split_max_tensors=split, small_first_shard=bool(split and empty_first)
    )
    for key, v in values.items():
        writer.add_key_value(key, v.value, v.type, v.of)
    for name, x in data.items():
        if x is not None:
            stored, type_ = encoded(name, x, kind if isinstance(kind, str) else kind(name))
            writer.add_tensor(name, stored, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if not split else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))
