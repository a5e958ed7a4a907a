"""What a checkpoint holds, from its headers alone: for people as tables, for programs as JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nextfit.checkpoint import Checkpoint, open_checkpoint
from nextfit.checkpoint.regions import is_mapped, targets
from nextfit.checkpoint.source import PerExpert, Source, distinct

# the first of these that occurs in a slot's name says what the slot belongs to
_COMPONENTS = (
    ("mtp.", "draft head"),
    ("embed_tokens", "embedding"),
    ("lm_head", "output head"),
    (".ple.table", "n-gram table"),
    (".ple.", "n-gram layer"),
    (".linear_attn.", "delta net"),
    (".self_attn.", "sparse attention"),
    (".mlp.experts.", "experts"),
    (".mlp.", "router and shared expert"),
    ("", "hyper-connections"),
)
_SHOWN = 20  # problems in the printed report


def _component(slot: str) -> str:
    return next(name for mark, name in _COMPONENTS if mark in slot)


def summary(checkpoint: Checkpoint) -> dict[str, Any]:
    """Plain values, ready for JSON; sizes in bytes of the files."""
    parts = targets(checkpoint.slots())
    sources: dict[tuple[str, str], dict[str, list[Source | PerExpert]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for piece in checkpoint.tensors.pieces:
        target = parts[piece.part]
        for role, source in piece.sources.items():
            place = "file mapping" if is_mapped(piece, role, target) else "memory"
            sources[_component(target.slot.name), place][piece.format].append(source)
    order = [name for _, name in _COMPONENTS[1:]] + [_COMPONENTS[0][1]]  # the draft head comes last
    keys = sorted(sources, key=lambda key: (order.index(key[0]), key[1]))
    components = [_totals(*key, sources[key]) for key in keys]
    ignored: dict[str, list[Source | PerExpert]] = defaultdict(list)
    for left_out in checkpoint.tensors.ignored:
        ignored[left_out.reason].append(left_out.source)
    c = checkpoint.config
    return {
        "path": str(checkpoint.path),
        "loadable": not checkpoint.problems,
        "layers": c.num_hidden_layers,
        "hidden_size": c.hidden_size,
        "experts": c.num_experts,
        "experts_per_token": c.num_experts_per_tok,
        "vocabulary": c.vocab_size,
        "context": c.max_position_embeddings,
        "draft_head": bool(c.mtp_num_hidden_layers),
        "tokenizer": checkpoint.tokenizer is not None,
        "chat_template": checkpoint.chat_template is not None,
        "end_tokens": list(checkpoint.generation.eos_token_ids),
        "components": components,
        "memory_bytes": sum(x["bytes"] for x in components if x["place"] == "memory"),
        "mapped_bytes": sum(x["bytes"] for x in components if x["place"] == "file mapping"),
        "ignored": [
            {"reason": reason, "tensors": _count(found), "bytes": sum(s.nbytes for s in found)}
            for reason, found in ignored.items()
        ],
        "warnings": list(checkpoint.tensors.warnings),
        "problems": list(checkpoint.problems),
    }


def _count(found: Iterable[Source | PerExpert]) -> int:
    """Tensors as the files have them."""
    return sum(len(s.members) for s in found)


def _totals(component: str, place: str, found: dict[str, list[Source | PerExpert]]) -> dict[str, Any]:
    """One line of the table; `found` is by format, and may name a tensor that fills two parts twice."""
    once = {format: distinct(sources) for format, sources in found.items()}
    bytes_of = Counter({format: sum(s.nbytes for s in sources) for format, sources in once.items()})
    return {
        "component": component,
        "place": place,
        "tensors": sum(map(_count, once.values())),
        "bytes": bytes_of.total(),
        "formats": dict(bytes_of.most_common()),
    }


def size(nbytes: int) -> str:
    """Bytes for people: decimal units, as file managers and download pages use them."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(soft_wrap=True)
    console.print(
        f"[bold]{escape(found['path'])}[/bold]\n{found['layers']} layers, hidden size {found['hidden_size']}"
        f", {found['experts']} experts of which {found['experts_per_token']} are used, vocabulary "
        f"{found['vocabulary']}, context {found['context']} tokens"
    )
    table = Table("component", "where", "tensors", "size", "formats")
    for x in found["components"]:
        formats = ", ".join(f"{name} {size(n)}" for name, n in x["formats"].items())
        table.add_row(x["component"], x["place"], str(x["tensors"]), size(x["bytes"]), formats)
    for x in found["ignored"]:
        table.add_row(escape(x["reason"]), "not loaded", str(x["tensors"]), size(x["bytes"]), "")
    console.print(table)
    console.print(
        f"{size(found['memory_bytes'])} would be loaded, {size(found['mapped_bytes'])} stay in their files"
    )
    for name in ("draft_head", "tokenizer", "chat_template"):
        if not found[name]:
            console.print(f"[yellow]no {name.replace('_', ' ')}[/yellow]")
    for warning in found["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")
    for problem in found["problems"][:_SHOWN]:
        console.print(f"[red]problem:[/red] {escape(problem)}")
    if len(found["problems"]) > _SHOWN:
        console.print(f"[red]and {len(found['problems']) - _SHOWN} more problems[/red] (--json lists all)")
    if found["loadable"]:
        console.print("[green]complete: this model can be loaded[/green]")


def print_report(path: str | Path, draft: str | Path | None = None, json: bool = False) -> int:
    """Print what the checkpoint at `path` holds; returns the exit code, 2 if it cannot be loaded.

    Raises CheckpointError or ConfigError where the headers cannot be understood at all.
    """
    found = summary(open_checkpoint(path, draft))
    if json:
        from json import dumps

        print(dumps(found, indent=1))
    else:
        _print(found)
    return 0 if found["loadable"] else 2
