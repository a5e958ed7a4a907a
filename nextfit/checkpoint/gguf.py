"""GGUF checkpoints: one file or all shards of a split one, and a draft head in a file of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nextfit.checkpoint.gguf_config import (
    ARCHITECTURE,
    Fields,
    generation_defaults,
    model_config,
    trunk_layers,
)
from nextfit.checkpoint.gguf_header import GgufFile, Metadata, read_header
from nextfit.checkpoint.gguf_names import map_gguf
from nextfit.checkpoint.source import Source, TensorMap
from nextfit.config import GenerationDefaults, ModelConfig
from nextfit.errors import CheckpointError

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MOST_SHARDS = 4096

# What a draft head must share with its model; it may leave a key out, its tensors' shapes are checked too.
_SHARED_KEYS = (
    "embedding_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "rope.dimension_count",
    "rope.freq_base",
    "hyper_connection.count",
    "hyper_connection.low_rank",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
)


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """What the headers of a model's files say."""

    config: ModelConfig
    generation: GenerationDefaults
    tensors: TensorMap
    metadata: Metadata  # of the first file; the tokenizer is rebuilt from it
    chat_template: str | None
    files: tuple[Path, ...]
    draft: Path | None  # file that the draft head comes from, if it is one of its own

    @property
    def warnings(self) -> list[str]:
        return self.tensors.warnings


def read_gguf(path: Path, draft: Path | None = None) -> GgufCheckpoint:
    """Read the headers of the model at `path`: a file, the first shard of several, or their folder.

    `draft` names a file with the draft head (MTP block) only, whose own embedding and output matrices
    are not used. Raises CheckpointError or ConfigError; tensors that do not fit are listed in
    `tensors.unknown` and `tensors.problems`.
    """
    path, warnings = _model_file(Path(path))
    files = _read_set(path)
    sources = [s for f in files for s in f.tensors]
    fields = _fields(files[0])
    trunk, announced = trunk_layers(fields)
    names = {s.name for s in sources}
    has_draft = any(n.startswith(f"blk.{trunk}.") for n in names)
    if has_draft and not any(n.startswith("blk.0.") for n in names):
        raise CheckpointError(
            f"{path} holds a draft head only: give the model's file, and this one as its draft"
        )
    if announced and not has_draft and draft is None:
        warnings.append(f"{path}: a draft layer is announced, but there is no blk.{trunk}; drafting is off")
    vocabulary = _vocabulary(path, sources)
    config, more = model_config(fields, names, vocabulary, has_draft or draft is not None)
    heads = None
    if draft is not None:
        draft = Path(draft)
        heads = _draft_sources(fields, draft, vocabulary)
    tensors = map_gguf(config, sources, heads)
    tensors.warnings.extend(warnings + more)
    _check_tokens(files[0], tensors, vocabulary)
    template = files[0].metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise CheckpointError(f"{path}: tokenizer.chat_template is {template!r}, expected text")
    return GgufCheckpoint(
        config,
        generation_defaults(fields, config),
        tensors,
        files[0].metadata,
        template,
        tuple(f.path for f in files),
        draft,
    )


def _model_file(path: Path) -> tuple[Path, list[str]]:
    """The (first) file of the model at `path`, and what else a folder holds."""
    if not path.is_dir():
        return path, []
    warnings, models = [], []
    for file in sorted(path.glob("*.gguf")):
        shard = _SHARD.fullmatch(file.name)
        if file.name.startswith("mmproj"):
            warnings.append(f"{file}: a vision tower, not read")
        elif file.name.startswith("mtp-"):
            warnings.append(f"{file}: a draft head, read only if it is given as the draft")
        elif shard is None or int(shard[2]) == 1:
            models.append(file)
    if len(models) != 1:
        found = ", ".join(f.name for f in models) or "none (or no first shard)"
        raise CheckpointError(f"{path}: expected the GGUF files of one model, found {found}")
    return models[0], warnings


def _read_set(path: Path) -> list[GgufFile]:
    """The file at `path`, or all shards of the model whose first shard it is, checked against each other."""
    first = read_header(path)
    count = _split_value(first, "count", 1)
    name = _SHARD.fullmatch(path.name)
    if count == 1 and (name is None or int(name[3]) == 1):
        return [first]
    number = _split_value(first, "no", 0)
    if name is None or (int(name[2]), int(name[3])) != (number + 1, count):
        expected = f"-{number + 1:05d}-of-{count:05d}.gguf"
        raise CheckpointError(
            f"{path} says that it is shard {number + 1} of {count}: expected a name like X{expected}"
        )
    if number:
        raise CheckpointError(
            f"{path} is shard {number + 1} of {count}: give {name[1]}-00001-of-{count:05d}.gguf"
        )
    if count > _MOST_SHARDS:
        raise CheckpointError(f"{path}: split.count is {count} (at most {_MOST_SHARDS})")
    paths = [path.with_name(f"{name[1]}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
    for shard in paths:
        if not shard.is_file():
            raise CheckpointError(f"{shard} is missing: {path.name} is the first of {count} shards")
    files = [first, *(read_header(p) for p in paths[1:])]
    _check_set(files)
    return files


def _split_value(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(f"split.{key}", default)
    if type(value) is not int or value < 0:
        raise CheckpointError(f"{file.path}: split.{key} is {value!r}, expected a count")
    return value


def _check_set(files: Sequence[GgufFile]) -> None:
    tensors = sum(len(f.tensors) for f in files)
    owner: dict[str, Path] = {}
    for i, file in enumerate(files):
        for key, expected in (("no", i), ("count", len(files)), ("tensors.count", tensors)):
            found = _split_value(file, key, expected)
            if found != expected:
                raise CheckpointError(f"{file.path}: split.{key} is {found}, expected {expected}")
        for source in file.tensors:
            if source.name in owner:
                raise CheckpointError(f"tensor {source.name} is in {owner[source.name]} and in {file.path}")
            owner[source.name] = file.path


def _fields(file: GgufFile) -> Fields:
    found = file.metadata.get("general.architecture")
    if found != ARCHITECTURE:
        hint = " (a vision tower, not a model)" if found == "clip" else ""
        raise CheckpointError(
            f"{file.path}: general.architecture is {found!r}{hint}, expected {ARCHITECTURE!r}"
        )
    return Fields(file.metadata, file.path)


def _vocabulary(path: Path, sources: Sequence[Source]) -> int:
    """Rows of the embedding."""
    for source in sources:
        if source.name == "token_embd.weight":
            if len(source.shape) != 2:
                raise CheckpointError(f"{path}: token_embd.weight is {list(source.shape)}, expected a matrix")
            return source.shape[0]
    raise CheckpointError(f"{path}: token_embd.weight is missing")


def _check_tokens(file: GgufFile, tensors: TensorMap, vocabulary: int) -> None:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) != vocabulary:
        found = f"tokenizer.ggml.tokens lists {len(tokens)} tokens"
        tensors.problems.append(f"{file.path}: {found}, but token_embd.weight has {vocabulary} rows")


def _draft_sources(model: Fields, path: Path, vocabulary: int) -> list[Source]:
    """The tensors of a draft head's file, which must have been made for this model."""
    files = _read_set(path)
    fields = _fields(files[0])
    trunk, announced = trunk_layers(fields)
    expected, _ = trunk_layers(model)
    if not announced:
        raise CheckpointError(f"{path} has no draft head: nextn_predict_layers is missing")
    if trunk != expected:
        raise CheckpointError(
            f"{path} is the draft head of a model of {trunk} layers; {model.file} has {expected}"
        )
    for key in _SHARED_KEYS:
        if fields.has(key) and model.has(key):
            key = f"{ARCHITECTURE}.{key}"
            mine, theirs = model.metadata[key], fields.metadata[key]
            if mine != theirs:
                raise CheckpointError(
                    f"{path} is the draft head of another model: {key} is {theirs}, not {mine}"
                )
    sources = [s for f in files for s in f.tensors]
    for source in sources:
        if source.name == "token_embd.weight" and source.shape[0] != vocabulary:
            found = f"token_embd.weight has {source.shape[0]} rows, not {vocabulary}"
            raise CheckpointError(f"{path} is the draft head of another model: {found}")
    return sources
