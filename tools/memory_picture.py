"""Draws docs/memory.svg: the released model on four 16 GiB GPUs and 64 GiB of host memory.

`python -m tools.memory_picture` writes the file; a test compares it with what is committed.
"""

from __future__ import annotations

import json
from pathlib import Path
from xml.sax.saxutils import escape

from nextfit.config import ModelConfig
from nextfit.memory.hardware import GiB, Hardware
from nextfit.memory.plan import Limits, MemoryPlan, plan
from nextfit.memory.plan_values import HOST, size
from nextfit.memory.plan_weights import from_format
from nextfit.memory.report import COLOURS, OTHERS

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "docs" / "released" / "config.json"
PICTURE = ROOT / "docs" / "memory.svg"
FORMATS = "nvfp4/q8_0/bf16"
LEFT, TOP, HEIGHT, SCALE = 120, 46, 26, 11  # pixels; SCALE of a GiB
LINE = 18


def example() -> MemoryPlan:
    """The plan of docs/memory.md."""
    config = ModelConfig.from_hf(json.loads(CONFIG.read_text()), CONFIG)
    machine = Hardware((16 * GiB,) * 4, 64 * GiB)
    return plan(config, from_format(config, FORMATS), machine, Limits(context=262144))


def _text(x: float, y: float, text: str, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'


def _box(x: float, y: float, width: float, colour: str, title: str) -> str:
    shape = f'x="{x:.2f}" y="{y}" width="{width:.2f}" height="{HEIGHT}"'
    box = f'<rect {shape} fill="{colour}" stroke="white" stroke-width="0.5">'
    return f"{box}<title>{escape(title)}</title></rect>"


def draw(p: MemoryPlan) -> str:
    """A bar for each memory, all to one scale, and a legend with sizes."""
    parts = [
        _text(LEFT, 22, "Qwen3.8-Flash-Next, 4-bit experts, on 4 x 16 GiB + 64 GiB host: who owns what", 14)
    ]
    for i, (memory, capacity) in enumerate(p.places().items()):
        y, x = TOP + i * (HEIGHT + 10), float(LEFT)
        parts.append(_text(LEFT - 8, y + 17, memory, anchor="end"))
        for owner, nbytes in p.by_owner(memory).items():
            width = nbytes / GiB * SCALE
            parts.append(_box(x, y, width, COLOURS.get(owner, OTHERS), f"{owner}: {size(nbytes)}"))
            x += width
        whole = capacity / GiB * SCALE
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{whole:.2f}" height="{HEIGHT}" fill="none" stroke="#444"/>'
        )
        free = size(capacity - p.used(memory))
        if memory == HOST:
            parts.append(_text(LEFT + whole - 6, y + 17, f"{free} free", anchor="end"))
        else:
            label = f"{size(p.used(memory))} of {size(capacity)}, {free} free"
            parts.append(_text(LEFT + whole + 8, y + 17, label))
    y = TOP + len(p.places()) * (HEIGHT + 10) + 14
    for memory, x in (("gpu:0", LEFT), (HOST, LEFT + 360)):
        title = "on each GPU" if memory == "gpu:0" else "in host memory"
        parts.append(_text(x, y + 4, title, 13))
        for n, (owner, nbytes) in enumerate(p.by_owner(memory).items(), 1):
            at = y + n * LINE
            parts.append(
                f'<rect x="{x}" y="{at - 6}" width="11" height="11" fill="{COLOURS.get(owner, OTHERS)}"/>'
            )
            parts.append(_text(x + 18, at + 4, owner))
            parts.append(_text(x + 230, at + 4, size(nbytes), anchor="end"))
    height = y + 20 * LINE
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {height}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="880" height="{height}" fill="white"/>', *parts, "</svg>", ""])


def main() -> None:
    PICTURE.write_text(draw(example()))
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
