"""Every kernel on a card, against its reference: `python -m tests.device.kernels`.

First the interpreter's tests without the interpreter, then each operator's calls at the sizes of the real model
(`tests.ops.real`), with the time of both routes. Exit code 0: the card may be added to `dispatch.CHECKED`.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from nextfit.ops.dispatch import Operator  # noqa: E402
from tests.ops.kernels import DEVICE, close, poisoned  # noqa: E402
from tests.ops.real import calls  # noqa: E402

# of the largest value: several roundings, and other orders of long sums
BOUND = {torch.float32: 1e-4, torch.bfloat16: 2**-5, torch.float16: 2**-8}
TESTS = sorted(str(p) for p in (Path(__file__).parent.parent / "ops").glob("test_*_triton.py"))


def tensors(x: Any) -> Iterator[Tensor]:
    """All tensors of arguments or results."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, tuple | list):
        for part in x:
            yield from tensors(part)
    elif hasattr(x, "__dataclass_fields__"):
        for name in x.__dataclass_fields__:
            yield from tensors(getattr(x, name))


def same(operator: Operator[Any], args: tuple[Any, ...], bound: float) -> bool:
    """Whether results, and what was written into the arguments, agree."""
    mine, wanted = copy.deepcopy(args), copy.deepcopy(args)
    with poisoned():
        found = operator.route("triton")(*mine)
    expected = operator.reference(*wanted)
    pairs = zip(tensors((found, mine)), tensors((expected, wanted)), strict=True)
    return all(torch.equal(a, b) if not a.is_floating_point() else close(a, b, bound) for a, b in pairs)


def microseconds(function: Any, args: tuple[Any, ...]) -> float:
    """Median of 20 calls."""
    times = []
    for _ in range(23):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        function(*args)
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end))
    return sorted(times[3:])[10]


def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def main(seed: int) -> int:
    print("torch", torch.__version__, torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    command = [sys.executable, "-m", "pytest", "-q", *TESTS]
    failed = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0"}).returncode != 0
    torch.manual_seed(seed)
    for t, bound in BOUND.items():
        for operator, args in calls(t, make):
            good = same(operator, args, bound)
            failed |= not good
            kernel, reference = (
                microseconds(f, args) for f in (operator.route("triton"), operator.reference)
            )
            shapes = " ".join("x".join(map(str, x.shape)) for x in tensors(args))
            print(
                f"{operator.name:32} {str(t):15} {'equal' if good else 'DIFFERS':8}"
                f" {kernel:9.1f} us, reference {reference:9.1f} us  {shapes}"
            )
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    sys.exit(main(parser.parse_args().seed))
