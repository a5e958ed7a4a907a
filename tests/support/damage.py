"""Means to damage a small safetensors checkpoint, before and after it is written."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nextfit.config import ModelConfig
from tests.support.checkpoint_writer import Quant, config_json, tensors, write_safetensors
from tests.support.random_model import random_parts, small_config

L0, L1 = "model.layers.0.", "model.layers.1."
TABLE = L0 + "ple.ple_embedding.ngram_embedding"


def tiny_config() -> ModelConfig:
    """A delta-net layer with n-grams, a sparse layer and a draft head; every NVFP4 and FP8 block is whole."""
    return small_config(
        hidden_size=32,
        num_hidden_layers=2,
        layer_types=("linear_attention", "full_attention"),
        ple_layers=(0,),
        ple_embed_dim=32,
        num_experts=3,
        num_experts_per_tok=2,
        ngram_vocab_size_base=17,
        vocab_size=64,
        eos_token_id=60,
        split_ngram_parts=2,
    )


@lru_cache(maxsize=1)
def _parts() -> dict[str, Tensor]:
    return random_parts(tiny_config())


@lru_cache(maxsize=8)
def _tensors(quant: Quant | None, experts: Any) -> dict[str, Tensor]:
    return tensors(tiny_config(), _parts(), quant=quant, experts=experts, table_shards=2)


@dataclass
class Model:
    """A checkpoint in memory, before it is written; damage changes it."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    files: int = 1
    generation: dict[str, Any] | None = None

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.generation is not None:
            (folder / "generation_config.json").write_text(json.dumps(self.generation))
        names = list(self.tensors)
        index: dict[str, str] = {}
        for i in range(self.files):
            file = "model.safetensors" if self.files == 1 else f"model-{i + 1}-of-{self.files}.safetensors"
            some = {n: self.tensors[n] for n in names[i :: self.files]}
            write_safetensors(folder / file, some)
            index |= dict.fromkeys(some, file)
        if self.files > 1:
            text = json.dumps({"metadata": {}, "weight_map": index})
            (folder / "model.safetensors.index.json").write_text(text)


def model(quant: Quant | None = None, experts: str = "each", files: int = 1) -> Model:
    return Model(config_json(tiny_config()), dict(_tensors(quant, experts)), files)


@dataclass(frozen=True)
class Case:
    """`before` changes the model, `after` the files written; the refusal contains all of `words`."""

    name: str
    words: tuple[str, ...]
    before: Callable[[Model], object] | None = None
    after: Callable[[Path], object] | None = None
    make: Callable[[], Model] = field(default=model)
    path: str = ""  # opened instead of the folder

    def write(self, folder: Path) -> Path:
        made = self.make()
        if self.before:
            self.before(made)
        made.write(folder)
        if self.after:
            self.after(folder)
        return folder / self.path


def edit_header(change: Callable[[dict[str, Any]], object], file: str = "model.safetensors") -> Any:
    """Change the JSON header of a written file; the data stays."""

    def after(folder: Path) -> None:
        raw = (folder / file).read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])

    return after


def edit_bytes(change: Callable[[bytes], bytes], file: str = "model.safetensors") -> Any:
    def after(folder: Path) -> None:
        (folder / file).write_bytes(change((folder / file).read_bytes()))

    return after


def set_field(name: str, key: str, value: object) -> Any:
    return edit_header(lambda h: h[name].__setitem__(key, value))


def drop(name: str) -> Any:
    return lambda m: m.tensors.pop(name)


def put(name: str, value: Callable[[Any], Tensor]) -> Any:
    """Replace (or add) a tensor by what `value` makes of the present one."""
    return lambda m: m.tensors.__setitem__(name, value(m.tensors.get(name)))


def rename(old: str, new: str) -> Any:
    return lambda m: m.tensors.__setitem__(new, m.tensors.pop(old))


def nan_at(name: str) -> Any:
    """Make the first value of a tensor NaN (all bits of an E4M3 one)."""

    def before(m: Model) -> None:
        x = m.tensors[name].clone()
        flat = x.reshape(-1)
        if x.dtype == torch.float8_e4m3fn:
            flat.view(torch.uint8)[0] = 0x7F
        else:
            flat[0] = torch.nan
        m.tensors[name] = flat.view(x.shape)

    return before
