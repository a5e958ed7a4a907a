"""A memory plan for people: a table and a bar per device."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextfit.memory.hardware import hardware, parse_size
from nextfit.memory.plan import plan
from nextfit.memory.plan_fit import as_json, explain, smallest_changes
from nextfit.memory.plan_values import HOST, MAPPED, OWNERS, Buffer, Limits, MemoryPlan, size
from nextfit.memory.plan_weights import read_weights

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

COLOURS = {
    "weights": "#4477aa",
    "experts": "#228833",
    "expert pool": "#66bb66",
    "stream buffers": "#a5d6a7",
    "n-gram table": "#b07aa1",
    "index keys": "#ee9944",
    "K/V pages": "#cc6644",
    "hot K/V": "#ee6677",
    "history stage": "#f4a6a0",
    "recurrent slots": "#aa3377",
    "commit logs": "#cc77aa",
    "snapshot pool": "#ddaacc",
    "draft": "#ccbb44",
    "row arena": "#66ccee",
    "scratch": "#66ccee",
    "logits and sampler": "#99ddee",
}
OTHERS = "#888888"  # owners without a colour of their own
BAR = 72  # characters


def segments(p: MemoryPlan, memory: str, width: int) -> tuple[list[tuple[str, int]], int]:
    """(owner, cells) of a bar of `width` cells, the rest of which is free, and the cell where the capacity ends.

    The bar is as long as the larger of capacity and need; cells go to the largest remainders.
    """
    owners, capacity = p.by_owner(memory), p.places()[memory]
    whole = max(capacity, sum(owners.values()))
    shares = {**owners, "": whole - sum(owners.values())}
    cells = {o: n * width // whole for o, n in shares.items()}
    by_remainder = sorted(shares, key=lambda o: -(shares[o] * width % whole))
    for o in by_remainder[: width - sum(cells.values())]:
        cells[o] += 1
    return [(o, n) for o, n in cells.items() if o and n], capacity * width // whole


def rows(p: MemoryPlan, memory: str) -> list[Buffer]:
    """Buffers of a memory in the order of owners; those of several ranks in one row."""
    found: dict[tuple[str, str], list[Buffer]] = {}
    for b in p.inside(memory):
        found.setdefault((b.owner, b.what.partition(", rank ")[0]), []).append(b)
    out = []
    for (owner, what), same in found.items():
        b = same[0]
        words = f"{len(same)} ranks x {b.formula}" if len(same) > 1 else b.formula
        out.append(Buffer(owner, what, b.place, sum(x.bytes for x in same), b.lifetime, words))
    return sorted(out, key=lambda b: OWNERS.index(b.owner))


def report(
    path: Path,
    formats: str | None,
    gpu: str | None,
    host: str | None,
    reserve: str,
    settings: Mapping[str, Any],
    json: bool = False,
    formulas: bool = False,
) -> int:
    """Plan and print; returns the exit code, 2 if it does not fit (then why and what would is on stderr).

    `settings` are fields of `Limits`; a context of None is the model's longest, a dtype "auto" its own. Raises
    ConfigError or CheckpointError.
    """
    machine = hardware(gpu, host)
    weights = read_weights(path, formats)
    c = weights.config
    chosen = dict(settings)
    if chosen["context"] is None:
        chosen["context"] = c.max_position_embeddings
    if chosen["dtype"] == "auto":
        chosen["dtype"] = c.dtype
    limits = Limits(**chosen, reserve=0 if reserve.strip() == "0" else parse_size(reserve, "--reserve"))
    p = plan(c, weights, machine, limits)
    changes = [] if p.fits else smallest_changes(c, weights, machine, limits)
    if json:
        from json import dumps

        print(dumps(as_json(p, changes), indent=1))
    else:
        print_plan(p, formulas)
    if p.fits:
        return 0
    print(f"nextfit: {explain(p, changes)}", file=sys.stderr)
    return 2


def print_plan(p: MemoryPlan, formulas: bool = False, console: Console | None = None) -> None:
    """Table and bars, to stdout unless a console is given; `formulas` lists every buffer with its own."""
    from rich.console import Console
    from rich.markup import escape

    console = console or Console()
    lim = p.limits
    console.print(
        f"context {lim.context} tokens, {lim.sequences} sequences, {lim.draft} drafts a round, "
        f"chunks of {lim.prefill_chunk} rows; weights: {escape(p.weights)}; memory: {p.hardware.source}",
        soft_wrap=True,
    )
    console.print(_buffers(p) if formulas else _owners(p))
    _bars(p, console)
    if p.world == "design":
        share = 100 * p.host_experts / p.experts
        console.print(f"\n{p.host_experts} of each layer's {p.experts} experts on the host ({share:.0f} %)")
    for note in p.notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}", soft_wrap=True)


def _owners(p: MemoryPlan) -> Table:
    """A row for each owner, a column for each memory; GPUs that are alike share one."""
    from rich import box
    from rich.table import Table

    table = Table("owner", box=box.SIMPLE_HEAD, pad_edge=False, show_footer=True)
    table.columns[0].footer = "all"
    columns = []
    for name, members in p.alike().items():
        columns.append(p.by_owner(members[0]))
        title = f"each of {name}" if len(members) > 1 else name
        table.add_column(title, size(p.used(members[0])), justify="right")
    mapped = {b.owner: b.bytes for b in p.buffers if b.place == MAPPED}
    if mapped:
        columns.append(mapped)
        table.add_column(MAPPED, size(sum(mapped.values())), justify="right")
    for owner in OWNERS:
        if any(owner in found for found in columns):
            table.add_row(owner, *(size(found[owner]) if owner in found else "" for found in columns))
    return table


def _buffers(p: MemoryPlan) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("owner", "what", "where"):
        table.add_column(name)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("how many")
    table.add_column("lives for")

    def add(b: Buffer, where: str) -> None:
        table.add_row(b.owner, b.what, where, size(b.bytes), escape(b.formula), b.lifetime)

    for members in p.alike().values():
        for b in rows(p, members[0]):
            add(b, f"{len(members)} x {b.place[:3]}" if len(members) > 1 else b.place)
        table.add_section()
    for b in p.buffers:
        if b.place == MAPPED:
            add(b, MAPPED)
    return table


def _bars(p: MemoryPlan, console: Console) -> None:
    from rich.text import Text

    used: Counter[str] = Counter()
    for name, members in p.alike().items():
        memory, capacity = members[0], p.places()[members[0]]
        found, end = segments(p, memory, BAR)
        bar = Text()
        for owner, cells in found:
            used[owner] += cells
            bar.append("█" * cells, COLOURS.get(owner, OTHERS))
        bar.append("░" * (BAR - len(bar)), "dim")
        need = p.used(memory)
        if need > capacity:
            bar.append(f"\n{' ' * end}^ capacity", "bold red")
        verdict = f"{size(capacity - need)} free" if need <= capacity else f"{size(need - capacity)} too much"
        whole = "host, pinned memory included" if memory == HOST else name
        console.print(f"\n[bold]{whole}[/bold]: {size(need)} of {size(capacity)}, {verdict}")
        console.print(bar, soft_wrap=True)
    legend = Text()
    for owner in OWNERS:
        if used[owner] and owner in COLOURS:
            legend.append("█ ", COLOURS[owner]).append(f"{owner}  ")
    legend.append("█ ", OTHERS).append("all others")
    console.print(legend)
