"""Memory of loading a checkpoint: `python -m bench.loading CHECKPOINT`.

Peak resident memory as the kernel counts it, against the bytes of the loaded tensors in their file types, and
the n-gram table's pages in memory afterwards (from /proc/self/smaps, not from the loader).
"""

import re
import resource
import sys
import time
from pathlib import Path

from nextfit.checkpoint import open_checkpoint
from nextfit.checkpoint.load import load_weights

MB = 1_000_000


def mapped_resident(folder: Path) -> int:
    """Resident bytes of this process's mappings of files below `folder`."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = str(folder) in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1]).resolve()
    loaded: list[int] = []
    start = time.perf_counter()
    weights = load_weights(open_checkpoint(folder).require(), progress=lambda _, total: loaded.append(total))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{len(weights)} weights, {loaded[-1] / MB:,.0f} MB in file types, loaded in {seconds:.1f} s")
    print(f"peak resident {peak / MB:,.0f} MB; bound {(loaded[-1] * 1.15 + 350 * MB) / MB:,.0f} MB")
    print(f"of the mapped n-gram table resident: {mapped_resident(folder) / MB:.1f} MB")


if __name__ == "__main__":
    main()
