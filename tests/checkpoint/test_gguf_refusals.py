"""GGUF models that cannot be loaded, and what is said about them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGUFValueType

from nextfit.checkpoint import open_checkpoint
from nextfit.checkpoint.gguf import read_gguf
from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.errors import NextFitError
from tests.support.gguf_writer import Value, gguf_tensors, ints, write_gguf
from tests.support.random_model import random_parts, small_config

SMALL = small_config(num_hidden_layers=4, num_experts=4, value_heads_tiled=True)
PARTS = random_parts(SMALL)
TENSORS = gguf_tensors(SMALL, PARTS)
U64, I32, BOOL, F32 = GGUFValueType.UINT64, GGUFValueType.INT32, GGUFValueType.BOOL, GGUFValueType.FLOAT32


def booleans(*values: bool) -> Value:
    return Value(GGUFValueType.ARRAY, list(values), BOOL)


def refused(path: Path, message: str, draft: Path | None = None) -> None:
    with pytest.raises(NextFitError, match=message) as caught:
        read_gguf(path, draft)
    assert str(path) in str(caught.value) or (draft and str(draft) in str(caught.value))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("embedding_length", None, "the metadata key qwen4exp.embedding_length is missing"),
        ("embedding_length", 64.0, "embedding_length is 64.0, expected an integer that is not negative"),
        (
            "embedding_length",
            Value(I32, -64),
            "embedding_length is -64, expected an integer that is not negative",
        ),
        ("embedding_length", 0, "hidden_size is 0, expected an integer from 1"),
        ("rope.freq_base", 10000000, "rope.freq_base is 10000000, expected a float"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "rms_norm_eps is nan, expected a positive number"),
        ("attention.layer_norm_rms_epsilon", float("inf"), "rms_norm_eps is inf, expected a positive number"),
        ("attention.layer_norm_rms_epsilon", 0.0, "rms_norm_eps is 0.0, expected a positive number"),
        ("nextn_predict_layers", 2, "nextn_predict_layers is 2, expected 0 or 1"),
        ("block_count", 1, "block_count is 1, expected 2 to 4096"),
        ("block_count", 5000, "block_count is 5000, expected 2 to 4096"),
        (
            "attention.recurrent_layers",
            booleans(True),
            r"recurrent_layers is \[True\], expected a list of 5 booleans",
        ),
        ("attention.recurrent_layers", ints([1, 1, 1, 0, 0]), "expected a list of 5 booleans"),
        ("attention.compress_ratios", ints([0, 0, 0, 4]), "expected a list of 5 integers"),
        ("attention.compress_ratios", 4, "compress_ratios is 4, expected a list of 5 integers"),
        ("attention.compress_ratios", ints([0, 4, 0, 4, 4]), "expected 0 for every linear attention layer"),
        ("attention.compress_ratios", ints([0, 0, 0, 4, 8]), "expected 0 or 4 for the draft layer"),
        ("attention.compress_ratios", ints([0, 0, 0, -4, 0]), "indexer_compress_ratio is -4"),
        ("attention.value_length", 16, "value_length is 16, expected attention.key_length=32"),
        ("rope.scaling.type", "yarn", "rope.scaling.type is 'yarn', expected none: position scaling"),
        ("ssm.inner_size", 95, "ssm.inner_size is 95, expected a multiple of ssm.time_step_rank=6"),
        ("ssm.time_step_rank", 0, "expected a multiple of ssm.time_step_rank=0"),
        ("ple.layers", ints([0, 1]), "expected one layer: the metadata hold the hash constants of one"),
        ("ple.layers", ints([3]), "ple_layer_ids is 4, expected linear_attention layers only"),
        ("ple.heads_per_ngram", 5, r"head_vocab_sizes is .* one entry for each of .* = 10 heads"),
        ("ple.ngram_size", 1, "head_vocab_sizes is .* one entry for each of .* = 0 heads"),
        ("ple.eos_token_id", 320, "eos_token_id is 320, expected an integer from 0 to 319"),
        (
            "ple.layer_multipliers",
            ints([1, 2, 3], U64),
            r"layer_multipliers is \[1, 2, 3\].*seed 1234 and 320 tokens",
        ),
        ("ple.head_offsets", ints([0, 1], U64), r"head_offsets is \[0, 1\], expected \[0, 101,"),
        ("ple.head_vocab_sizes", ints([101] * 8, U64), r"head_vocab_sizes is .*expected \[101, 103,"),
        ("expert_used_count", 5, "num_experts_per_tok is 5, expected at most num_experts=4"),
    ],
)
def test_metadata_that_are_refused(tmp_path: Path, key: str, value: Any, message: str) -> None:
    refused(write_gguf(tmp_path / "m.gguf", SMALL, PARTS, metadata={f"qwen4exp.{key}": value}), message)


def test_a_full_attention_interval_of_zero_is_refused(tmp_path: Path) -> None:
    metadata = {"qwen4exp.attention.recurrent_layers": None, "qwen4exp.full_attention_interval": 0}
    refused(
        write_gguf(tmp_path / "m.gguf", SMALL, PARTS, metadata=metadata), "interval is 0, expected at least 1"
    )


def test_a_mix_of_sparse_and_dense_layers_is_refused(tmp_path: Path) -> None:
    eight = small_config(num_experts=4, value_heads_tiled=True)
    metadata = {"qwen4exp.attention.compress_ratios": ints([0, 0, 0, 4, 0, 0, 0, 0, 4])}
    path = write_gguf(tmp_path / "m.gguf", eight, random_parts(eight), metadata=metadata)
    refused(path, "expected the same ratio for every full attention layer")


def test_a_dense_model_is_refused(tmp_path: Path) -> None:
    metadata = {"qwen4exp.attention.compress_ratios": ints([0] * 5)}
    none = {n: None for n in TENSORS if n.startswith("blk.3.indexer")}
    path = write_gguf(tmp_path / "m.gguf", SMALL, PARTS, metadata=metadata, tensors=none)
    refused(path, "expected a ratio, or indexer tensors in full attention layer 3")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "qwen3moe"}, "general.architecture is 'qwen3moe', expected 'qwen4exp'"),
        ({"general.architecture": "clip"}, r"general.architecture is 'clip' \(a vision tower, not a model\)"),
        ({"tokenizer.chat_template": 7}, "tokenizer.chat_template is 7, expected text"),
        (
            {"tokenizer.ggml.eos_token_id": 320},
            "eos_token_id is 320, expected a token id below vocab_size=320",
        ),
        ({"general.sampling.top_p": 1.5}, "top_p is 1.5, expected more than 0 and at most 1"),
    ],
)
def test_general_metadata_that_are_refused(tmp_path: Path, metadata: Mapping[str, Any], message: str) -> None:
    refused(write_gguf(tmp_path / "m.gguf", SMALL, PARTS, metadata=metadata), message)


ROWS = TENSORS["token_embd.weight"]
GATE_UP = np.zeros((4, 68, 64), np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"token_embd.weight": None}, "token_embd.weight is missing"),
        ({"token_embd.weight": ROWS.reshape(-1)}, r"token_embd.weight is \[20480\], expected a matrix"),
    ],
)
def test_embeddings_that_are_refused(tmp_path: Path, tensors: Mapping[str, Any], message: str) -> None:
    refused(write_gguf(tmp_path / "m.gguf", SMALL, PARTS, tensors=tensors), message)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"blk.3.attn_v.weight": None}, "missing: layers.3.self_attn.v_proj.weight"),
        ({"blk.3.indexer.k_proj.weight": None}, "missing: rows 32 to 47 of layers.3.*index_qk_proj"),
        ({"blk.4.nextn.eh_proj.weight": None}, "missing: mtp.fc_embedding.weight"),
        (
            {"blk.4.nextn.eh_proj.weight": np.zeros((64, 64), np.float32)},
            r"eh_proj.weight is \[64, 64\], expected \[64, 128\]",
        ),
        (
            {"output_norm.weight": np.ones(64, np.float32)},
            "output_norm.weight belongs to no part of this model",
        ),
        ({"blk.3.ssm_a": np.ones(6, np.float32)}, "blk.3.ssm_a belongs to no part"),
        ({"blk.0.ssm_b": np.ones(6, np.float32)}, "blk.0.ssm_b belongs to no part"),
        ({"blk.5.attn_q.weight": np.ones((2, 2), np.float32)}, "blk.5.attn_q.weight belongs to no part"),
        (
            {"blk.3.nextn.enorm.weight": np.ones(64, np.float32)},
            "blk.3.nextn.enorm.weight belongs to no part",
        ),
        ({"blk.03.attn_q.weight": np.ones((2, 2), np.float32)}, "blk.03.attn_q.weight belongs to no part"),
        (
            {"blk.0.ffn_gate_up_exps.weight": GATE_UP},
            r"gate_up_exps.weight is \[4, 68, 64\], expected \[4, 64, 64\]",
        ),
        (
            {"blk.0.ffn_gate_up_exps.weight": GATE_UP[:, :32]},
            r"gate_up_exps.weight is \[4, 32, 64\], expected",
        ),
        ({"ple_ngram_embd.0.weight": np.zeros((101, 8), np.float32)}, "is there as one tensor and as shards"),
        (
            {"ple_ngram_embd.8.weight": np.zeros((9, 8), np.float32)},
            "ple_ngram_embd.8.weight belongs to no part",
        ),
        (
            {"blk.0.attn_gate.scale": np.ones(1, np.float32)},
            "attn_gate.scale belongs to a F32 tensor, expected NVFP4",
        ),
        ({"blk.0.nothing.scale": np.ones(1, np.float32)}, "blk.0.nothing.scale belongs to no part"),
        (
            {"token_embd.weight": ROWS[:319], "output.weight": ROWS[:319]},
            "lists 320 tokens, but .* has 319 rows",
        ),
    ],
)
def test_tensors_that_keep_a_model_from_loading(
    tmp_path: Path, tensors: Mapping[str, Any], message: str
) -> None:
    metadata: dict[str, Any] = {}
    if "token_embd.weight" in tensors:  # keep the constants those of the vocabulary
        smaller = small_config(num_hidden_layers=4, num_experts=4, value_heads_tiled=True, vocab_size=319)
        metadata["qwen4exp.ple.layer_multipliers"] = ints(list(ngram_hash(smaller, 1).multipliers), U64)
    path = write_gguf(tmp_path / "m.gguf", SMALL, PARTS, tensors=tensors, metadata=metadata)
    problems = open_checkpoint(path).problems
    assert any(re.search(message, p) for p in problems), problems


@pytest.mark.parametrize("rows", [100, 102])
def test_a_table_head_of_the_wrong_height(tmp_path: Path, rows: int) -> None:
    head = {"ple_ngram_embd.0.weight": np.zeros((rows, 8), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", SMALL, PARTS, per_head=True, tensors=head)
    assert any(
        f"ple_ngram_embd.0.weight is [{rows}, 8], expected [101, 8]" in p
        for p in open_checkpoint(path).problems
    )


@pytest.mark.parametrize("head", [0, 3, 7])
def test_a_table_head_that_is_missing(tmp_path: Path, head: int) -> None:
    gone = {f"ple_ngram_embd.{head}.weight": None}
    path = write_gguf(tmp_path / "m.gguf", SMALL, PARTS, per_head=True, tensors=gone)
    assert len(open_checkpoint(path).problems) == 1


def test_a_combiner_that_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    """128 columns are two blocks of 64; with 32 columns each half would end inside a block."""
    narrow = small_config(
        num_hidden_layers=4, num_experts=4, value_heads_tiled=True, hidden_size=32, ple_embed_dim=64
    )
    kinds = lambda name: "NVFP4" if "eh_proj" in name else "F32"  # noqa: E731
    path = write_gguf(tmp_path / "m.gguf", narrow, random_parts(narrow), kind=kinds)
    found = open_checkpoint(path).problems
    assert any(
        "eh_proj.weight: rows of 32 elements are no whole number of nvfp4_gguf blocks" in p for p in found
    )


@pytest.mark.parametrize("factor", [np.ones(3, np.float32), np.ones((4, 1), np.float32)])
def test_factors_of_the_wrong_shape(tmp_path: Path, factor: np.ndarray) -> None:
    extra = {"blk.0.ffn_up_exps.scale": factor}
    path = write_gguf(tmp_path / "m.gguf", SMALL, PARTS, kind="NVFP4", tensors=extra)
    message = f"ffn_up_exps.scale is F32 {list(factor.shape)}, expected F32 [1] or F32 [4]"
    assert any(message in p for p in open_checkpoint(path).problems)


def split(tmp_path: Path, **more: Any) -> list[Path]:
    write_gguf(tmp_path / "m.gguf", SMALL, PARTS, split=50, **more)
    return sorted(tmp_path.glob("m-*.gguf"))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shards = split(tmp_path)
    shards[2].unlink()
    message = f"{shards[2]} is missing: {shards[0].name} is the first of {len(shards)} shards"
    with pytest.raises(NextFitError, match=re.escape(message)):
        read_gguf(shards[0])


def test_another_shard_than_the_first_is_refused(tmp_path: Path) -> None:
    shards = split(tmp_path)
    n = len(shards)
    refused(shards[1], f"is shard 2 of {n}: give m-00001-of-{n:05d}.gguf")


def test_renamed_shards_are_refused(tmp_path: Path) -> None:
    shards = split(tmp_path)
    n = len(shards)
    plain = shards[0].rename(tmp_path / "renamed.gguf")
    refused(plain, f"says that it is shard 1 of {n}: expected a name like X-00001-of-{n:05d}.gguf")
    other = plain.rename(tmp_path / "m-00001-of-00099.gguf")
    refused(other, f"says that it is shard 1 of {n}")
    single = write_gguf(tmp_path / "s-00002-of-00003.gguf", SMALL, PARTS)
    refused(single, "says that it is shard 1 of 1")


def test_shards_in_the_wrong_place_are_refused(tmp_path: Path) -> None:
    shards = split(tmp_path)
    shutil.copy(shards[2], shards[1])
    with pytest.raises(NextFitError, match=re.escape(f"{shards[1]}: split.no is 2, expected 1")):
        read_gguf(shards[0])


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    shards = split(tmp_path)
    raw = shards[1].read_bytes()
    number = raw.index(b"split.no") + len("split.no") + 4  # u16, after the key and its type
    shards[2].write_bytes(raw[:number] + b"\2\0" + raw[number + 2 :])
    message = f"tensor .* is in {re.escape(str(shards[1]))} and in {re.escape(str(shards[2]))}"
    with pytest.raises(NextFitError, match=message):
        read_gguf(shards[0])


def test_a_wrong_total_of_tensors_is_refused(tmp_path: Path) -> None:
    shards = split(tmp_path)
    raw = shards[0].read_bytes()
    at = raw.index(b"split.tensors.count") + len("split.tensors.count") + 4
    count = int.from_bytes(raw[at : at + 4], "little")
    shards[0].write_bytes(raw[:at] + (count + 1).to_bytes(4, "little") + raw[at + 4 :])
    refused(shards[0], f"split.tensors.count is {count + 1}, expected {count}")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("two", "split.count is 'two', expected a count"),
        (Value(I32, -1), "split.count is -1, expected a count"),
    ],
)
def test_a_split_count_that_is_none(tmp_path: Path, value: Any, message: str) -> None:
    refused(write_gguf(tmp_path / "m.gguf", SMALL, PARTS, metadata={"split.count": value}), message)


def test_a_split_of_too_many_files(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-60000.gguf"
    write_gguf(path, SMALL, PARTS, metadata={"split.count": 60000})
    refused(path, "split.count is 60000")


def test_folders_without_one_model_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, "expected the GGUF files of one model, found none")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    refused(tmp_path, "expected the GGUF files of one model, found a.gguf, b.gguf")


def test_a_draft_head_is_no_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "mtp.gguf", SMALL, PARTS, draft="only")
    refused(path, "holds a draft head only: give the model's file, and this one as its draft")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"qwen4exp.nextn_predict_layers": None}, "has no draft head: nextn_predict_layers is missing"),
        ({"qwen4exp.block_count": 9}, "is the draft head of a model of 8 layers; .* has 4"),
        (
            {"qwen4exp.expert_count": 8},
            "is the draft head of another model: qwen4exp.expert_count is 8, not 4",
        ),
        ({"qwen4exp.rope.freq_base": 10000.0}, "rope.freq_base is 10000.0, not 10000000.0"),
        ({"general.architecture": "qwen3moe"}, "general.architecture is 'qwen3moe'"),
    ],
)
def test_a_draft_head_of_another_model(tmp_path: Path, metadata: Mapping[str, Any], message: str) -> None:
    model = write_gguf(tmp_path / "m.gguf", SMALL, PARTS, draft="without")
    head = write_gguf(tmp_path / "mtp-m.gguf", SMALL, PARTS, draft="bare", metadata=metadata)
    refused(model, message, head)


def test_a_draft_head_with_another_vocabulary(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "m.gguf", SMALL, PARTS, draft="without")
    other = {"token_embd.weight": ROWS[:300]}
    head = write_gguf(tmp_path / "mtp-m.gguf", SMALL, PARTS, draft="only", tensors=other)
    refused(model, "is the draft head of another model: token_embd.weight has 300 rows, not 320", head)


def test_tensors_that_a_draft_file_should_not_hold(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "m.gguf", SMALL, PARTS, draft="without")
    more = {"blk.0.attn_gate.weight": TENSORS["blk.0.attn_gate.weight"]}
    head = write_gguf(tmp_path / "mtp-m.gguf", SMALL, PARTS, draft="bare", tensors=more)
    problems = open_checkpoint(model, head).problems
    assert len(problems) == 1 and "blk.0.attn_gate.weight belongs to no part of this model" in problems[0]
