"""One wrong field in a valid header: a clear refusal or the same model, never anything else."""

from __future__ import annotations

import copy
import json
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nextfit.checkpoint import open_checkpoint, safetensors
from nextfit.checkpoint.load import load_weights
from nextfit.checkpoint.packed import Packed, Stack
from nextfit.checkpoint.table import NgramTable
from nextfit.errors import CheckpointError, ConfigError
from tests.support.checkpoint_writer import write_safetensors
from tests.support.damage import model

FUZZ = settings(
    max_examples=250,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 5, 7, 8, 16, 31, 33, 64, 2**31, 2**32, 2**63, 2**64, 10**30])
VALUES: st.SearchStrategy[Any] = st.one_of(
    NUMBERS,
    st.sampled_from(
        [None, True, False, "", "x", "F32", "U8", "I64", [], {}, [[]], [0], [-1, 4], 0.5, 1e308, float("nan")]
    ),
    st.integers(-(2**40), 2**40),
)


@dataclass(frozen=True)
class Written:
    """A sound checkpoint: its parts, and the weights that come of it."""

    data: bytes
    header: dict[str, Any]
    config: dict[str, Any]
    bits: dict[str, bytes]


@lru_cache(maxsize=4)
def written(quant: Any, root: str) -> Written:
    folder = Path(root) / f"sound-{quant}"
    model(quant).write(folder)
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    config = json.loads((folder / "config.json").read_text())
    return Written(raw[8 + length :], json.loads(raw[8 : 8 + length]), config, bits(folder))


def bits(folder: Path) -> dict[str, bytes]:
    """Every loaded weight as bytes."""
    found = {}
    for name, weight in load_weights(open_checkpoint(folder)).items():
        for i, part in enumerate(weight.parts if isinstance(weight, Stack) else [weight]):
            held: dict[str, Tensor]
            if isinstance(part, NgramTable):
                held = {"rows": part.gather(torch.arange(part.shape[0]), torch.float32)}
            else:
                held = part.parts if isinstance(part, Packed) else {"": part}
            for role, x in held.items():
                found[f"{name}.{i}.{role}"] = x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return found


def write(folder: Path, config: Any, header: Any, data: bytes) -> None:
    folder.mkdir(exist_ok=True)
    text = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def outcome(folder: Path) -> str | dict[str, bytes]:
    """The refusal or the weights. Any other exception fails the test."""
    try:
        return bits(folder)
    except (CheckpointError, ConfigError) as error:
        return str(error)


@pytest.mark.parametrize("quant", [None, "modelopt", "fp8"])
@FUZZ
@given(draw=st.data())
def test_header_fields(quant: Any, draw: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp()
    sound = written(quant, str(root))
    changed = copy.deepcopy(sound.header)
    name = draw.draw(st.sampled_from(sorted(changed)))
    what = draw.draw(st.sampled_from(["dtype", "shape", "data_offsets", "size", "offset", "name", "gone"]))
    if what in ("dtype", "shape", "data_offsets"):
        changed[name][what] = draw.draw(VALUES)
    elif what in ("size", "offset"):
        numbers = changed[name]["shape" if what == "size" else "data_offsets"]
        if numbers:
            numbers[draw.draw(st.integers(0, len(numbers) - 1))] = draw.draw(VALUES)
    elif what == "name":
        changed[draw.draw(st.sampled_from(["x", "", "model.", "lm_head", name + "s", name[1:]]))] = (
            changed.pop(name)
        )
    else:
        del changed[name]
    folder = root / f"fuzz-{quant}"
    write(folder, sound.config, changed, sound.data)
    found = outcome(folder)
    assert isinstance(found, str) or found == sound.bits


TWO = '{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}'
NONE = '{"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'
JUNK: list[tuple[str, str | None]] = [
    ("", ""),
    ('"a": {}', None),
    ('"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}', None),
    ('"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}', None),
    ('"a": {"dtype": "F32", "shape": [-0], "data_offsets": [0, 0]}', "a"),
    ('"a": {"dtype": "F32", "shape": [18446744073709551616], "data_offsets": [0, 8]}', None),
    ('"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}', None),
    ('"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}', None),
    ('"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}', None),
    ('"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "a": {"b": [{}]}}', None),
    ('"a": @', "a"),
    ('"": @', ""),
    ('"ä\U0001f600": @', "ä\U0001f600"),
    ('"\\u00e4": @', "ä"),
    ('"a:b": @', "a:b"),
    ('"a": {"d\\u0074ype": "F32", "shape": [2], "data_offsets": [0, 8]}', "a"),
    # twice: a tensor, also of no size or spelled otherwise; a field
    ('"a": @, "a": @', None),
    ('"a": @0, "\\u0061": @', None),
    ('"a": {"dtype": "F16", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}', None),
    # the metadata: anywhere, anything; but not twice, and nothing in it twice
    ('"__metadata__": {"format": "pt"}, "a": @', "a"),
    ('"a": @, "__metadata__": {"x": {"y": [1]}}', "a"),
    ('"__metadata__": 3, "a": @', "a"),
    ('"__metadata__": {"x": "}:{"}, "a": @', "a"),
    ('"__metadata__": {"x": "1", "x": "2"}, "a": @', None),
    ('"__metadata__": {}, "__metadata__": {}, "a": @', None),
    ('"__metadata__": {x}, "a": @', None),
    ('"a": @, "__metadata__": @0', "a"),
    ('"__metadata__": {"format": "pt"},', None),
]


@pytest.mark.parametrize(("entries", "name"), JUNK)
def test_odd_headers(entries: str, name: str | None, tmp_path: Path) -> None:
    """The tensor `name` of two numbers (of none, or no tensor), or a refusal; both readers agree. @ is an entry."""
    text = f"{{{entries.replace('@0', NONE).replace('@', TWO)}}}".encode()
    size = 8 if entries and "[-0]" not in entries else 0
    file = tmp_path / "x.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    said: list[Any] = []
    for reader in (safetensors._usual_entries, lambda _: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(safetensors, "_usual_entries", reader)
            try:
                said.append([(n, s.offset, s.nbytes) for n, s in safetensors.read_header(file).items()])
            except CheckpointError as error:
                said.append(str(error))
    assert said[0] == said[1]
    if name is None:
        assert isinstance(said[0], str) and str(file) in said[0]
    else:
        assert said[0] == ([(name, 8 + len(text), size)] if entries else [])


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('{"weight_map": {"a": "x.safetensors"}}', None),
        ('{"metadata": {"total_size": 8}, "weight_map": {"a": "x.safetensors"}}', None),
        ('{"metadata": {"total_size": {"a": [8]}}, "weight_map": {"a": "x.safetensors"}}', None),
        ('{"metadata": null, "more": [1], "weight_map": {"a": "x.safetensors"}}', None),
        ('{"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}}', "a is there twice"),
        ('{"weight_map": {"a": "x.safetensors"}, "weight_map": {"a": "x.safetensors"}}', "is there twice"),
        ('{"weight_map": {}}', "weight_map is {}"),
        ('{"weight_map": {"a": ["x.safetensors"]}}', "a is in ['x.safetensors']"),
        ('{"weight_map": {"a": "x.safetensors", "b": null}}', "b is in None"),
    ],
)
def test_odd_indices(text: str, refused: str | None, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x.safetensors", {"a": torch.zeros(2)})
    (tmp_path / safetensors.INDEX).write_text(text)
    if refused is None:
        assert list(safetensors.read_safetensors(tmp_path)) == ["a"]
        return
    with pytest.raises(CheckpointError) as error:
        safetensors.read_safetensors(tmp_path)
    assert refused in str(error.value)


@FUZZ
@given(draw=st.data())
def test_config_fields(draw: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp()
    sound = written(None, str(root))
    changed = copy.deepcopy(sound.config)
    name = draw.draw(st.sampled_from(sorted(changed)))
    if name == "rope_parameters" and draw.draw(st.booleans()):
        inner = draw.draw(st.sampled_from(sorted(changed[name])))
        changed[name][inner] = draw.draw(VALUES)
    elif isinstance(changed[name], list) and draw.draw(st.booleans()):
        changed[name][0] = draw.draw(VALUES)
    else:
        changed[name] = draw.draw(VALUES)
    folder = root / "fuzz-config"
    write(folder, changed, sound.header, sound.data)
    found = outcome(folder)
    if not isinstance(found, str):
        assert found.items() <= sound.bits.items()  # without its draft head if the configuration says so


@pytest.mark.parametrize("cut", range(1, 11))
def test_truncated(cut: int, tmp_path: Path) -> None:
    """Cut at ten places: in the length, in the header, in the data, and one byte before the end."""
    model(None).write(tmp_path / "m")
    file = tmp_path / "m/model.safetensors"
    raw = file.read_bytes()
    file.write_bytes(
        raw[: len(raw) - 1 if cut == 10 else [5, 8, 100][cut - 1] if cut < 4 else len(raw) * cut // 10]
    )
    found = outcome(tmp_path / "m")
    assert isinstance(found, str) and "model.safetensors" in found and "truncated or damaged" in found


def test_random_bytes_in_the_header(tmp_path: Path) -> None:
    sound = written(None, str(tmp_path))
    g = torch.Generator().manual_seed(0)
    write(tmp_path / "m", sound.config, sound.header, sound.data)
    file = tmp_path / "m/model.safetensors"
    raw = file.read_bytes()
    refused = 0
    for _ in range(200):
        at = int(torch.randint(0, len(raw) - len(sound.data), (1,), generator=g))
        value = int(torch.randint(0, 256, (1,), generator=g))
        file.write_bytes(raw[:at] + bytes([value]) + raw[at + 1 :])
        found = outcome(tmp_path / "m")
        refused += isinstance(found, str)
        assert isinstance(found, str) or found == sound.bits
    assert refused > 150
