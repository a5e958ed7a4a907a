"""`python -m nextfit` and the `nextfit` command."""

from __future__ import annotations

import sys


def main() -> None:
    from nextfit.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
