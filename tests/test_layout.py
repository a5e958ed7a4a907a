"""The shape of the package: who may import whom, what runs without torch, sizes, names in the docs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import size_report

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "nextfit"

# Imports only go down this list; names in one line are side by side and import one another.
LAYERS = (
    ("__main__",),
    ("cli", "options", "terminal", "arrays"),
    ("server", "accept"),
    ("llm",),
    ("models",),
    ("text",),
    ("engine",),
    ("cache",),
    ("memory",),
    ("model",),
    ("ops",),
    ("checkpoint",),
    ("config", "config_hf", "config_rules"),
    ("errors", "interpreter"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# What text and the server know of the engine is plain values.
PLAIN = {"nextfit.engine.params", "nextfit.engine.request"}

TORCH_FREE = (
    "nextfit",
    "nextfit.errors",
    "nextfit.config",
    "nextfit.cli",
    "nextfit.cache",
    "nextfit.checkpoint",
    "nextfit.checkpoint.inspect",
    "nextfit.checkpoint.formats",
    "nextfit.checkpoint.gguf",
    "nextfit.engine.config",
    "nextfit.engine.depth",
    "nextfit.engine.guide",
    "nextfit.engine.params",
    "nextfit.engine.request",
    "nextfit.engine.scheduler",
    "nextfit.engine.sequence",
    "nextfit.memory.ledger",
    "nextfit.memory.plan",
    "nextfit.memory.report",
    "nextfit.models",
    "nextfit.ops.choice",
    "nextfit.server.engine_main",
    "nextfit.server.load",
    "nextfit.server.run",
    "nextfit.text",
    "nextfit.text.formats",
    "nextfit.text.grammar",
    "nextfit.text.load",
)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import inside the package, late ones included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def upward(path: Path, own: str) -> Iterator[str]:
    for line, module in imports(path):
        parts = module.split(".")
        if parts[0] != "nextfit" or len(parts) < 2 or parts[1] not in LEVEL:
            continue
        if LEVEL[parts[1]] < LEVEL[own]:
            yield f"{path.relative_to(ROOT)}:{line}: {own} imports {module}"


def modules() -> Iterator[tuple[Path, str]]:
    for path in size_report.sources():
        inside = path.relative_to(PACKAGE)
        own = inside.parts[0].removesuffix(".py")
        if own != "__init__":
            yield path, own


def test_every_module_has_a_layer() -> None:
    assert {own for _, own in modules()} <= set(LEVEL)


def test_imports_only_go_down() -> None:
    assert [fault for path, own in modules() for fault in upward(path, own)] == []


def test_text_knows_only_plain_values_of_the_engine() -> None:
    for path, own in modules():
        for line, module in imports(path):
            if own == "text" and module.startswith("nextfit.engine"):
                assert any(module.startswith(plain) for plain in PLAIN), f"{path}:{line}: {module}"


def test_an_upward_import_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "planted.py"
    file.write_text("def f():\n    from nextfit.server.app import create_app\n")
    assert list(upward(file, "ops")) == ["planted.py:2: ops imports nextfit.server.app.create_app"]
    assert list(upward(file, "cli")) == []


def test_every_package_is_a_package() -> None:
    """Without an __init__.py a folder would be left out of the wheel."""
    assert [
        p for p in {path.parent for path in size_report.sources()} if not (p / "__init__.py").exists()
    ] == []


def test_what_needs_no_torch_imports_none() -> None:
    """One process per module: another's import must not hide a missing one."""
    program = "import sys, importlib; importlib.import_module(sys.argv[1]); print('torch' in sys.modules)"
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", program, name],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in TORCH_FREE
    }
    said = {name: process.communicate(timeout=60) for name, process in running.items()}
    assert said == dict.fromkeys(TORCH_FREE, ("False\n", ""))


def test_sizes() -> None:
    paths = size_report.sources()
    assert list(size_report.long_files(paths)) == []
    assert list(size_report.long_functions(paths)) == []


def test_long_things_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_report, "ROOT", tmp_path)
    file = tmp_path / "long.py"
    file.write_text("class A:\n    async def f():\n" + "        pass\n" * 500)
    assert list(size_report.long_files([file])) == ["long.py: 502 lines"]
    assert list(size_report.long_functions([file])) == ["long.py:2 f: 501 lines"]


NAMED = re.compile(r"`([^`]+)`")


def missing_names(text: str) -> list[str]:
    """Names in backticks that do not exist: a file of the package, or a name in the file named last."""
    missing = []
    file: Path | None = None
    for name in NAMED.findall(text):
        if name.endswith(".py"):
            file = PACKAGE / name
            if not file.exists():
                missing.append(name)
                file = None
        elif (
            file is not None and re.fullmatch(r"[A-Za-z_][\w.]*", name) and not defined(file, name.split("."))
        ):
            missing.append(f"{file.relative_to(PACKAGE)}: {name}")
    return missing


def defined(file: Path, dotted: list[str]) -> bool:
    """Whether a function, class, attribute or method path `dotted` is written in `file`."""
    body: list[ast.stmt] = ast.parse(file.read_text()).body
    for part in dotted:
        found = next((n for n in body if part in names_of(n)), None)
        if found is None:
            return False
        body = found.body if isinstance(found, ast.ClassDef) else []
    return True


def names_of(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Assign(targets=targets):
            return {t.id for t in targets if isinstance(t, ast.Name)}
    return set()


def test_the_life_of_a_request_names_what_exists() -> None:
    text = (ROOT / "docs" / "life-of-a-request.md").read_text()
    assert missing_names(text) == []
    files = [name for name in NAMED.findall(text) if name.endswith(".py")]
    assert len(files) >= 8


def test_a_missing_name_is_seen() -> None:
    text = "`server/worker.py` `Worker.stop` `Worker.gone` `no` `engine/no.py` `x` `errors.py` `ConfigError`"
    found = ["server/worker.py: Worker.gone", "server/worker.py: no", "engine/no.py"]
    assert missing_names(text) == found


def test_readme_has_two_set_up_commands_on_its_first_screen() -> None:
    first = (ROOT / "README.md").read_text().splitlines()[:25]
    commands = [
        line for line in first if re.match(r"\s*(\$ )?(make|pip|python|git|nextfit|docker|uv)\b", line)
    ]
    assert [line.split("#")[0].strip() for line in commands] == ["make serve", "make test"]


def test_no_environment_variable_is_an_option() -> None:
    for path in size_report.sources():
        assert not re.search(r"os\.environ|os\.getenv|envvar", path.read_text()), path
