"""One wrong field anywhere in a header: refused, or the same model as before."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextfit.checkpoint import Checkpoint, open_checkpoint
from nextfit.errors import NextFitError
from tests.support.gguf_writer import write_gguf
from tests.support.random_model import random_parts, small_config

_WIDTH = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class Field:
    """A number in the header. A wrong `structure` never gives another model; a wrong value may."""

    what: str
    offset: int
    form: str
    structure: bool

    @property
    def size(self) -> int:
        return struct.calcsize(f"<{self.form}")


def fields(raw: bytes) -> Iterator[Field]:
    """Every number of a sound header, in order; a walk of its own, with no checks."""
    at = 4

    def number(what: str, form: str, structure: bool = True) -> Any:
        nonlocal at
        found.append(Field(what, at, form, structure))
        (value,) = struct.unpack_from(f"<{form}", raw, at)
        at += struct.calcsize(f"<{form}")
        return value

    def string(what: str) -> str:
        nonlocal at
        length = number(f"length of {what}", "Q")
        at += length
        return raw[at - length : at].decode()

    found: list[Field] = []
    number("version", "I")
    tensors, entries = number("tensors", "Q"), number("entries", "Q")
    for _ in range(entries):
        key = string("a key")
        kind, count = number(f"type of {key}", "I"), 1
        if kind == _ARRAY:
            kind, count = number(f"element type of {key}", "I"), number(f"count of {key}", "Q")
        for _ in range(count):
            if kind == _STRING:
                string(key)
            else:
                number(key, _WIDTH[kind], structure=False)
    for _ in range(tensors):
        name = string("a tensor name")
        for _ in range(number(f"axes of {name}", "I")):
            number(f"size of {name}", "Q")
        number(f"type of {name}", "I")
        number(f"offset of {name}", "Q")
    yield from found


@dataclass(frozen=True)
class Model:
    path: Path
    raw: bytes  # the beginning of the file, its header in it
    fields: dict[str, list[Field]]
    before: Checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    c = small_config(num_hidden_layers=4, num_experts=4, value_heads_tiled=True)
    path = write_gguf(tmp_path_factory.mktemp("fuzz") / "m.gguf", c, random_parts(c))
    raw = path.read_bytes()[: 1 << 17]
    by_name: dict[str, list[Field]] = {}
    for field in fields(raw):
        by_name.setdefault(field.what, []).append(field)
    return Model(path, raw, by_name, open_checkpoint(path))


def summary(c: Checkpoint) -> tuple[Any, ...]:
    """The model: its configuration and where each piece of it lies.

    A number of other width that takes as much room up to the alignment (six halves for six floats) cannot
    be told from the header.
    """
    where = [
        [
            (role, s.name, s.shape, s.offset, -(-s.nbytes // 32))
            for role, x in p.sources.items()
            for s in x.members
        ]
        for p in c.tensors.pieces
    ]
    return c.config, c.generation, [(p.part, p.rows, p.columns) for p in c.tensors.pieces], where


def opened_with(path: Path, offset: int, new: bytes) -> Checkpoint | None:
    """The checkpoint after `new` was written at `offset`, None if it is refused; the file is restored."""
    fd = os.open(path, os.O_RDWR)
    try:
        old = os.pread(fd, len(new), offset)
        os.pwrite(fd, new, offset)
        try:
            found = open_checkpoint(path)
            return None if found.problems else found
        except NextFitError as error:
            assert str(error)
            return None
        finally:
            os.pwrite(fd, old, offset)
    finally:
        os.close(fd)


_EDGES = [
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    255,
    1 << 15,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    (1 << 64) - 1,
]
_MUTATIONS: list[Callable[[int], int]] = [
    *(lambda old, e=e: e for e in _EDGES),
    *(lambda old, d=d: old + d for d in (-64, -32, -8, -1, 1, 8, 32, 64)),
    *(lambda old, b=b: old ^ (1 << b) for b in range(64)),
]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_wrong_field_is_refused_or_changes_nothing(model: Model, data: st.DataObject) -> None:
    # most fields belong to tokens: draw a name first, so that every kind of field has its turn
    field = data.draw(st.sampled_from(model.fields[data.draw(st.sampled_from(sorted(model.fields)))]))
    old = model.raw[field.offset : field.offset + field.size]
    new = data.draw(st.sampled_from(_MUTATIONS))(int.from_bytes(old, "little")) % (1 << (8 * field.size))
    found = opened_with(model.path, field.offset, new.to_bytes(field.size, "little"))
    if found is not None and field.structure:
        assert summary(found) == summary(model.before), f"{field} {old!r} -> {new}"


def test_each_kind_of_structural_field_is_checked(model: Model) -> None:
    """Also where hypothesis does not look: counts, lengths, types, sizes, offsets, a step and a bit off."""
    for found_fields in model.fields.values():
        field = found_fields[0]
        old = int.from_bytes(model.raw[field.offset : field.offset + field.size], "little")
        for new in (old + 1, old ^ (1 << (8 * field.size - 1))) if field.structure else ():
            found = opened_with(model.path, field.offset, new.to_bytes(field.size, "little"))
            assert found is None or summary(found) == summary(model.before), f"{field} {old} -> {new}"


def test_random_bytes_in_a_header_raise_nothing_else(model: Model) -> None:
    rng = random.Random(0)
    end = max(f.offset for found in model.fields.values() for f in found) + 8
    for _ in range(300):
        new = bytes(rng.randrange(256) for _ in range(rng.choice([1, 2, 8])))
        opened_with(model.path, rng.randrange(end), new)
