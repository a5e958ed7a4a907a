"""The number formats of model files: sizes and layouts, without torch.

A format is *float* or *integer* (one number after the other), *block* (GGUF: rows of self-contained
quantised blocks, spec/gguf.md section 3) or *scaled* (codes with their scales in tensors beside them).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Literal

from nextfit.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Scale:
    """Scales kept beside the codes of a weight, one row of them for each row of the weight.

    Resident shape: [*leading axes, rows, ceil(columns / columns_each)]; `columns_each` 0 means one
    scale for the whole row. Where a file has fewer, one for many rows, the loader repeats them.
    """

    dtype: str  # name of the torch dtype it is resident in
    columns_each: int
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """How numbers are stored. `block` consecutive elements of a row take `block_bytes` bytes of "data"."""

    name: str
    kind: Literal["float", "integer", "block", "scaled"]
    block: int
    block_bytes: int
    dtype: str  # name of the torch dtype of the resident "data"
    scales: dict[str, Scale] = field(default_factory=dict)


def _plain(kind: Literal["float", "integer"], name: str, size: int, dtype: str) -> Format:
    return Format(name, kind, 1, size, dtype)


_ONE_SCALE = {"scale": Scale("float32", 0)}

_FORMATS = (
    _plain("float", "f64", 8, "float64"),
    _plain("float", "f32", 4, "float32"),
    _plain("float", "f16", 2, "float16"),
    _plain("float", "bf16", 2, "bfloat16"),
    _plain("float", "f8_e4m3", 1, "float8_e4m3fn"),
    _plain("float", "f8_e5m2", 1, "float8_e5m2"),
    _plain("integer", "u8", 1, "uint8"),
    _plain("integer", "i8", 1, "int8"),
    _plain("integer", "i16", 2, "int16"),
    _plain("integer", "i32", 4, "int32"),
    _plain("integer", "i64", 8, "int64"),
    *(
        Format(name, "block", block, size, "uint8")
        for name, block, size in (
            ("q4_0", 32, 18),
            ("q4_1", 32, 20),
            ("q5_0", 32, 22),
            ("q5_1", 32, 24),
            ("q8_0", 32, 34),
            ("q2_k", 256, 84),
            ("q3_k", 256, 110),
            ("q4_k", 256, 144),
            ("q5_k", 256, 176),
            ("q6_k", 256, 210),
            ("iq1_s", 256, 50),
            ("iq1_m", 256, 56),
            ("iq2_xxs", 256, 66),
            ("iq2_xs", 256, 74),
            ("iq2_s", 256, 82),
            ("iq3_xxs", 256, 98),
            ("iq3_s", 256, 110),
            ("iq4_nl", 32, 18),
            ("iq4_xs", 256, 136),
            ("mxfp4", 32, 17),
        )
    ),
    # a tensor, or each expert of it, may have one more factor beside it
    Format("nvfp4_gguf", "block", 64, 36, "uint8", {"scale": Scale("float32", 0, optional=True)}),
    # two codes per byte, the even element in the low half; value = code * scale * scale_2
    Format(
        "nvfp4",
        "scaled",
        16,
        8,
        "uint8",
        {"scale": Scale("float8_e4m3fn", 16), "scale_2": Scale("float32", 0)},
    ),
    # one scale per 128 x 128 values
    Format("fp8_block", "scaled", 1, 1, "float8_e4m3fn", {"scale": Scale("float32", 128)}),
    Format("fp8_tensor", "scaled", 1, 1, "float8_e4m3fn", _ONE_SCALE),
)

FORMATS: dict[str, Format] = {f.name: f for f in _FORMATS}

FP8_BLOCK_ROWS = 128  # rows that share a scale in a file of format fp8_block

# ggml's numbers of the types, all of them: one that is not in FORMATS is refused by its name
GGML_TYPES: dict[int, str] = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    9: "q8_1",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    15: "q8_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    24: "i8",
    25: "i16",
    26: "i32",
    27: "i64",
    28: "f64",
    29: "iq1_m",
    30: "bf16",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
    40: "nvfp4_gguf",
    41: "q1_0",
}


def row_bytes(name: str, columns: int) -> int:
    """Bytes of the "data" of one row of `columns` elements.

    Raises CheckpointError where the row is not a whole number of blocks.
    """
    f = FORMATS[name]
    if columns % f.block:
        raise CheckpointError(f"rows of {columns} elements are no whole number of {name} blocks of {f.block}")
    return columns // f.block * f.block_bytes


def data_bytes(name: str, shape: tuple[int, ...]) -> int:
    """Bytes of the "data" of a tensor of the logical `shape` (outermost axis first)."""
    return prod(shape[:-1]) * row_bytes(name, shape[-1] if shape else 1)


def scale_shape(scale: Scale, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Resident shape of scales of a weight of the logical `shape` [..., rows, columns]."""
    columns = -(-shape[-1] // scale.columns_each) if scale.columns_each else 1
    return (*shape[:-1], columns)
