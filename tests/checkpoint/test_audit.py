"""The audit on what a reader might hand it, whatever the file format."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from nextfit.checkpoint import Checkpoint, open_checkpoint
from nextfit.checkpoint.audit import audit
from nextfit.checkpoint.load import load_weights
from nextfit.checkpoint.regions import targets
from nextfit.checkpoint.source import Piece
from nextfit.errors import CheckpointError

FIXTURES = Path(__file__).parents[1] / "fixtures"
GGUF = FIXTURES / "micro-Q4_K_M.gguf"
INDEXER = "layers.3.self_attn.indexer.index_qk_proj.weight"


def with_data(piece: Piece, **changes: object) -> Piece:
    data = msgspec.structs.replace(piece.sources["data"].members[0], **changes)
    return replace(piece, sources={**piece.sources, "data": data})


def problems(part: str, change: Callable[[list[Piece]], list[Piece]]) -> list[str]:
    """What the audit says when the pieces of one part are changed."""
    checkpoint = open_checkpoint(GGUF)
    assert not checkpoint.problems
    own = sorted((p for p in checkpoint.tensors.pieces if p.part == part), key=lambda p: p.rows or (0, 0))
    rest = [p for p in checkpoint.tensors.pieces if p.part != part]
    tensors = replace(checkpoint.tensors, pieces=rest + change(own))
    return audit(checkpoint.config, tensors, targets(checkpoint.slots()))


BROKEN: list[tuple[str, Callable[[list[Piece]], list[Piece]], str]] = [
    ("lm_head.weight", lambda p: [with_data(p[0], nbytes=100)], "has 100 bytes, expected 107520"),
    ("lm_head.weight", lambda p: [with_data(p[0], shape=(511, 256))], "is [511, 256], expected [512, 256]"),
    (
        "hyper_connection_mixer.input_mix_weight_up.weight",
        lambda p: [replace(p[0], format="q4_k")],
        "rows of 32",
    ),
    (INDEXER, lambda p: p[:1], f"missing: rows 64 to 95 of {INDEXER}"),
    (INDEXER, lambda p: p[1:], f"missing: rows 0 to 63 of {INDEXER}"),
    (INDEXER, lambda p: [*p, p[1]], f"twice: rows 64 to 95 of {INDEXER}"),
    ("mtp.fc_hidden.weight", lambda p: [], "missing: mtp.fc_hidden.weight"),
    ("mtp.fc_hidden.weight", lambda p: [], "nextn.eh_proj.weight: columns 256 to 511 belong to nothing"),
    (
        "mtp.fc_hidden.weight",
        lambda p: [replace(p[0], columns=(256, 600))],
        "is [256, 512], expected [256, 600]",
    ),
    (
        "layers.0.mlp.experts.up_proj",
        lambda p: [replace(p[0], expert=0)],
        "is [4, 256, 256], expected [256, 256]",
    ),
]


@pytest.mark.parametrize(("part", "change", "words"), BROKEN)
def test_audit(part: str, change: Callable[[list[Piece]], list[Piece]], words: str) -> None:
    found = problems(part, change)
    assert any(words in p for p in found), found


def block_with_nan(folder: Path, file: str, format: str) -> Checkpoint:
    """A copy of a GGUF fixture with one NaN scale in its first tensor of `format`."""
    copy = folder / file
    shutil.copy(FIXTURES / file, copy)
    checkpoint = open_checkpoint(copy)
    mapped = "layers.1.ple.ple_embedding.ngram_embedding"
    piece = next(p for p in checkpoint.tensors.pieces if p.format == format and p.part != mapped)
    at = {"q6_k": 208, "q3_k": 108, "q2_k": 80}.get(format, 0)  # of the half d in a block
    raw = bytearray(copy.read_bytes())
    start = piece.sources["data"].members[0].offset + at
    raw[start : start + 2] = b"\x00\x7e"  # a half that is no number
    copy.write_bytes(raw)
    return checkpoint


@pytest.mark.parametrize(
    ("file", "format"),
    [
        ("micro-Q4_K_M.gguf", "q4_k"),
        ("micro-Q4_K_M.gguf", "q5_0"),
        ("micro-Q4_K_M.gguf", "q6_k"),
        ("micro-IQ4_XS.gguf", "iq4_xs"),
        ("micro-IQ4_XS.gguf", "iq4_nl"),
        ("micro-Q2_K.gguf", "q2_k"),
        ("micro-Q2_K.gguf", "q3_k"),
        ("micro-Q2_K.gguf", "q4_0"),
    ],
)
def test_nan_in_a_block_is_refused(tmp_path: Path, file: str, format: str) -> None:
    with pytest.raises(CheckpointError, match="has a scale that is not finite"):
        load_weights(block_with_nan(tmp_path, file, format))
