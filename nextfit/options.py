"""Options of the command line, one name each; `serve` groups its own into panels."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Dtype(StrEnum):
    auto = "auto"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


Model = Annotated[
    Path | None,
    typer.Argument(help="Folder or .safetensors or .gguf file of a checkpoint; the bundled one if left out."),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=1, help="Tokens of one request, prompt and answer together; the model's limit if left out."
    ),
]
Draft = Annotated[int, typer.Option(min=0, max=8, help="Tokens the draft head guesses per round; 0 is off.")]
AdaptiveDraft = Annotated[
    bool,
    typer.Option("--adaptive-draft/--no-adaptive-draft", help="Guess fewer tokens where that is faster."),
]
DraftFile = Annotated[
    Path | None, typer.Option(help="GGUF file that holds the draft head, if it is apart from the model.")
]
Chunk = Annotated[int, typer.Option(min=1, help="Prompt tokens computed in one step at most.")]
DecodeGap = Annotated[
    int,
    typer.Option(
        min=1,
        help="Prompt tokens computed between two tokens of an answer at most: less is smoother for who is being "
        "answered, more is sooner for who waits.",
    ),
]
AnswerReserve = Annotated[
    int,
    typer.Option(
        min=1,
        help="Tokens of an answer that must have room in --kv-tokens before its request is begun, or its max_tokens if "
        "that is less; renewed as the answer grows.",
    ),
]
KvTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Tokens that the pages of all requests and cached prefixes hold together; left out: one full context, or "
        "8,192 for each of --sequences if that is more.",
    ),
]
HostKvTokens = Annotated[
    int,
    typer.Option(
        min=0,
        help="Tokens of cached prefixes that move to host memory when --kv-tokens is full, and back when they are "
        "asked again. Where the pages are in host memory anyway, as on a CPU, more --kv-tokens does the same for less.",
    ),
]
Precision = Annotated[Dtype, typer.Option(help="What the model computes in; auto: what its files say.")]
Paranoid = Annotated[
    bool,
    typer.Option("--paranoid", help="Debug mode, slow: unwritten memory is NaN, each step is checked."),
]
Device = Annotated[str, typer.Option(help="Where the model computes: cpu, cuda, cuda:1 ...")]

# of `serve` alone
_HTTP, _CACHE, _RUNNING = "HTTP", "Prefix cache", "Running"
Host = Annotated[
    str,
    typer.Option(help="Address to listen on; 0.0.0.0 is every network.", rich_help_panel=_HTTP),
]
Port = Annotated[
    int,
    typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.", rich_help_panel=_HTTP),
]
ApiKey = Annotated[
    list[str] | None,
    typer.Option(
        help="A key that requests must carry; repeat for several. Other users of this machine can see it.",
        rich_help_panel=_HTTP,
    ),
]
ApiKeyFile = Annotated[
    Path | None, typer.Option(help="File with such keys, one a line.", rich_help_panel=_HTTP)
]
ServedModelName = Annotated[
    list[str] | None,
    typer.Option(help="Name that requests use for the model; repeat for several.", rich_help_panel=_HTTP),
]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(
        help="Name that requests may be for, * for any; repeat for several. Left out: localhost and its addresses on "
        "a loopback --host, otherwise any.",
        rich_help_panel=_HTTP,
    ),
]
CorsOrigin = Annotated[
    list[str] | None,
    typer.Option(
        help="Origin whose pages may ask from a browser, such as https://chat.example, * for any; repeat for several.",
        rich_help_panel=_HTTP,
    ),
]
BodyLimit = Annotated[int, typer.Option(min=1, help="Largest request body, in MiB.", rich_help_panel=_HTTP)]
JsonDepth = Annotated[
    int, typer.Option(min=1, help="Deepest nesting of a request body, in levels.", rich_help_panel=_HTTP)
]
RequestTimeout = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="Seconds from its arrival after which a request is ended, waiting or answered; left out: none.",
        rich_help_panel=_HTTP,
    ),
]
Sequences = Annotated[int, typer.Option(min=1, help="Requests computed at once; more wait.")]
Queue = Annotated[
    int, typer.Option(min=0, help="Requests that may wait; those beyond are answered with 429.")
]
Snapshots = Annotated[
    int,
    typer.Option(
        min=0,
        help="States it keeps: each lets requests that begin alike skip that beginning. `nextfit plan` "
        "shows what they take.",
        rich_help_panel=_CACHE,
    ),
]
SnapshotEvery = Annotated[
    int,
    typer.Option(min=1, help="Tokens between two snapshots of one long prompt.", rich_help_panel=_CACHE),
]
NoPrefixCache = Annotated[
    bool,
    typer.Option(
        "--no-prefix-cache",
        help="Compute every prompt whole; the same as --snapshots 0.",
        rich_help_panel=_CACHE,
    ),
]
CacheFile = Annotated[
    Path | None,
    typer.Option(
        help="File it is read from at the start, if it fits the model, and written to at the end. It holds the "
        "tokens of prompts.",
        rich_help_panel=_CACHE,
    ),
]
Restart = Annotated[
    bool,
    typer.Option(
        "--restart",
        help="Start the engine again if it dies or hangs, 3 times in 10 minutes.",
        rich_help_panel=_RUNNING,
    ),
]
EngineTimeout = Annotated[
    float,
    typer.Option(
        min=1,
        help="Seconds without a sign of life after which the engine counts as hung; more than its longest "
        "step.",
        rich_help_panel=_RUNNING,
    ),
]
Drain = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds that running answers may take after SIGTERM.", rich_help_panel=_RUNNING
    ),
]
Log = Annotated[
    LogLevel,
    typer.Option(
        "--log-level",
        help="What is logged on stderr; info: a line for each request, never its text.",
        rich_help_panel=_RUNNING,
    ),
]
