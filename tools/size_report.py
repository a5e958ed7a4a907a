"""Lines per package, and what is longer than one sitting: files over 500 lines, functions over 60.

`python tools/size_report.py` prints the table; the limits are a guide and tests/test_layout.py holds them.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES = 500
FUNCTION_LINES = 60


def sources(root: Path = ROOT / "nextfit") -> list[Path]:
    return sorted(p for p in root.rglob("*.py") if "__pycache__" not in p.parts)


def lines(path: Path) -> int:
    """Lines that are not empty."""
    return sum(1 for line in path.read_text().splitlines() if line.strip())


def long_files(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        n = len(path.read_text().splitlines())
        if n > FILE_LINES:
            yield f"{path.relative_to(ROOT)}: {n} lines"


def long_functions(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                n = (node.end_lineno or node.lineno) - node.lineno + 1
                if n > FUNCTION_LINES:
                    yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {n} lines"


def main() -> None:
    paths = sources()
    package: Counter[str] = Counter()
    for path in paths:
        inside = path.relative_to(ROOT / "nextfit")
        package[inside.parts[0] if len(inside.parts) > 1 else "(top level)"] += lines(path)
    tests = sum(lines(p) for p in sources(ROOT / "tests"))
    print("size: non-empty lines")
    for name, n in sorted(package.items()):
        print(f"  {name:<12}{n:>7,}")
    print(f"  {'nextfit':<12}{package.total():>7,}\n  {'tests':<12}{tests:>7,}")
    for title, found in (
        (f"files over {FILE_LINES} lines", list(long_files(paths))),
        (f"functions over {FUNCTION_LINES} lines", list(long_functions(paths))),
    ):
        print(f"{title}: {len(found)}")
        for item in found:
            print(f"  {item}")


if __name__ == "__main__":
    main()
