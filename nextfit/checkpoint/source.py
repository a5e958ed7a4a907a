"""Where bytes lie in files and which part of the model they are. No torch: headers only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec


class Source(msgspec.Struct, frozen=True, gc=False):
    """One tensor as a file declares it; its reader has checked that it lies inside the file.

    `shape` is in torch order, outermost first ([out, in] for a linear layer), and counts elements for
    float and integer types, also for GGUF block types; packed safetensors codes keep their stored shape.
    """

    name: str  # as spelled in the file
    format: str  # a key of `formats.FORMATS`
    shape: tuple[int, ...]
    file: Path
    offset: int  # bytes from the start of the file
    nbytes: int

    @property
    def members(self) -> tuple[Source, ...]:
        """The tensors of files that this is: itself."""
        return (self,)


@dataclass(frozen=True, slots=True)
class PerExpert:
    """Tensors of one format and shape, one for each expert, that stand for one [experts, ...]."""

    name: str  # of all of them, with * for the number of the expert
    members: tuple[Source, ...]

    @property
    def format(self) -> str:
        return self.members[0].format

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.members), *self.members[0].shape)

    @property
    def nbytes(self) -> int:
        return len(self.members) * self.members[0].nbytes


def distinct(sources: Iterable[Source | PerExpert]) -> list[Source | PerExpert]:
    """Every one once, however many pieces share it."""
    return list({(s.members[0].file, s.name): s for s in sources}.values())


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of files that fill (a region of) one `names.Part`.

    `sources` by role: "data" always; "scale" and "scale_2" where the format keeps scales apart
    ("inverse_scale_2" where the file holds 1 / scale_2 instead).
    """

    part: str
    format: str
    sources: Mapping[str, Source | PerExpert]
    expert: int | None = None  # fills only this expert of an EXPERTS part
    rows: tuple[int, int] | None = None  # fills only these rows of the part
    source_rows: tuple[int, int] | None = None  # takes only these rows of the source
    columns: tuple[int, int] | None = None  # takes only these columns of the source
    # how the stored values relate to the slot's kind: a GGUF norm already holds 1 + w, its ssm_a -exp(A_log)
    applied: bool = False
    shard: int | None = None  # n-gram table: number of this shard or head, in row order


@dataclass(frozen=True, slots=True)
class Ignored:
    """A tensor that is deliberately not loaded, and why."""

    source: Source | PerExpert
    reason: str


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What a reader found: pieces for the model, tensors left out on purpose, and tensors nobody knows.

    `warnings` are read and go on; `problems` keep the model from being loaded.
    """

    pieces: list[Piece] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    unknown: list[Source | PerExpert] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
