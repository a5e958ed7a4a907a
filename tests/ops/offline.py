"""Compile every Triton kernel for every card, without any: `python -m tests.ops.offline [--types]`.

Each operator's Triton route is called at the sizes of the real model (`tests.ops.real`); instead of running, a launch
is recorded and compiled as the run-time compiler would: the same types, constants, hints of divisibility, warps.
A kernel that no call launches is an error. Run in a process of its own, because Triton decides at import
whether kernels are interpreted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

import nextfit.ops
from nextfit.ops.dispatch import COMPILED
from tests.ops.real import calls

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "i64"}
TYPES |= {torch.int32: "i32", torch.uint8: "u8", torch.bool: "i1"}


@dataclass(frozen=True)
class Launch:
    """One specialisation of a kernel."""

    kernel: JITFunction
    signature: dict[str, str]
    constants: dict[str, Any]
    attributes: dict[tuple[int], list[list[Any]]]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return name(self.kernel)

    def compile(self, card: int) -> int:
        """Bytes of machine code. Raises what Triton, LLVM or ptxas raise."""
        source = ASTSource(self.kernel, self.signature, self.constants, self.attributes)
        compiled = triton.compile(source, target=GPUTarget("cuda", card, 32), options=self.options)
        return len(compiled.asm["cubin"])


def name(kernel: JITFunction) -> str:
    return f"{kernel.fn.__module__.removeprefix('nextfit.ops.')}.{kernel.fn.__name__}"


def recorded(call: Callable[[], object]) -> list[Launch]:
    """The launches of a call, none of which runs."""
    found: list[Launch] = []

    def run(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        found.append(_launch(self, args, kwargs))

    plain = JITFunction.run
    JITFunction.run = run
    try:
        call()
    finally:
        JITFunction.run = plain
    return found


def _launch(kernel: JITFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    values = dict(zip(kernel.arg_names, args, strict=False))
    options: dict[str, Any] = {"enable_fp_fusion": True}
    for key, value in kwargs.items():
        (values if key in kernel.arg_names else options)[key] = value
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        key, value = parameter.name, values[parameter.name]
        hinted = type(value) is int and not parameter.do_not_specialize
        if parameter.is_constexpr or (hinted and value == 1):
            signature[key], constants[key] = "constexpr", value
            continue
        signature[key] = _type(value)
        if isinstance(value, Tensor) or (hinted and value % 16 == 0):
            attributes[(i,)] = [["tt.divisibility", 16]]
    return Launch(kernel, signature, constants, attributes, options)


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def launches(t: torch.dtype) -> list[Launch]:
    """What the calls with activations of type `t` launch, each once."""
    found: list[Launch] = []
    for operator, args in calls(t, torch.empty):
        route = operator.route("triton")
        found += [x for x in recorded(lambda f=route, a=args: f(*a)) if x not in found]  # type: ignore[misc]
    return found


def kernels() -> set[str]:
    """Names of all kernels of the package."""
    found = set()
    for path in sorted(Path(nextfit.ops.__path__[0]).glob("*/triton*.py")):
        module = importlib.import_module(f"nextfit.ops.{path.parent.name}.{path.stem}")
        values = vars(module).items()
        found |= {name(x) for key, x in values if isinstance(x, JITFunction) and key.endswith("_kernel")}
    return found


def main(types: bool) -> int:
    """Compile for every card and print a line of JSON each; the exit status.

    `types`: with activations of float32, bf16 and fp16 each, instead of the card's own: cards before Ampere have no
    bf16 arithmetic.
    """
    every = {t: launches(t) for t in (torch.float32, torch.bfloat16, torch.float16)}
    missing = sorted(kernels() - {x.name for found in every.values() for x in found})
    for kernel in missing:
        print(json.dumps({"kernel": kernel, "error": "no call of tests.ops.real launches it"}))
    failed = len(missing)
    for card in COMPILED:
        own = torch.bfloat16 if card >= 80 else torch.float16
        for t in every if types else (own,):
            for launch in every[t]:
                failed += not _report(launch, card, TYPES[t])
    return min(failed, 1)


def _report(launch: Launch, card: int, type: str) -> bool:
    start, line = time.monotonic(), {"kernel": launch.name, "card": card, "type": type}
    try:
        line["bytes"] = launch.compile(card)
    except Exception as e:
        line["error"] = f"{e.__class__.__name__}: {e}"
    line["seconds"] = round(time.monotonic() - start, 2)
    print(json.dumps(line), flush=True)
    return "error" not in line


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--types", action="store_true", help="float32, bf16 and fp16 on every card")
    sys.exit(main(parser.parse_args().types))
