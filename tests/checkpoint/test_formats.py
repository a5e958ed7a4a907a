"""Sizes of the number formats, against PyPI gguf's table and torch's dtypes."""

import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from nextfit.checkpoint.formats import FORMATS, GGML_TYPES, Scale, data_bytes, row_bytes, scale_shape
from nextfit.errors import CheckpointError

# what this format is called in FORMATS where the name alone would be ambiguous
RENAMED = {"nvfp4": "nvfp4_gguf"}


def test_every_ggml_type_has_its_number_and_name() -> None:
    theirs = {t.value: RENAMED.get(t.name.lower(), t.name.lower()) for t in GGMLQuantizationType}
    assert theirs == GGML_TYPES


def test_block_sizes_are_ggml_s() -> None:
    for number, name in GGML_TYPES.items():
        if name in FORMATS:
            f = FORMATS[name]
            assert (f.block, f.block_bytes) == GGML_QUANT_SIZES[GGMLQuantizationType(number)], name


def test_the_types_that_no_public_file_has_are_left_out() -> None:
    assert {n for n in GGML_TYPES.values() if n not in FORMATS} == {"q8_1", "q8_k", "tq1_0", "tq2_0", "q1_0"}


def test_plain_formats_are_as_wide_as_their_dtype() -> None:
    for f in FORMATS.values():
        assert f.kind in ("float", "integer", "block", "scaled")
        if f.kind in ("float", "integer"):
            assert f.block_bytes == getattr(torch, f.dtype).itemsize, f.name


@pytest.mark.parametrize(
    ("name", "columns", "size"),
    [("f32", 3, 12), ("q4_k", 2560, 1440), ("q6_k", 256, 210), ("nvfp4", 640, 320), ("fp8_block", 300, 300)],
)
def test_row_bytes(name: str, columns: int, size: int) -> None:
    assert row_bytes(name, columns) == size
    assert data_bytes(name, (7, 2, columns)) == 14 * size


def test_a_scalar_is_one_element() -> None:
    assert data_bytes("f32", ()) == 4


def test_a_row_must_be_whole_blocks() -> None:
    with pytest.raises(
        CheckpointError, match="rows of 320 elements are no whole number of q4_k blocks of 256"
    ):
        row_bytes("q4_k", 320)


def test_scale_shapes() -> None:
    scales = FORMATS["nvfp4"].scales
    assert scale_shape(scales["scale"], (4, 8, 64)) == (4, 8, 4)
    assert scale_shape(scales["scale_2"], (4, 8, 64)) == (4, 8, 1)
    assert scale_shape(Scale("float32", 128), (8, 130)) == (8, 2)
