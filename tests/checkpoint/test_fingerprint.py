"""The fingerprint of weights: the same as long as no file changes, another after any of them did."""

from __future__ import annotations

from pathlib import Path

from nextfit.checkpoint import open_checkpoint
from nextfit.checkpoint.fingerprint import fingerprint
from tests.support.checkpoint_writer import write_safetensors
from tests.support.damage import model


def test_a_change_in_any_file_is_seen(tmp_path: Path) -> None:
    """Also in a file that holds nothing but the second experts."""
    folder = tmp_path / "m"
    made = model("modelopt")
    apart = {n: made.tensors.pop(n) for n in list(made.tensors) if ".experts.1." in n}
    made.write(folder)
    write_safetensors(folder / "second.safetensors", apart)
    seen = {fingerprint(open_checkpoint(folder))}
    for file in sorted(folder.glob("*.safetensors")):
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 1
        file.write_bytes(raw)
        seen.add(fingerprint(open_checkpoint(folder)))
    assert len(seen) == 3


def test_it_stays_the_same(tmp_path: Path) -> None:
    model().write(tmp_path / "m")
    assert fingerprint(open_checkpoint(tmp_path / "m")) == fingerprint(open_checkpoint(tmp_path / "m"))
