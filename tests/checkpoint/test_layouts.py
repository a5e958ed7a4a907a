"""The same weights in every layout come into memory as the same numbers, each decoded independently here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from nextfit.checkpoint import open_checkpoint
from nextfit.checkpoint.load import load_weights
from nextfit.checkpoint.names import Kind
from nextfit.checkpoint.packed import Packed, Stack, decode
from nextfit.checkpoint.table import NgramTable
from nextfit.config import ModelConfig
from tests.support.checkpoint_writer import E2M1, Quant, fp8_blocks, nvfp4, tensors, write_checkpoint
from tests.support.random_model import random_parts, random_weights, small_config

FIXTURE = Path(__file__).parents[1] / "fixtures/micro-nvfp4"


def values(weight: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    if isinstance(weight, NgramTable):
        return weight.gather(torch.arange(weight.shape[0]), dtype)
    if isinstance(weight, Packed | Stack):
        return decode(weight, dtype)
    assert isinstance(weight, Tensor)
    return weight


def quantisable() -> ModelConfig:
    """Sizes that are not whole numbers of 128 x 128 blocks but of 16 values."""
    return small_config(
        hidden_size=192,
        num_hidden_layers=2,
        layer_types=("linear_attention", "full_attention"),
        ple_layers=(0,),
        num_experts=4,
        moe_intermediate_size=160,
        ple_embed_dim=192,
    )


@pytest.mark.parametrize(
    ("dtype", "layout", "writing"),
    [
        (torch.float32, {}, {}),
        (torch.float16, {"experts": "each"}, {"files": 3}),
        (torch.bfloat16, {"table_shards": 0}, {"files": 2}),
        (torch.bfloat16, {"table_shards": 13}, {}),  # shard_10 sorts before shard_2 as text
        (torch.bfloat16, {"prefix": "model.language_model.", "vision": True}, {"nested": True, "files": 4}),
        (torch.float32, {"experts": "each", "constants": False}, {"nested": True}),
    ],
)
def test_layouts_agree_exactly(
    tmp_path: Path, dtype: torch.dtype, layout: dict[str, Any], writing: dict[str, Any]
) -> None:
    c = small_config(ple_layers=(1, 4))
    folder = write_checkpoint(tmp_path, c, tensors(c, random_parts(c), dtype=dtype, **layout), **writing)
    checkpoint = open_checkpoint(folder)
    assert not checkpoint.problems and not checkpoint.tensors.warnings
    ignored = {i.reason for i in checkpoint.tensors.ignored}
    assert ("vision tower" in ignored) == layout.get("vision", False)
    found = load_weights(checkpoint)
    parts = {k: v.to(dtype).float() for k, v in random_parts(c).items()}
    for slot in checkpoint.slots():
        weight = found[slot.name]
        if slot.kind in (Kind.MATRIX, Kind.EXPERTS):
            assert isinstance(weight, Tensor) and weight.dtype == dtype, slot.name
        assert torch.equal(values(weight), _as_used(slot.kind, [parts[p.name] for p in slot.parts])), (
            slot.name
        )


def _as_used(kind: Kind, found: list[Tensor]) -> Tensor:
    x = torch.cat(found, -2 if kind in (Kind.MATRIX, Kind.EXPERTS) else 0)
    return {Kind.GAIN: lambda: 1 + x, Kind.DECAY: lambda: -x.exp()}.get(kind, lambda: x)()


def test_float64_stays_float64(tmp_path: Path) -> None:
    c = small_config()
    write_checkpoint(tmp_path, c, tensors(c, random_parts(c), dtype=torch.float64))
    found = load_weights(open_checkpoint(tmp_path))
    want = random_weights(c, dtype=torch.float64)
    for name in ("layers.0.linear_attn.in_proj", "mixer.norm", "layers.3.mlp.experts.down"):
        assert values(found[name]).dtype == torch.float64
        assert torch.allclose(values(found[name]), want[name], atol=1e-6)


def test_one_type_for_each_run_of_rows(tmp_path: Path) -> None:
    """Parts of different types share a slot as a stack; neighbours of one type share a tensor."""
    c = small_config()
    held = tensors(c, random_parts(c), dtype=torch.bfloat16)
    router = "model.layers.2.mlp.gate.weight"
    held[router] = held[router].float()
    write_checkpoint(tmp_path, c, held)
    stack = load_weights(open_checkpoint(tmp_path))["layers.2.mlp.in_proj"]
    assert isinstance(stack, Stack)
    found = [(p.dtype, len(p)) for p in stack.parts if isinstance(p, Tensor)]
    assert found == [(torch.float32, 16), (torch.bfloat16, 65)]


def test_no_draft_head(tmp_path: Path) -> None:
    c = small_config()
    held = tensors(c, random_parts(c), mtp=False)
    without = open_checkpoint(write_checkpoint(tmp_path / "without", c, held))
    assert not without.problems and without.config.mtp_num_hidden_layers == 0
    assert "no draft head" in without.tensors.warnings[0]
    assert not any(name.startswith("mtp.") for name in load_weights(without))
    # the configuration says that there is none: the tensors are left out, and reported
    none = small_config(mtp_num_hidden_layers=0)
    folder = write_checkpoint(tmp_path / "none", none, tensors(c, random_parts(c)))
    checkpoint = open_checkpoint(folder)
    assert not checkpoint.problems and not checkpoint.tensors.warnings
    assert {i.source.name.split(".")[0] for i in checkpoint.tensors.ignored} == {"mtp", "model"}
    # asked not to load it
    whole = open_checkpoint(write_checkpoint(tmp_path / "whole", c, tensors(c, random_parts(c))))
    assert not any(name.startswith("mtp.") for name in load_weights(whole, draft=False))


def test_tied_embedding(tmp_path: Path) -> None:
    c = small_config(tie_word_embeddings=True)
    held = tensors(c, random_parts(c))
    assert "lm_head.weight" not in held
    tied = open_checkpoint(write_checkpoint(tmp_path / "tied", c, held))
    assert not tied.problems and "lm_head" not in load_weights(tied)
    # a head in the file is used, as transformers does
    held["lm_head.weight"] = held["model.embed_tokens.weight"] * 2
    both = open_checkpoint(write_checkpoint(tmp_path / "both", c, held))
    assert not both.config.tie_word_embeddings
    assert torch.equal(values(load_weights(both)["lm_head"]), held["lm_head.weight"])


def _independent(style: Quant, x: Tensor) -> Tensor:
    """What is left of a matrix after writing it in a quantised style."""
    if style == "fp8":
        codes, scale = fp8_blocks(x)
        return (
            codes.float()
            * torch.kron(scale.bfloat16().float(), torch.ones(128, 128))[: x.shape[0], : x.shape[1]]
        )
    codes, scale, second = nvfp4(x)
    nibbles = torch.stack([codes & 15, codes >> 4], -1).flatten(1).long()
    signed = torch.cat([E2M1, -E2M1])[nibbles]
    if style == "compressed-tensors":
        second = 1 / (1 / second)
    return signed * scale.float().repeat_interleave(16, 1) * second


@pytest.mark.parametrize(
    ("style", "experts"),
    [("fp8", "fused"), ("fp8", "each"), ("modelopt", "each"), ("compressed-tensors", "each")],
)
def test_quantised_layouts(tmp_path: Path, style: Quant, experts: Any) -> None:
    c, parts = quantisable(), random_parts(quantisable())
    rounded = {k: v.bfloat16().float() for k, v in parts.items()}
    held = tensors(c, parts, dtype=torch.bfloat16, quant=style, experts=experts)
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, c, held, files=2))
    assert not checkpoint.problems
    found = load_weights(checkpoint)
    for layer in range(c.num_hidden_layers):
        experts_of = f"layers.{layer}.mlp.experts."
        gate_up, down = values(found[experts_of + "gate_up"]), found[experts_of + "down"]
        assert isinstance(down, Packed) and down.format == ("fp8_block" if style == "fp8" else "nvfp4")
        for e in range(c.num_experts):
            parts_of = [rounded[f"{experts_of}{n}_proj"][e] for n in ("gate", "up")]
            if experts == "fused":  # a block may hold rows of both
                want = _independent(style, torch.cat(parts_of))
            else:
                want = torch.cat([_independent(style, x) for x in parts_of])
            assert torch.allclose(gate_up[e], want, rtol=1e-6, atol=0)
            want = _independent(style, rounded[f"{experts_of}down_proj"][e])
            assert torch.allclose(values(down)[e], want, rtol=1e-6, atol=0)
    table = "model.layers.0.ple.ple_embedding.ngram_embedding"
    codes = torch.cat([held[f"{table}.shard_{i}.weight"].float() for i in range(4)])
    want = codes * held[f"{table}.weight_scale"].float()
    assert torch.equal(values(found["layers.0.ple.table"]), want)
    draft = found["mtp.layers.0.mlp.experts.down"]
    assert isinstance(draft, Tensor) and draft.dtype == torch.bfloat16


def test_experts_that_are_not_all_alike(tmp_path: Path) -> None:
    """A scale of another type or shape, an activation scale left out: the numbers are the same."""
    c = quantisable()
    held = tensors(c, random_parts(c), quant="modelopt", experts="each")
    alike = open_checkpoint(write_checkpoint(tmp_path / "alike", c, held))
    of = "model.layers.0.mlp.experts.{}."
    odd = {n: x for n, x in held.items() if n != of.format(0) + "gate_proj.input_scale"}
    for name in (of.format(2) + "up_proj.weight_scale_2", of.format(3) + "down_proj.weight_scale_2"):
        odd[name] = odd[name].reshape(1) if "up" in name else odd[name].double()
    other = open_checkpoint(write_checkpoint(tmp_path / "odd", c, odd))
    assert sum(p.expert is not None for p in alike.tensors.pieces) == 0
    assert sum(p.expert is not None for p in other.tensors.pieces) == 3 * c.num_experts
    expected = load_weights(alike)
    for name, weight in load_weights(other).items():
        assert torch.equal(values(weight), values(expected[name])), name


def test_fp8_rows_that_are_no_whole_blocks(tmp_path: Path) -> None:
    """q, k, v are FP8 and the indexer is not: one packed run, then one plain one."""
    c, parts = quantisable(), random_parts(quantisable())
    write_checkpoint(tmp_path, c, tensors(c, parts, dtype=torch.bfloat16, quant="fp8"))
    weight = load_weights(open_checkpoint(tmp_path))["layers.1.self_attn.in_proj"]
    assert isinstance(weight, Stack) and [type(p) for p in weight.parts] == [Packed, Tensor]
    names = ("q_proj", "k_proj", "v_proj")
    want = [_independent("fp8", parts[f"layers.1.self_attn.{n}.weight"].bfloat16()) for n in names]
    assert torch.allclose(values(weight.parts[0]), torch.cat(want), rtol=1e-6, atol=0)


def test_fixture_against_the_safetensors_library() -> None:
    """Every tensor of the committed NVFP4 checkpoint, read by other code and decoded here."""
    checkpoint = open_checkpoint(FIXTURE)
    found = load_weights(checkpoint)
    with safe_open(FIXTURE / "model.safetensors", "pt") as file:
        got = {name.removeprefix("model."): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    used = set()

    def take(name: str) -> Tensor:
        used.add(name)
        return got[name]

    def matrix(name: str) -> Tensor:
        codes = take(f"{name}.weight")
        if codes.dtype != torch.uint8:
            return codes.float()
        nibbles = torch.stack([codes & 15, codes >> 4], -1).flatten(1).long()
        scale = take(f"{name}.weight_scale").float().repeat_interleave(16, 1)
        return torch.cat([E2M1, -E2M1])[nibbles] * (scale * take(f"{name}.weight_scale_2"))

    for slot in checkpoint.slots():
        read = []
        for part in slot.parts:
            if slot.kind is Kind.EXPERTS:
                base, proj = part.name.rsplit(".", 1)
                read.append(torch.stack([matrix(f"{base}.{e}.{proj}") for e in range(slot.shape[0])]))
            elif slot.kind is Kind.TABLE:
                shards = [take(f"{part.name}.shard_{i}.weight").float() for i in range(4)]
                read.append(torch.cat(shards) * take(f"{part.name}.weight_scale").float())
            else:
                read.append(take(part.name).float().view(part.rows, *slot.shape[1:]))
        want = _as_used(slot.kind, read)
        assert torch.allclose(values(found[slot.name]).float(), want, rtol=1e-6, atol=0), slot.name
    rest = {n.rsplit(".", 1)[-1] for n in got if n not in used}
    assert rest == {"input_scale", "layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"}


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    checkpoint = open_checkpoint(FIXTURE)
    load_weights(checkpoint, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] and [d for d, _ in seen] == sorted(d for d, _ in seen)


def test_generation_and_template_come_along() -> None:
    checkpoint = open_checkpoint(FIXTURE)
    assert checkpoint.generation.eos_token_ids == (496,)
    assert checkpoint.tokenizer == FIXTURE / "tokenizer.json"
    assert checkpoint.chat_template == (FIXTURE / "chat_template.jinja").read_text()


def test_template_of_older_files(tmp_path: Path) -> None:
    c = small_config()
    write_checkpoint(tmp_path, c, tensors(c, random_parts(c)))
    assert open_checkpoint(tmp_path).chat_template is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert open_checkpoint(tmp_path).chat_template == "{{ messages }}"


def test_a_file_instead_of_its_folder() -> None:
    assert not open_checkpoint(FIXTURE / "model.safetensors").problems
