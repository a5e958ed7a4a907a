"""From the tensor names of safetensors checkpoints to the parts of the model (spec section 8).

Known spellings: the prefixes `model.language_model.` and `model.`, fused and per-expert experts, the
n-gram table as numbered shards or as one tensor, `mtp.*`, quantised weights with their scales.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter

from nextfit.checkpoint.names import Kind, draft_slots, trunk_slots
from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.checkpoint.quantization import ACTIVATION_SCALES, LEAVES, Layout, detect
from nextfit.checkpoint.source import Ignored, PerExpert, Piece, Source, TensorMap
from nextfit.config import ModelConfig
from nextfit.errors import CheckpointError

_PREFIXES = ("model.language_model.", "model.")
_VISION = "model.visual."
_EXPERT = re.compile(r"(.+\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)")
_FUSED = re.compile(r"(.+\.mlp\.experts)\.(gate_up_proj|gate_proj|up_proj|down_proj)(_scale_inv)?")
_TABLE = re.compile(r"(.+\.ple_embedding\.ngram_embedding)(?:\.shard_(\d+))?")
_CONSTANT = re.compile(
    r"layers\.(\d+)\.ple\.ple_embedding\.(layer_multipliers|ngram_heads_offsets|ngram_heads_vocab_sizes)"
)


def _strip(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _split(name: str) -> tuple[str, str]:
    """Weight and leaf of a stripped tensor name."""
    fused = _FUSED.fullmatch(name)
    if fused:
        return (name.removesuffix("_scale_inv"), "weight_scale_inv") if fused[3] else (name, "weight")
    base, _, leaf = name.rpartition(".")
    return (base, leaf) if leaf in LEAVES and base else (name, "")


def _constants(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    h = ngram_hash(config, layer)
    return {
        "layer_multipliers": h.multipliers,
        "ngram_heads_offsets": h.offsets,
        "ngram_heads_vocab_sizes": h.sizes,
    }


@dataclass(frozen=True, slots=True)
class _Reader:
    config: ModelConfig
    parts: Mapping[str, Kind]  # every part the model may have
    map: TensorMap

    def constant(self, source: Source, layer: int, name: str) -> None:
        """Compare a hash constant (int64) with its derivation; the derived one is used."""
        if layer not in self.config.ple_layers:
            self.map.unknown.append(source)
            return
        wanted = _constants(self.config, layer)[name]
        if source.format != "i64" or source.shape != (len(wanted),):
            self.map.problems.append(
                f"{source.file}: {source.name} is {source.format.upper()} {list(source.shape)}, "
                f"expected I64 [{len(wanted)}]"
            )
            return
        with source.file.open("rb") as f:
            f.seek(source.offset)
            found = struct.unpack(f"<{len(wanted)}q", f.read(source.nbytes))
        if found != wanted:
            self.map.problems.append(
                f"{source.file}: {source.name} is {list(found)}, but the configuration gives {list(wanted)}; "
                "the n-gram table was made for another seed, vocabulary or table size"
            )
            return
        self.map.ignored.append(Ignored(source, "hash constant, equal to its derivation"))

    def pieces(self, base: str, layout: Layout) -> list[Piece] | None:
        """The pieces that the weight `base` fills, None if the model has no such weight."""
        fmt, sources = layout.format, layout.sources
        if isinstance(sources["data"], PerExpert):
            return [Piece(base.replace(".*.", "."), fmt, sources)]
        if table := _TABLE.fullmatch(base):
            if table[1] not in self.parts:
                return None
            return [Piece(table[1], fmt, sources, shard=int(table[2]) if table[2] else None)]
        if one := _EXPERT.fullmatch(base):
            part = f"{one[1]}.{one[3]}"
            return [Piece(part, fmt, sources, expert=int(one[2]))] if part in self.parts else None
        fused = _FUSED.fullmatch(base)
        if fused and fused[2] == "gate_up_proj":
            if f"{fused[1]}.gate_proj" not in self.parts:
                return None
            f = self.config.moe_intermediate_size
            return [
                Piece(f"{fused[1]}.gate_proj", fmt, sources, source_rows=(0, f)),
                Piece(f"{fused[1]}.up_proj", fmt, sources, source_rows=(f, 2 * f)),
            ]
        bare = sources["data"].name.endswith(base)
        part = base if bare else f"{base}.weight"
        return [Piece(part, fmt, sources)] if part in self.parts else None

    def weight(self, base: str, group: Mapping[str, Source | PerExpert]) -> None:
        """One weight with its scales."""
        unused = [leaf for leaf in ACTIVATION_SCALES if leaf in group and len(group) > 1]
        reason = "scale of activations; weights are used alone"
        self.map.ignored.extend(Ignored(group[leaf], reason) for leaf in unused)
        group = {leaf: source for leaf, source in group.items() if leaf not in unused}
        try:
            layout = detect(base, group)
        except CheckpointError as error:
            self.map.problems.append(str(error))
            return
        pieces = self.pieces(base, layout)
        if pieces is None:
            self.map.unknown.extend(group.values())
        else:
            self.map.pieces.extend(pieces)

    def table(self, base: str, group: dict[str, Source], shards: dict[str, dict[str, Source]]) -> None:
        """An n-gram table: shards of one weight, with one scale for all of them if they are FP8."""
        scale = group.pop("weight_scale", None) if shards else None
        if group:
            self.weight(base, group)
        for name, shard in shards.items():
            self.weight(name, shard | ({"weight_scale": scale} if scale else {}))


def _per_expert(tensors: dict[str, Source], name: str, count: int) -> PerExpert | None:
    """Take `name`, with * for the expert, out of `tensors` if all of `count` experts have it and all alike."""
    before, after = name.split("*")
    names = [f"{before}{e}{after}" for e in range(count)]
    members = tuple(filter(None, map(tensors.pop, names, repeat(None))))
    if len(members) == count and len(set(map(attrgetter("format", "shape"), members))) == 1:
        return PerExpert(name, members)
    tensors.update((s.name, s) for s in members)
    return None


def _expert_groups(
    parts: Mapping[str, Kind], count: int, tensors: dict[str, Source]
) -> dict[str, dict[str, PerExpert]]:
    """Weights that are there once for each expert, by name with * for the expert: taken out of `tensors`.

    A weight stays there, one by one, if its experts are not all alike or if there are more or fewer of them.
    """
    groups: dict[str, dict[str, PerExpert]] = {}
    for part in (p for p, kind in parts.items() if kind is Kind.EXPERTS):
        experts, _, projection = part.rpartition(".")
        for prefix in (*_PREFIXES, ""):
            leaves = [x for x in LEAVES if f"{prefix}{experts}.0.{projection}.{x}" in tensors]
            if leaves:
                base = f"{experts}.*.{projection}"
                found = {x: _per_expert(tensors, f"{prefix}{base}.{x}", count) for x in leaves}
                groups[base] = {leaf: stack for leaf, stack in found.items() if stack}
                break
    for name in list(tensors):
        if one := _EXPERT.match(_strip(name)):
            for odd in groups.pop(f"{one[1]}.*.{one[3]}", {}).values():
                tensors.update((s.name, s) for s in odd.members)
    return groups


def _groups(reader: _Reader, sources: Iterable[Source]) -> dict[str, dict[str, Source]]:
    """Weights by their stripped name; tensors that are none are dealt with at once."""
    groups: dict[str, dict[str, Source]] = {}
    for source in sources:
        if source.name.startswith(_VISION):
            reader.map.ignored.append(Ignored(source, "vision tower"))
            continue
        name = _strip(source.name)
        if constant := _CONSTANT.fullmatch(name):
            reader.constant(source, int(constant[1]), constant[2])
            continue
        base, leaf = _split(name)
        group = groups.setdefault(base, {})
        leaf = leaf or "weight"
        if leaf in group:
            reader.map.problems.append(
                f"{source.file}: {source.name} and {group[leaf].name} are the same tensor of the model"
            )
            continue
        group[leaf] = source
    return groups


def map_tensors(config: ModelConfig, tensors: Mapping[str, Source]) -> TensorMap:
    """Find the place of every tensor of a safetensors checkpoint."""
    parts = {p.name: s.kind for s in (*trunk_slots(config), *draft_slots(config)) for p in s.parts}
    reader = _Reader(config, parts, TensorMap())
    rest = dict(tensors)
    experts = _expert_groups(parts, config.num_experts, rest)
    groups = _groups(reader, rest.values())
    tables: dict[str, dict[str, dict[str, Source]]] = {}
    for base in groups:
        if table := _TABLE.fullmatch(base):
            tables.setdefault(table[1], {})
            if table[2]:
                tables[table[1]][base] = groups[base]
    for base, group in groups.items():
        if not _TABLE.fullmatch(base):
            reader.weight(base, group)
    for base, stack in experts.items():
        reader.weight(base, stack)
    for base, shards in tables.items():
        reader.table(base, groups.get(base, {}), shards)
    return reader.map
