"""Random answers into the parser: it never raises, its output is bounded and well formed, cuts change nothing.

python -m tests.text.fuzz_parsers --count 1000000      also cuts transcripts up to MIDDLING in every way
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from random import Random

from nextfit.text.events import Arguments, CallBegin, CallEnd, Content, Event, Reasoning
from nextfit.text.markup import MAX_GROWTH, MarkupReader
from tests.text.splits import every_split
from tests.text.transcripts import NO_TOOLS, TOOLS, TRANSCRIPTS, fold

WORDS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=write_file>", "<function=now>",
    "<function=tide_table>", "<function=unknown>", "</function>", "<parameter=path>", "<parameter=n>",
    "<parameter=at>", "<parameter=note>", "<parameter=mixed>", "<parameter=x>", "</parameter>",
    "<tool_call>\n<function=now>", "</parameter>\n</function>\n</tool_call>", "\n", " ", "\n\n", "a", "é🦙", "3",
    "null", "true", '{"a": [1]}', "[1, 2]", '"', "\\", "\x00\x1f", "```", "```\n", "~~~", "`", "<", ">", "</", "=",
)  # fmt: skip
MAX_WORDS = 24
MIDDLING = 160  # characters
Case = tuple[str, list[str], MarkupReader, MarkupReader, bool]


def draw(random: Random) -> Case:
    """A text, pieces of it, two readers of it alike, and whether it is cut off."""
    if random.random() < 0.3:  # a transcript, damaged
        text = random.choice(TRANSCRIPTS).text
        for _ in range(random.randrange(1, 4)):
            i, j = sorted(random.randrange(len(text) + 1) for _ in range(2))
            kind = random.randrange(3)
            text = text[:i] + (random.choice(WORDS), "", text[i : i + 40])[kind] + text[i if kind else j :]
    else:
        text = "".join(random.choice(WORDS) for _ in range(random.randrange(MAX_WORDS)))
        if random.random() < 0.3:  # marks not quite right
            i = random.randrange(len(text) + 1)
            text = text[:i] + text[i + 1 :]
    pieces, at = [], 0
    size = random.choice((1, 4, 16, 64))
    while at < len(text):
        step = random.randrange(size + 1)
        pieces.append(text[at : at + step])
        at += step
    tools = TOOLS if random.random() < 0.9 else NO_TOOLS
    thinking, single = random.random() < 0.5, random.random() < 0.2
    readers = [MarkupReader(tools, thinking=thinking, single=single) for _ in range(2)]
    return text, pieces, readers[0], readers[1], random.random() < 0.3


def check(text: str, pieces: list[str], one: MarkupReader, other: MarkupReader, cut: bool) -> None:
    events = fold(one, [text], cut)
    assert fold(other, pieces, cut) == events
    assert sum(map(_length, events)) <= MAX_GROWTH * len(text)
    arguments: dict[int, str] = {}
    begun = ended = 0
    for event in events:
        match event:
            case CallBegin(index, name):
                assert index == begun == ended and name in TOOLS
                begun += 1
                arguments[index] = ""
            case Arguments(index, text):
                assert index == begun - 1 == ended
                arguments[index] += text
            case CallEnd(index):
                assert index == begun - 1 == ended
                ended += 1
                pairs = json.loads(arguments[index], object_pairs_hook=list)
                assert isinstance(pairs, list)
            case _:
                assert begun == ended and event.text
    assert begun - ended in ((0, 1) if cut else (0,))


def _length(event: Event) -> int:
    match event:
        case Reasoning(text) | Content(text) | Arguments(_, text):
            return len(text)
        case CallBegin(_, name):
            return len(name)
    return 0


def _run(seed: int, count: int) -> int:
    random = Random(seed)
    for _ in range(count):
        check(*draw(random))
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    start, share = time.monotonic(), 10_000
    shares = [
        (options.seed * 1_000_003 + i, min(share, options.count - i * share))
        for i in range(-(-options.count // share))
    ]
    with multiprocessing.Pool(options.processes) as pool:
        cut = [t for t in TRANSCRIPTS if len(t.text) <= MIDDLING]
        pool.map(every_split, cut, chunksize=1)
        print(f"{len(cut)} transcripts in every split, {time.monotonic() - start:.0f} s", flush=True)
        done = sum(pool.starmap(_run, shares))
    print(f"{done} inputs, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
