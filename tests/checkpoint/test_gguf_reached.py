"""Every refusal of the GGUF readers is reached by a test of theirs."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import nextfit.checkpoint
from tests.checkpoint import test_formats, test_gguf_header, test_gguf_refusals
from tests.support.refusals import reached, sites, spell

PACKAGE = Path(str(nextfit.checkpoint.__file__)).parent
FILES = [PACKAGE / "formats.py", *PACKAGE.glob("gguf*.py")]


def calls(module: ModuleType, folder: Path) -> Iterator[Callable[[], object]]:
    """The tests of a module with each of their parameters; a folder is emptied after each.

    Tests that need other fixtures are left out.
    """
    for name, test in inspect.getmembers(module, inspect.isfunction):
        marks = [m for m in getattr(test, "pytestmark", []) if m.name == "parametrize"]
        names, values = marks[0].args if marks else ((), [()])
        keys = [names] if isinstance(names, str) else list(names)
        if not name.startswith("test_") or set(inspect.signature(test).parameters) - {*keys, "tmp_path"}:
            continue
        for value in values:
            arguments = dict(zip(keys, [value] if isinstance(names, str) else value, strict=True))
            if "tmp_path" in inspect.signature(test).parameters:
                arguments["tmp_path"] = folder
            folder.mkdir()
            yield partial(test, **arguments)
            shutil.rmtree(folder)


def test_every_refusal_is_reached(tmp_path: Path) -> None:
    wanted = sites(FILES)
    assert len(wanted) > 50
    modules = (test_formats, test_gguf_header, test_gguf_refusals)
    missed = wanted - reached(wanted, (call for m in modules for call in calls(m, tmp_path / "case")))
    assert not missed, "\n".join(spell(missed))
