"""GGUF models: those of llama.cpp's own tools, and every layout of the same small model."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from nextfit.checkpoint import open_checkpoint
from nextfit.checkpoint.gguf import read_gguf
from nextfit.checkpoint.load import load_weights
from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.checkpoint.packed import Packed, decode
from nextfit.checkpoint.table import NgramTable
from tests.support.gguf_writer import Value, encoded, gguf_tensors, ints, write_gguf
from tests.support.random_model import random_parts, random_weights, small_config

FIXTURES = Path(__file__).parents[1] / "fixtures"
TILED = small_config(num_hidden_layers=4, num_experts=4, value_heads_tiled=True)
PARTS = random_parts(TILED)


def loaded(path: Path, draft: Path | None = None) -> dict[str, torch.Tensor]:
    """Slot name -> float32 values as the model would see them."""
    out = {}
    for name, w in load_weights(open_checkpoint(path, draft)).items():
        if isinstance(w, NgramTable):
            h = ngram_hash(TILED, 1)
            out[name] = w.gather(torch.arange(h.offsets[-1] + h.sizes[-1]), torch.float32)
        else:
            out[name] = decode(w, torch.float32)
    return out


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    out = random_weights(TILED)
    h = ngram_hash(TILED, 1)
    table = "layers.1.ple.table"
    return out | {table: out[table][: h.offsets[-1] + h.sizes[-1]]}


@pytest.mark.parametrize("kind", ["Q4_K_M", "IQ4_XS", "Q2_K"])
def test_files_of_llama_cpp_are_whole_models(kind: str) -> None:
    path = FIXTURES / f"micro-{kind}.gguf"
    c = open_checkpoint(path)
    assert c.problems == () and c.tensors.warnings == [] and c.tensors.ignored == []
    assert len(c.tensors.pieces) == 146  # 145 tensors, one of them holding two matrices
    config = c.config
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (256, 4, 512)
    assert config.layer_types == ("linear_attention",) * 3 + ("full_attention",)
    assert (config.rms_norm_eps, config.rope_theta, config.rotary_dim) == (1e-6, 1e7, 16)
    assert (config.linear_num_key_heads, config.linear_num_value_heads) == (2, 6)
    assert (config.linear_key_head_dim, config.linear_value_head_dim) == (32, 32)
    assert config.value_heads_tiled and config.norm_topk_prob and config.output_gate_type == "sigmoid"
    assert (config.indexer_budget, config.indexer_compress_ratio) == (64, 4)
    assert (config.ple_layers, config.ple_embed_dim, config.ngram_vocab_size_base) == ((1,), 256, 307)
    assert (config.eos_token_id, config.mtp_num_hidden_layers) == (496, 1)
    assert not config.tie_word_embeddings
    assert c.generation.eos_token_ids == (498, 496)
    assert c.chat_template is not None and c.chat_template.startswith("{%- for m in messages %}")
    assert len(c.tokenizer["tokenizer.ggml.tokens"]) == 512  # type: ignore[index]


@pytest.mark.parametrize("kind", ["Q4_K_M", "IQ4_XS", "Q2_K"])
def test_files_of_llama_cpp_load_as_gguf_decodes_them(kind: str) -> None:
    path = FIXTURES / f"micro-{kind}.gguf"
    values = {
        t.name: torch.from_numpy(dequantize(t.data, t.tensor_type).reshape(t.shape[::-1].tolist()).copy())
        for t in GGUFReader(path).tensors
    }
    c = open_checkpoint(path)
    pieces: dict[str, list[torch.Tensor]] = {}
    for p in sorted(c.tensors.pieces, key=lambda p: p.rows or (0, 0)):
        x = values[p.sources["data"].name].float()
        pieces.setdefault(p.part, []).append(x[..., slice(*p.columns)] if p.columns else x)
    weights = load_weights(c)
    for slot in c.slots():
        # a gate of one row is a vector in the file; rows are the second last axis of matrices
        rows = [x[None] if x.dim() < len(slot.shape) else x for p in slot.parts for x in pieces[p.name]]
        wanted = torch.cat(rows, -2 if len(slot.shape) > 1 else 0)
        w = weights[slot.name]
        table = isinstance(w, NgramTable)
        got = w.gather(torch.arange(slot.shape[0]), torch.float32) if table else decode(w, torch.float32)  # type: ignore[union-attr,arg-type]
        assert torch.equal(got, wanted), slot.name


def test_a_float_file_gives_the_model_exactly(tmp_path: Path, expected: dict[str, torch.Tensor]) -> None:
    path = write_gguf(tmp_path / "m.gguf", TILED, PARTS)
    read = open_checkpoint(path)
    assert read.problems == () and read.tensors.warnings == []
    assert read.config == replace(TILED, split_ngram_parts=1, dtype="bfloat16")
    same(loaded(path), expected)


@pytest.mark.parametrize(
    "layout", [{"fused": True}, {"per_head": True}, {"split": 17}, {"split": 17, "empty_first": False}]
)
def test_other_layouts_give_the_same_model(
    tmp_path: Path, expected: dict[str, torch.Tensor], layout: dict[str, bool | int]
) -> None:
    path = write_gguf(tmp_path / "m.gguf", TILED, PARTS, **layout)  # type: ignore[arg-type]
    same(loaded(path), expected)
    if "split" in layout:
        first = open_checkpoint(path)
        assert len({s.members[0].file for p in first.tensors.pieces for s in p.sources.values()}) > 3


def test_value_heads_are_tiled_over_key_heads(tmp_path: Path) -> None:
    """Undo the order as spec/gguf.md section 2 says, and the released order is back."""
    grouped = small_config(num_hidden_layers=4, num_experts=4)
    got = loaded(write_gguf(tmp_path / "m.gguf", grouped, PARTS))
    wanted = random_weights(grouped)
    nk, ratio, d = 2, 3, 16

    def undo(x: torch.Tensor, width: int) -> torch.Tensor:
        return x.reshape(ratio, nk, width, -1).swapaxes(0, 1).reshape(x.shape)

    key = 2 * nk * d
    for layer in range(3):
        p = f"layers.{layer}.linear_attn."
        x = got[f"{p}in_proj"]
        heads = nk * ratio
        at = [key, heads * d, heads * d, heads, heads]
        qk, v, z, b, a = x.split(at)
        back = torch.cat([qk, undo(v, d), undo(z, d), undo(b, 1), undo(a, 1)])
        assert torch.equal(back, wanted[f"{p}in_proj"])
        conv = got[f"{p}conv"]
        assert torch.equal(torch.cat([conv[:key], undo(conv[key:], d)]), wanted[f"{p}conv"])
        for name in ("decay", "dt_bias"):
            assert torch.equal(undo(got[p + name], 1), wanted[p + name])
        out = got[f"{p}out_proj"].T.contiguous()
        assert torch.equal(undo(out, d).T, wanted[f"{p}out_proj"])


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "NVFP4"])
def test_every_type_that_can_be_written_is_read(tmp_path: Path, kind: str) -> None:
    packed = write_gguf(tmp_path / "m.gguf", TILED, PARTS, kind=kind, per_head=True)
    values = {}
    for name, x in gguf_tensors(TILED, PARTS, per_head=True).items():
        data, type_ = encoded(name, x, kind)
        values[name] = dequantize(data, type_).reshape(x.shape)
    floats = write_gguf(tmp_path / "f.gguf", TILED, PARTS, per_head=True, tensors=values)
    same(loaded(packed), loaded(floats))
    weights = load_weights(open_checkpoint(packed))
    experts = weights["layers.0.mlp.experts.gate_up"]
    assert isinstance(experts, Packed) == (kind not in ("F16", "BF16"))


@pytest.mark.parametrize("per_expert", [False, True])
def test_nvfp4_factors_multiply(tmp_path: Path, per_expert: bool) -> None:
    name = "blk.0.ffn_up_exps"
    factor = np.array([0.5, 2, -1, 3] if per_expert else [0.5], np.float32)
    extra = {f"{name}.scale": factor, f"{name}.input_scale": np.ones(1, np.float32)}
    with_factor = write_gguf(tmp_path / "a.gguf", TILED, PARTS, kind="NVFP4", tensors=extra)
    plain = loaded(write_gguf(tmp_path / "b.gguf", TILED, PARTS, kind="NVFP4"))
    ignored = open_checkpoint(with_factor).tensors.ignored
    assert [i.source.name for i in ignored] == [f"{name}.input_scale"]
    plain["layers.0.mlp.experts.gate_up"][:, 32:] *= torch.from_numpy(factor)[:, None, None]
    same(loaded(with_factor), plain)


def test_an_absent_output_matrix_is_tied(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TILED, PARTS, tensors={"output.weight": None})
    c = open_checkpoint(path)
    assert c.config.tie_word_embeddings and c.problems == ()


@pytest.mark.parametrize("shape", [(64,), (1, 64)])
def test_the_shared_gate_may_be_a_vector_or_a_row(
    tmp_path: Path, expected: dict[str, torch.Tensor], shape: tuple[int, ...]
) -> None:
    name = "blk.{}.ffn_gate_inp_shexp.weight"
    written = gguf_tensors(TILED, PARTS)
    gates = {name.format(i): written[name.format(i)].reshape(shape) for i in range(5)}
    same(loaded(write_gguf(tmp_path / "m.gguf", TILED, PARTS, tensors=gates)), expected)


def test_older_files_give_the_interval_only(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", TILED, PARTS, metadata={"qwen4exp.attention.recurrent_layers": None}
    )
    assert open_checkpoint(path).config.layer_types == TILED.layer_types


def test_lost_compress_ratios_are_repaired_with_a_warning(tmp_path: Path) -> None:
    key = "qwen4exp.attention.compress_ratios"
    for draft_entry in (0, 4):
        metadata = {key: ints([0, 0, 0, 0, draft_entry])}
        c = open_checkpoint(write_gguf(tmp_path / "m.gguf", TILED, PARTS, metadata=metadata))
        assert c.problems == () and c.config.indexer_compress_ratio == 4
        assert len(c.tensors.warnings) == 1 and f"{key} is 0 for every full" in c.tensors.warnings[0]


def test_a_dense_draft_entry_is_tolerated(tmp_path: Path) -> None:
    metadata = {"qwen4exp.attention.compress_ratios": ints([0, 0, 0, 4, 0])}
    c = open_checkpoint(write_gguf(tmp_path / "m.gguf", TILED, PARTS, metadata=metadata))
    assert c.problems == () and c.tensors.warnings == []


def test_sampling_defaults_come_from_the_file(tmp_path: Path) -> None:
    metadata = {
        "general.sampling.temp": 0.7,
        "general.sampling.top_p": 0.95,
        "general.sampling.top_k": 20,
        "tokenizer.ggml.eos_token_id": 7,
    }
    g = open_checkpoint(write_gguf(tmp_path / "m.gguf", TILED, PARTS, metadata=metadata)).generation
    assert (g.temperature, g.top_p, g.top_k, g.eos_token_ids) == (0.7, 0.95, 20, (7, 304))


def test_a_model_without_a_draft_head(tmp_path: Path, expected: dict[str, torch.Tensor]) -> None:
    path = write_gguf(tmp_path / "m.gguf", TILED, PARTS, draft="without")
    assert open_checkpoint(path).config.mtp_num_hidden_layers == 0
    same(loaded(path), {k: v for k, v in expected.items() if not k.startswith("mtp.")})


@pytest.mark.parametrize("draft", ["only", "bare"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_draft_head_from_a_file_of_its_own(
    tmp_path: Path, expected: dict[str, torch.Tensor], draft: str, inside: bool
) -> None:
    other = random_parts(TILED, seed=1)
    mixed = PARTS | {k: v for k, v in other.items() if k.startswith("mtp.")}
    path = write_gguf(tmp_path / "m.gguf", TILED, PARTS, draft="inside" if inside else "without")
    head = write_gguf(tmp_path / "mtp-m.gguf", TILED, other, draft=draft)  # type: ignore[arg-type]
    same(loaded(path, head), loaded(write_gguf(tmp_path / "x.gguf", TILED, mixed)))
    c = read_gguf(path, head)
    assert c.draft == head and c.config.mtp_num_hidden_layers == 1
    ignored = {i.source.name: i.reason for i in c.tensors.ignored}
    shared = {"token_embd.weight", "output.weight"} if draft == "only" else set()
    assert {n for n, r in ignored.items() if r == "the draft head shares the model's"} == shared
    own = {n for n, r in ignored.items() if r == "the draft head comes from a file of its own"}
    assert len(own) == (32 if inside else 0) and all(n.startswith("blk.4.") for n in own)


def test_a_quantised_draft_head_can_be_cut_where_its_blocks_end(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TILED, PARTS, kind="Q8_0")
    got = load_weights(open_checkpoint(path))
    left, right = got["mtp.fc_embedding"], got["mtp.fc_hidden"]
    assert (
        isinstance(left, Packed)
        and isinstance(right, Packed)
        and left.format == "q8_0"
        and left.parts["data"].shape == (64, 68)
    )
    whole, type_ = encoded(
        "x", np.concatenate([PARTS[f"mtp.fc_{k}.weight"] for k in ("embedding", "hidden")], 1), "Q8_0"
    )
    both = torch.cat([decode(left, torch.float32), decode(right, torch.float32)], 1)
    assert torch.equal(both, torch.from_numpy(dequantize(whole, type_)))


def test_a_folder_may_hold_other_files_beside_the_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", TILED, PARTS, split=40)
    shutil.copy(FIXTURES / "micro-Q2_K.gguf", tmp_path / "mmproj-F16.gguf")
    shutil.copy(FIXTURES / "micro-Q2_K.gguf", tmp_path / "mtp-x.gguf")
    c = read_gguf(tmp_path)
    assert c.config.hidden_size == 64 and c.files[0].name.startswith("m-00001-of-")
    assert len(c.warnings) == 2
    assert "mmproj-F16.gguf: a vision tower, not read" in c.warnings[0]
    assert "mtp-x.gguf: a draft head, read only if it is given" in c.warnings[1]


def test_an_announced_draft_layer_that_is_not_there_is_reported(tmp_path: Path) -> None:
    none = {n: None for n in gguf_tensors(TILED, PARTS) if n.startswith("blk.4.")}
    c = open_checkpoint(write_gguf(tmp_path / "m.gguf", TILED, PARTS, tensors=none))
    assert c.config.mtp_num_hidden_layers == 0 and c.problems == ()
    assert "there is no blk.4; drafting is off" in c.tensors.warnings[0]


def test_metadata_are_passed_on(tmp_path: Path) -> None:
    from gguf.constants import GGUFValueType

    extra = {"general.name": "Small", "x.y": Value(GGUFValueType.ARRAY, [0.5], GGUFValueType.FLOAT32)}
    c = read_gguf(write_gguf(tmp_path / "m.gguf", TILED, PARTS, metadata=extra))
    assert c.metadata["general.name"] == "Small" and c.metadata["x.y"] == [0.5]
    assert c.chat_template == "{{ messages[0].content }}"
