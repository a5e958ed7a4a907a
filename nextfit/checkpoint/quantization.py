"""Which quantised layout a weight of a safetensors file has, told by its tensors, not by a config's promise.

Layouts: plain floats, block FP8 (`weight_scale_inv`), FP8 with one scale, NVFP4 as ModelOpt and as
compressed-tensors write it (spec/gguf.md section 7). Any other is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from nextfit.checkpoint.source import PerExpert, Source
from nextfit.errors import CheckpointError

METHODS = ("modelopt", "compressed-tensors", "fp8")
ACTIVATION_SCALES = ("input_scale", "input_global_scale")
# the tensors that together make one weight, without its name
LEAVES = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
    "weight_zero_point",
    "weight_shape",
    *ACTIVATION_SCALES,
)
FLOATS = ("f64", "f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Layout:
    format: str  # a key of `formats.FORMATS`
    sources: dict[str, Source | PerExpert]  # by role, see `source.Piece`


def _describe(group: Mapping[str, Source | PerExpert]) -> str:
    return ", ".join(f"{leaf} {s.format.upper()} {list(s.shape)}" for leaf, s in group.items())


def _only(group: Mapping[str, Source | PerExpert], *leaves: str) -> bool:
    return set(group) == set(leaves)


def _scaled_fp8(group: Mapping[str, Source | PerExpert]) -> Layout | str:
    """The layout of E4M3 codes, or the name of what this is instead."""
    if _only(group, "weight", "weight_scale_inv"):
        if group["weight_scale_inv"].format not in FLOATS:
            return "FP8 with scales of an unknown type"
        return Layout("fp8_block", {"data": group["weight"], "scale": group["weight_scale_inv"]})
    if not _only(group, "weight", "weight_scale"):
        return "FP8 without a scale" if _only(group, "weight") else "FP8 with unknown tensors beside it"
    scale = group["weight_scale"]
    if scale.format == "u8":
        return "MXFP8"
    if scale.format not in FLOATS:
        return "FP8 with scales of an unknown type"
    if prod(scale.members[0].shape) != 1:
        return "FP8 with a scale per row"
    return Layout("fp8_tensor", {"data": group["weight"], "scale": scale})


def _nvfp4(group: Mapping[str, Source | PerExpert], data: str, second: str, role: str) -> Layout | str:
    if not _only(group, data, "weight_scale", second):
        missing = [leaf for leaf in ("weight_scale", second) if leaf not in group]
        return (
            f"4-bit codes without {' and '.join(missing)}" if missing else "4-bit codes of an unknown layout"
        )
    if group["weight_scale"].format != "f8_e4m3" or group[second].format not in FLOATS:
        return "4-bit codes with scales of an unknown type"
    return Layout("nvfp4", {"data": group[data], "scale": group["weight_scale"], role: group[second]})


def _detect(group: Mapping[str, Source | PerExpert]) -> Layout | str:
    if "weight" in group and "weight_packed" in group:
        return "two layouts at once"
    if "weight_packed" in group:
        packed = group["weight_packed"]
        if packed.format != "u8":
            return f"integers packed in {packed.format.upper()} (INT4 and its like)"
        return _nvfp4(group, "weight_packed", "weight_global_scale", "inverse_scale_2")
    if "weight" not in group:
        return "scales without a weight"
    weight = group["weight"]
    if weight.format in FLOATS:
        return Layout(weight.format, {"data": weight}) if len(group) == 1 else "floats with scales"
    if weight.format == "f8_e4m3":
        return _scaled_fp8(group)
    if weight.format == "u8":
        return _nvfp4(group, "weight", "weight_scale_2", "scale_2")
    return f"{weight.format.upper()} values"


def detect(name: str, group: Mapping[str, Source | PerExpert]) -> Layout:
    """The layout of the weight `name` whose tensors are `group` (by leaf, activation scales left out).

    Raises CheckpointError naming the weight and what its tensors look like.
    """
    found = _detect(group)
    if isinstance(found, Layout):
        return found
    file = next(iter(group.values())).members[0].file
    raise CheckpointError(f"{file}: {name}: {found} cannot be read ({_describe(group)})")


def check_method(raw: Mapping[str, object], file: str) -> list[str]:
    """Problems of a config's `quantization_config` that the tensors alone would not show."""
    method = raw.get("quant_method")
    if method not in METHODS:
        expected = ", ".join(METHODS)
        return [f"{file}: quantization_config.quant_method is {method!r}, expected one of {expected}"]
    block = raw.get("weight_block_size")
    if block not in (None, [128, 128]):
        return [f"{file}: quantization_config.weight_block_size is {block!r}, expected [128, 128]"]
    return []
