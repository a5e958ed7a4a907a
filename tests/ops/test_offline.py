"""Every Triton kernel compiles for every card, without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nextfit.ops.dispatch import COMPILED

ROOT = Path(__file__).parent.parent.parent
PLANTED = """
import sys, types
import triton, triton.language as tl
from tests.ops import offline
from nextfit.ops.norm import triton as norm

@triton.jit
def _no_such_function_kernel(x, n):
    tl.store(x, tl.no_such_function(n))

@triton.jit
def _never_launched_kernel(x):
    tl.store(x, 0)

_no_such_function_kernel.fn.__module__ = _never_launched_kernel.fn.__module__ = norm.__name__
norm._never_launched_kernel = _never_launched_kernel
plain = norm.rms_norm
norm.rms_norm = lambda x, *rest: (_no_such_function_kernel[(1,)](x, 3), plain(x, *rest))
sys.exit(offline.main(False))
"""


def compiled(*command: str, cache: Path | None = None) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, lines and what was said beside them, of a process whose kernels are not interpreted."""
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_every_kernel_compiles_for_every_card() -> None:
    status, lines, said = compiled("-m", "tests.ops.offline")
    assert status == 0, [x for x in lines if "error" in x] or said
    kernels = {x["kernel"] for x in lines}
    assert {(x["kernel"], x["card"]) for x in lines if x["bytes"]} == {
        (k, c) for k in kernels for c in COMPILED
    }
    assert "norm.triton._rms_norm_kernel" in kernels


def test_a_kernel_that_does_not_compile_and_one_that_is_forgotten_are_seen(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{PLANTED}")
    status, lines, _ = compiled(str(planted))
    errors = {(x["kernel"], x.get("card")): x["error"] for x in lines if "error" in x}
    assert status == 1
    assert errors.pop(("norm.triton._never_launched_kernel", None)) == "no call of tests.ops.real launches it"
    assert set(errors) == {("norm.triton._no_such_function_kernel", card) for card in COMPILED}
