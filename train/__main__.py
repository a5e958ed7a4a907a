"""`python -m train OUT --minutes 9 --total 20`: train for some minutes; `--resume OUT` goes on from weights alone."""

from __future__ import annotations

from argparse import ArgumentParser

from train.loop import Settings, main

if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m train", description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--total", type=float, default=20.0)
    parser.add_argument("--resume")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--peak", type=float, default=3e-3)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--longest", type=int, default=32768)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--no-compile", dest="compiled", action="store_false")
    parser.add_argument("--profile", action="store_true")
    main(Settings(**vars(parser.parse_args())))
