"""Model files: what they hold, whether it is a whole model, and how it comes into memory.

`open_checkpoint` reads headers only and needs no torch; `load.load_weights` reads the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nextfit.checkpoint.audit import audit
from nextfit.checkpoint.hf_names import map_tensors
from nextfit.checkpoint.names import Slot, draft_slots, trunk_slots
from nextfit.checkpoint.quantization import check_method
from nextfit.checkpoint.regions import targets
from nextfit.checkpoint.safetensors import read_json, read_safetensors
from nextfit.checkpoint.source import Ignored, Piece, TensorMap, distinct
from nextfit.config import GenerationDefaults, ModelConfig
from nextfit.errors import CheckpointError

_SHOWN = 8  # problems in one error message


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files after their headers were read and audited; nothing is loaded yet.

    `config.mtp_num_hidden_layers` is 1 exactly if a draft head will be loaded. `tokenizer` is the path of a
    `tokenizer.json` or GGUF's metadata, None if the files have none.
    """

    path: Path
    config: ModelConfig
    generation: GenerationDefaults
    tensors: TensorMap
    problems: tuple[str, ...]
    tokenizer: Path | Mapping[str, Any] | None = None
    chat_template: str | None = field(default=None, repr=False)

    def slots(self) -> list[Slot]:
        """The resident weights of the model and of its draft head, in the order of a forward pass."""
        draft = draft_slots(self.config) if self.config.mtp_num_hidden_layers else ()
        return [*trunk_slots(self.config), *draft]

    def require(self) -> Checkpoint:
        """The checkpoint itself if it can be loaded. Raises CheckpointError naming its problems."""
        if not self.problems:
            return self
        more = len(self.problems) - _SHOWN
        lines = [f"{self.path} cannot be loaded:", *self.problems[:_SHOWN]]
        if more > 0:
            lines.append(f"and {more} more (`nextfit inspect` shows all)")
        raise CheckpointError("\n  ".join(lines))


def open_checkpoint(path: str | Path, draft: str | Path | None = None) -> Checkpoint:
    """Read the headers of a model: a folder or file of safetensors, or a GGUF file or folder.

    `draft` is a GGUF file that holds the draft head. Raises ConfigError or CheckpointError where a header
    cannot be understood at all; what is wrong with tensors is collected in `problems`.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if path.suffix == ".gguf" or (
        path.is_dir() and not (path / "config.json").exists() and any(path.glob("*.gguf"))
    ):
        return _open_gguf(path, None if draft is None else Path(draft))
    if draft is not None:
        raise CheckpointError(f"{draft}: a separate draft file goes with a GGUF model, {path} is none")
    return _open_hf(path)


def _open_hf(path: Path) -> Checkpoint:
    folder = path.parent if path.is_file() else path
    file = folder / "config.json"
    raw = read_json(file)
    config = ModelConfig.from_hf(raw, file)
    settings = folder / "generation_config.json"
    generation = GenerationDefaults.from_hf(
        read_json(settings) if settings.is_file() else {}, settings, config
    )
    sources = read_safetensors(path)
    if config.tie_word_embeddings and "lm_head.weight" in sources:
        config = replace(config, tie_word_embeddings=False)
    tensors = map_tensors(config, sources)
    for owner in (raw, raw.get("text_config")):
        if isinstance(owner, dict) and isinstance(owner.get("quantization_config"), dict):
            tensors.problems.extend(check_method(owner["quantization_config"], str(file)))
    template = folder / "chat_template.jinja"
    tokenizer = folder / "tokenizer.json"
    return _audited(
        path,
        config,
        generation,
        tensors,
        tokenizer if tokenizer.is_file() else None,
        template.read_text(encoding="utf-8") if template.is_file() else _template_in(folder),
    )


def _template_in(folder: Path) -> str | None:
    """The template of older checkpoints, which lies in `tokenizer_config.json`."""
    file = folder / "tokenizer_config.json"
    template = read_json(file).get("chat_template") if file.is_file() else None
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{file}: chat_template is a {type(template).__name__}, expected a string")
    return template


def _open_gguf(path: Path, draft: Path | None) -> Checkpoint:
    from nextfit.checkpoint.gguf import read_gguf

    g = read_gguf(path, draft)
    return _audited(path, g.config, g.generation, g.tensors, g.metadata, g.chat_template)


def _without_draft(config: ModelConfig, tensors: TensorMap) -> tuple[ModelConfig, TensorMap]:
    """Drop the draft head where the configuration has none or the files hold none of it."""
    head = [p for p in tensors.pieces if p.part.startswith("mtp.")]
    if head and config.mtp_num_hidden_layers:
        return config, tensors
    warnings = list(tensors.warnings)
    if config.mtp_num_hidden_layers:
        warnings.append("the files hold no draft head (mtp.*): nothing will be drafted")
    reason = "draft head, which the configuration says the model has not (mtp_num_hidden_layers 0)"
    sources = distinct(s for p in head for s in p.sources.values())
    kept: list[Piece] = [p for p in tensors.pieces if not p.part.startswith("mtp.")]
    ignored = [*tensors.ignored, *(Ignored(s, reason) for s in sources)]
    return replace(config, mtp_num_hidden_layers=0), replace(
        tensors, pieces=kept, ignored=ignored, warnings=warnings
    )


def _audited(
    path: Path,
    config: ModelConfig,
    generation: GenerationDefaults,
    tensors: TensorMap,
    tokenizer: Path | Mapping[str, Any] | None,
    chat_template: str | None,
) -> Checkpoint:
    config, tensors = _without_draft(config, tensors)
    checkpoint = Checkpoint(path, config, generation, tensors, (), tokenizer, chat_template)
    problems = audit(config, tensors, targets(checkpoint.slots()))
    return replace(checkpoint, problems=tuple(problems))
