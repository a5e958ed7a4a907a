"""Bytes of the model's weights as they become resident: by component, whole or as one rank's share. No torch.

A rank holds its heads, its slice of the experts' inner width and its part of the vocabulary; the rest
(hyper-connections, router, n-gram projections, norms) is needed whole by every rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Literal

from nextfit.checkpoint import Checkpoint, open_checkpoint
from nextfit.checkpoint.formats import FORMATS, row_bytes
from nextfit.checkpoint.names import Kind, Part, Slot, draft_slots, trunk_slots
from nextfit.checkpoint.regions import region, targets
from nextfit.checkpoint.safetensors import read_json
from nextfit.checkpoint.source import Piece
from nextfit.config import ModelConfig
from nextfit.errors import ConfigError

# the first mark that occurs in a part's name says which component it is of (rows of the table in spec section 1)
COMPONENTS = (
    ("embed_tokens", "embedding"),
    ("lm_head", "output head"),
    (".ngram_embedding", "n-gram table"),
    (".ple.", "n-gram layer"),
    (".linear_attn.", "delta net"),
    (".indexer.", "indexer"),
    (".self_attn.", "sparse attention"),
    (".mlp.experts.", "routed experts"),
    (".shared_expert", "shared expert"),
    (".mlp.gate.", "router"),
    ("_hyper_connection.", "hyper-connections"),
    ("hyper_connection_mixer", "final mixer"),
)
DRAFT, DRAFT_EXPERTS = "draft head", "draft experts"
_SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_SIZES |= {"float8_e4m3fn": 1, "float8_e5m2": 1, "uint8": 1}
# what llama.cpp's quantiser takes where a row is no whole number of blocks, then f16
_SUBSTITUTES = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
_TABLE_FORMATS = {"fp8_block": "fp8_tensor", "nvfp4": "bf16", "nvfp4_gguf": "bf16"}
# how tensor parallelism splits a part; anything else is whole on every rank
_BY_ROWS = (
    "q_proj.",
    "in_proj_",
    "conv1d.",
    "A_log",
    "dt_bias",
    "gate_proj",
    "up_proj",
    "embed_tokens",
    "lm_head",
)
_BY_COLUMNS = ("o_proj.", "out_proj.", "down_proj")
_BY_KV_HEADS = ("k_proj.", "v_proj.")
Split = Literal["rows", "columns", "kv heads", "whole"]


def component(part: str) -> str:
    """The component that a part belongs to."""
    if part.startswith("mtp."):
        return DRAFT_EXPERTS if ".mlp.experts." in part else DRAFT
    return next(name for mark, name in COMPONENTS if mark in part)


def _split(part: str) -> Split:
    if ".ple." in part or ".indexer." in part:
        return "whole"
    if any(mark in part for mark in _BY_KV_HEADS):
        return "kv heads"
    if any(mark in part for mark in _BY_ROWS):
        return "rows"
    return "columns" if any(mark in part for mark in _BY_COLUMNS) else "whole"


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one format: a part, or as many rows of it as are of one kind."""

    format: str
    rows: int
    factors: bool = False  # with the optional scales of the format

    def bytes(self, columns: int) -> int:
        f = FORMATS[self.format]
        each = row_bytes(self.format, columns)
        for scale in f.scales.values():
            if self.factors or not scale.optional:
                each += (-(-columns // scale.columns_each) if scale.columns_each else 1) * _SIZES[scale.dtype]
        return self.rows * each


@dataclass(frozen=True, slots=True)
class PartSize:
    """One part of a resident weight: all of its experts together where it has experts."""

    name: str
    slot: str  # the weight it is a part of
    kind: Kind
    experts: int  # 1 for anything but experts
    rows: int  # of each expert
    columns: int
    runs: tuple[Run, ...]  # rows of all experts

    @property
    def params(self) -> int:
        return self.experts * self.rows * self.columns

    def share(self, ranks: int, kv_heads: int) -> int:
        """Bytes of the largest share of `ranks` equal ones."""
        split = _split(self.name) if ranks > 1 else "whole"
        if split == "columns":
            unit = max(FORMATS[r.format].block for r in self.runs)
            columns = -(-(self.columns // unit) // ranks) * unit
            return sum(r.bytes(columns) for r in self.runs)
        whole = sum(r.bytes(self.columns) for r in self.runs)
        if split == "whole":
            return whole
        parts = min(ranks, kv_heads) if split == "kv heads" else ranks
        return -(-whole * -(-self.rows // parts) // self.rows)


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of one rank's weights; with one rank, of all of them."""

    resident: Mapping[str, int]  # component -> bytes, without routed and draft experts and the table
    experts: tuple[int, ...]  # bytes of one expert, for each trunk layer
    draft_experts: tuple[int, ...]  # the same for the draft head's layers
    per_layer: int  # experts of a layer
    table: int  # n-gram tables, which stay in their files
    table_row: int  # bytes of one row
    params: Mapping[str, int]  # component -> numbers
    decoded: int  # numbers of the largest packed matrix, which products of the reference route decode

    @property
    def expert_bytes(self) -> int:
        """All routed experts of the trunk."""
        return self.per_layer * sum(self.experts)


class Weights:
    """Sizes of every part of a model, from a checkpoint's headers or from a format's name."""

    def __init__(self, config: ModelConfig, parts: Iterable[PartSize], source: str) -> None:
        self.config, self.parts, self.source = config, tuple(parts), source
        self._known: dict[tuple[int, bool], WeightSizes] = {}

    def sizes(self, ranks: int = 1, draft: bool = True) -> WeightSizes:
        """The share of one of `ranks`; `draft=False` leaves the draft head out."""
        key = (ranks, draft)
        if key not in self._known:
            self._known[key] = self._sizes(ranks, draft)
        return self._known[key]

    def _sizes(self, ranks: int, draft: bool) -> WeightSizes:
        c = self.config
        resident: Counter[str] = Counter()
        params: Counter[str] = Counter()
        experts: dict[str, Counter[str]] = {"routed experts": Counter(), DRAFT_EXPERTS: Counter()}
        matrices: Counter[str] = (
            Counter()
        )  # numbers of each packed weight; of one expert where it has experts
        table = table_row = 0
        for p in self.parts:
            name = component(p.name)
            if not draft and p.name.startswith("mtp."):
                continue
            params[name] += p.params
            size = p.share(ranks, c.num_key_value_heads)
            if p.kind is Kind.TABLE:
                table += size
                table_row = max(table_row, size // p.rows)
            elif p.kind is Kind.EXPERTS:
                experts[name][p.name.split(".mlp.")[0]] += size // p.experts
            else:
                resident[name] += size
            packed = any(FORMATS[r.format].kind != "float" for r in p.runs)
            if p.kind in (Kind.MATRIX, Kind.EXPERTS) and packed:
                matrices[p.slot] += p.rows * p.columns
        return WeightSizes(
            dict(resident),
            tuple(experts["routed experts"].values()),
            tuple(experts[DRAFT_EXPERTS].values()),
            c.num_experts,
            table,
            table_row,
            dict(params),
            max(matrices.values(), default=0),
        )


def _slots(c: ModelConfig) -> list[Slot]:
    return [*trunk_slots(c), *(draft_slots(c) if c.mtp_num_hidden_layers else ())]


def _part(slot: Slot, part: Part, runs: tuple[Run, ...]) -> PartSize:
    experts = slot.shape[0] if slot.kind is Kind.EXPERTS else 1
    columns = slot.shape[-1] if len(slot.shape) > 1 else 1
    return PartSize(part.name, slot.name, slot.kind, experts, part.rows, columns, runs)


def _vector_format(formats: Iterable[str]) -> str:
    """Norms, taps and decays are resident as float32, as float64 where a file has that."""
    return "f64" if "f64" in formats else "f32"


def from_checkpoint(checkpoint: Checkpoint) -> Weights:
    """What `load_weights` makes of this checkpoint. Raises CheckpointError if it cannot be loaded."""
    checkpoint.require()
    parts = targets(checkpoint.slots())
    by_slot: dict[str, list[Piece]] = defaultdict(list)
    for piece in checkpoint.tensors.pieces:
        by_slot[parts[piece.part].slot.name].append(piece)
    out = []
    for slot in checkpoint.slots():
        runs = _runs(slot, by_slot[slot.name])
        out += [_part(slot, part, tuple(runs[part.name])) for part in slot.parts]
    return Weights(checkpoint.config, out, f"the headers of {checkpoint.path}")


def _runs(slot: Slot, pieces: list[Piece]) -> dict[str, list[Run]]:
    """Rows by part. Optional scales belong to a whole run of neighbouring rows of one format, as in the loader."""
    at = targets([slot])
    out: dict[str, list[Run]] = defaultdict(list)
    if slot.kind not in (Kind.MATRIX, Kind.EXPERTS):
        format = _vector_format({p.format for p in pieces})
        for piece in pieces if slot.kind is Kind.TABLE else []:
            out[piece.part].append(Run(piece.format, region(piece, at[piece.part]).logical[0]))
        for part in slot.parts if slot.kind is not Kind.TABLE else ():
            out[part.name].append(Run(format, part.rows))
        return out

    def start(p: Piece) -> int:
        return at[p.part].start + (p.rows[0] if p.rows else 0)

    for format, run in groupby(sorted(pieces, key=lambda p: (start(p), p.format)), key=lambda p: p.format):
        found = list(run)
        factors = any("scale" in p.sources for p in found)
        for p in found:
            r = region(p, at[p.part])
            rows = (r.source_rows[1] - r.source_rows[0]) * (r.experts or 1)
            out[p.part].append(Run(format, rows, factors))
    return out


def read_weights(path: Path, formats: str | None) -> Weights:
    """Sizes of the model at `path`: of its files, or where `formats` is given or there is only a configuration, of
    those formats (the configuration's own type if left out).

    `path` is a checkpoint as for `open_checkpoint`, a folder with a `config.json`, or such a file. Raises
    ConfigError or CheckpointError.
    """
    file = path if path.suffix == ".json" else (path if path.is_dir() else path.parent) / "config.json"
    only_config = path.suffix == ".json" or (path.is_dir() and not any(_tensors(path)))
    if not only_config and formats is None:
        return from_checkpoint(open_checkpoint(path))
    if only_config or (file.exists() and path.suffix != ".gguf"):
        config = ModelConfig.from_hf(read_json(file), file)
    else:
        config = open_checkpoint(path).config
    return from_format(config, formats or {"bfloat16": "bf16", "float16": "f16"}.get(config.dtype, "f32"))


def _tensors(folder: Path) -> Iterator[Path]:
    for ending in ("*.safetensors", "*.gguf", "*.safetensors.index.json"):
        yield from folder.glob(ending)


def format_names(text: str) -> tuple[str, str, str]:
    """Formats of experts, other matrices and the n-gram table from "EXPERTS[/OTHERS[/TABLE]]".

    What is left out is as what stands before it. Raises ConfigError.
    """
    names = text.strip().lower().split("/")
    usable = [n for n, f in FORMATS.items() if f.kind in ("block", "scaled")] + ["f64", "f32", "f16", "bf16"]
    if not 1 <= len(names) <= 3 or any(n not in usable for n in names):
        wrong = next((n for n in names if n not in usable), text)
        raise ConfigError(
            f"--weights {text!r}: {wrong!r} is no format; expected EXPERTS[/OTHERS[/TABLE]], "
            f"each one of {', '.join(sorted(usable))}"
        )
    names += [names[-1]] * (3 - len(names))
    return names[0], names[1], names[2]


def _fitting(format: str, columns: int) -> str:
    """The format itself, or the one that quantisers take for rows of `columns` numbers instead."""
    if columns % FORMATS[format].block == 0:
        return format
    other = _SUBSTITUTES.get(format, "iq4_nl" if format.startswith("iq") else "f16")
    return other if columns % FORMATS[other].block == 0 else "f16"


def from_format(config: ModelConfig, text: str) -> Weights:
    """The model of `config` in the formats `text` (see `format_names`): sizes before there are files."""
    experts, others, table = format_names(text)

    def parts() -> Iterator[PartSize]:
        for slot in _slots(config):
            columns = slot.shape[-1] if len(slot.shape) > 1 else 1
            match slot.kind:
                case Kind.EXPERTS:
                    format = _fitting(experts, columns)
                case Kind.MATRIX:
                    format = _fitting(others, columns)
                case Kind.TABLE:
                    format = _fitting(_TABLE_FORMATS.get(table, table), columns)
                case _:
                    format = _vector_format([others])
            lead = prod(slot.shape[:1]) if slot.kind is Kind.EXPERTS else 1
            for part in slot.parts:
                yield _part(slot, part, (Run(format, lead * part.rows),))

    return Weights(config, parts(), f"formats {experts} (experts), {others} (others), {table} (n-gram table)")
