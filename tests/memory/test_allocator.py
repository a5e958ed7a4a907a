"""Temporaries that come again in the next step cost no page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from nextfit.memory.allocator import keep_freed_memory

def step():
    return sum(torch.ones(n << 20, dtype=torch.uint8)[-1].item() for n in (80, 1, 40))

kept = keep_freed_memory() if sys.argv[1] == "keep" else None
for _ in range(10):  # what stays alive between the large blocks finds its place
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> tuple[str, int]:
    out = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    kept, count = out.stdout.split()
    return kept, int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_used_again():
    pages = 3 * (121 << 20) // 4096
    kept, count = faults("keep")
    assert kept == "True" and count < pages // 50
    _, count = faults("default")
    assert count > pages // 2  # otherwise this test measures nothing
