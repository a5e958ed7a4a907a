"""From GGUF tensor names to the parts of the model (spec/gguf.md section 2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from nextfit.checkpoint.formats import FORMATS
from nextfit.checkpoint.names import Kind, draft_slots, trunk_slots
from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.checkpoint.source import Ignored, Piece, Source, TensorMap
from nextfit.config import ModelConfig

_HYPER = {
    "norm": "hc_norm.weight",
    "down": "input_mix_weight_down.weight",
    "up": "input_mix_weight_up.weight",
    "inject": "block_inject_weight.weight",
}
# a tensor of a block -> the part of the layer that it fills
_LAYER = {
    **{f"hc_attn_{k}.weight": f"attn_hyper_connection.{v}" for k, v in _HYPER.items()},
    **{f"hc_ffn_{k}.weight": f"mlp_hyper_connection.{v}" for k, v in _HYPER.items()},
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "indexer.q_norm.weight": "self_attn.indexer.q_layernorm.weight",
    "indexer.k_norm.weight": "self_attn.indexer.k_layernorm.weight",
    "ple_key.weight": "ple.key_proj.weight",
    "ple_value.weight": "ple.value_proj.weight",
    "ple_norm_key.weight": "ple.norm_key.weight",
    "ple_norm_query.weight": "ple.norm_query.weight",
    "ple_norm_conv.weight": "ple.norm_conv.weight",
    "ple_conv1d.weight": "ple.conv1d.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
    "ffn_gate_exps.weight": "mlp.experts.gate_proj",
    "ffn_up_exps.weight": "mlp.experts.up_proj",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
}
_DRAFT = {
    "nextn.enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "nextn.hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    **{
        f"nextn.hc_head_{k}.weight": f"mtp.hyper_connection_mixer.{_HYPER[k]}" for k in ("norm", "down", "up")
    },
}
_TRUNK = {
    "token_embd.weight": "embed_tokens.weight",
    "output.weight": "lm_head.weight",
    **{f"output_hc_{k}.weight": f"hyper_connection_mixer.{_HYPER[k]}" for k in ("norm", "down", "up")},
}
_BLOCK = re.compile(r"blk\.(0|[1-9]\d*)\.(.+)")
_TABLE_HEAD = re.compile(r"ple_ngram_embd\.(0|[1-9]\d*)\.weight")
_FACTOR = re.compile(r"(.+)\.(scale|input_scale)")
# a GGUF norm holds 1 + w and ssm_a -exp(A_log); the delta net's norm is a vector with no 1 to add
_APPLIED = (Kind.GAIN, Kind.DECAY)


class _Mapper:
    def __init__(self, config: ModelConfig, factors: dict[str, Source]) -> None:
        self.config = config
        self.factors = factors  # NVFP4: the one scale of a tensor or of each expert, by the weight's name
        self.map = TensorMap()
        slots = (*trunk_slots(config), *draft_slots(config))
        self.parts = {p.name: s.kind for s in slots for p in s.parts}

    def _check_shape(self, source: Source, expected: tuple[int, ...]) -> None:
        """For a tensor that fills more than one part, or not one by itself."""
        if source.shape != expected:
            found = f"{source.name} is {list(source.shape)}, expected {list(expected)}"
            self.map.problems.append(f"{source.file}: {found}")

    def add(self, source: Source, part: str, **region: tuple[int, int] | int) -> None:
        if part not in self.parts:
            self.map.unknown.append(source)
            return
        sources = {"data": source}
        if factor := self.factors.get(source.name):
            sources["scale"] = factor
        applied = self.parts[part] in _APPLIED
        self.map.pieces.append(Piece(part, source.format, sources, applied=applied, **region))  # type: ignore[arg-type]

    def trunk(self, source: Source) -> None:
        """A tensor outside the blocks."""
        layer = self.config.ple_layers[0]
        table = f"layers.{layer}.ple.ple_embedding.ngram_embedding"
        if source.name == "per_layer_token_embd.weight":
            self.add(source, table)
        elif head := _TABLE_HEAD.fullmatch(source.name):
            self._table_head(source, table, int(head[1]))
        elif source.name in _TRUNK:
            self.add(source, _TRUNK[source.name])
        else:
            self.map.unknown.append(source)

    def _table_head(self, source: Source, table: str, head: int) -> None:
        h = ngram_hash(self.config, self.config.ple_layers[0])
        if head >= len(h.sizes):
            self.map.unknown.append(source)
            return
        start, size = h.offsets[head], h.sizes[head]
        self._check_shape(source, (size, self.config.ngram_head_dim))
        self.add(source, table, shard=head, rows=(start, start + size))

    def block(self, source: Source, prefix: str, name: str) -> None:
        """Tensor `name` of the block whose parts begin with `prefix`."""
        c = self.config
        queries = c.indexer_n_heads * c.indexer_head_dim
        if name == "indexer.q_proj.weight":
            self.add(source, f"{prefix}self_attn.indexer.index_qk_proj.weight", rows=(0, queries))
        elif name == "indexer.k_proj.weight":
            rows = (queries, queries + c.indexer_head_dim)
            self.add(source, f"{prefix}self_attn.indexer.index_qk_proj.weight", rows=rows)
        elif name == "ffn_gate_up_exps.weight":
            self._gate_up(source, f"{prefix}mlp.experts")
        elif name == "nextn.eh_proj.weight" and prefix.startswith("mtp."):
            self._combiner(source)
        elif name in _DRAFT and prefix.startswith("mtp."):
            self.add(source, _DRAFT[name])
        elif name in _LAYER:
            self.add(source, prefix + _LAYER[name])
        else:
            self.map.unknown.append(source)

    def _gate_up(self, source: Source, experts: str) -> None:
        f = self.config.moe_intermediate_size
        self._check_shape(source, (self.config.num_experts, 2 * f, self.config.hidden_size))
        self.add(source, f"{experts}.gate_proj", source_rows=(0, f))
        self.add(source, f"{experts}.up_proj", source_rows=(f, 2 * f))

    def _combiner(self, source: Source) -> None:
        """The draft head's two input matrices, side by side: embedding first, then the trunk's streams."""
        d = self.config.hidden_size
        self._check_shape(source, (d, 2 * d))
        self.add(source, "mtp.fc_embedding.weight", columns=(0, d))
        self.add(source, "mtp.fc_hidden.weight", columns=(d, 2 * d))


def _factors(sources: Iterable[Source], out: TensorMap) -> tuple[list[Source], dict[str, Source]]:
    """The weights, and the factor that belongs to each of some; factors of activations are not used."""
    by_name = {s.name: s for s in sources}
    weights, factors = [], {}
    for source in by_name.values():
        kind = _FACTOR.fullmatch(source.name)
        weight = by_name.get(f"{kind[1]}.weight") if kind else None
        if kind is None:
            weights.append(source)
        elif weight is None:
            out.unknown.append(source)
        elif kind[2] == "input_scale":
            out.ignored.append(Ignored(source, "scale of activations; weights are used alone"))
        elif "scale" not in FORMATS[weight.format].scales:
            kind_of = weight.format.upper()
            out.problems.append(f"{source.file}: {source.name} belongs to a {kind_of} tensor, expected NVFP4")
        elif source.format != "f32" or source.shape not in ((1,), weight.shape[:-2]):
            found = f"{source.format.upper()} {list(source.shape)}"
            experts = f" or F32 {list(weight.shape[:-2])}" if len(weight.shape) == 3 else ""
            out.problems.append(f"{source.file}: {source.name} is {found}, expected F32 [1]{experts}")
        else:
            factors[weight.name] = source
    return weights, factors


def _as_released(source: Source) -> Source:
    """The shared expert's gate as one row of a matrix, whichever way the file declares it."""
    if source.name.endswith(".ffn_gate_inp_shexp.weight") and len(source.shape) == 1:
        shape = (1, *source.shape)
        return Source(source.name, source.format, shape, source.file, source.offset, source.nbytes)
    return source


def map_gguf(
    config: ModelConfig, model: Sequence[Source], draft: Sequence[Source] | None = None
) -> TensorMap:
    """Find the place of every tensor of a GGUF model and, if given, of the file with its draft head.

    With a draft file the model's own draft block is left out, and so are the embedding and the output
    matrix that the draft file may repeat.
    """
    found = TensorMap()
    mine, factors = _factors(model, found)
    theirs, more = _factors(draft or (), found)
    mapper = _Mapper(config, factors)
    for source in mine:
        block = _BLOCK.fullmatch(source.name)
        if block is None:
            mapper.trunk(source)
        elif int(block[1]) < config.num_hidden_layers:
            mapper.block(_as_released(source), f"layers.{int(block[1])}.", block[2])
        elif int(block[1]) > config.num_hidden_layers:
            mapper.map.unknown.append(source)
        elif draft is not None:
            mapper.map.ignored.append(Ignored(source, "the draft head comes from a file of its own"))
        else:
            mapper.block(_as_released(source), "mtp.layers.0.", block[2])
    mapper.factors = more
    for source in theirs:
        block = _BLOCK.fullmatch(source.name)
        if block and int(block[1]) == config.num_hidden_layers:
            mapper.block(_as_released(source), "mtp.layers.0.", block[2])
        elif source.name in ("token_embd.weight", "output.weight"):
            mapper.map.ignored.append(Ignored(source, "the draft head shares the model's"))
        else:
            mapper.map.unknown.append(source)
    for name in ("ignored", "unknown", "problems"):
        getattr(mapper.map, name).extend(getattr(found, name))
    return mapper.map
