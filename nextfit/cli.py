"""The command line: serve, chat, inspect, logits. Everything heavy is imported inside a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from nextfit.errors import ConfigError, NextFitError

app = typer.Typer(
    name="nextfit",
    help="Serves Qwen3.8-Flash-Next on hardware that looks too small for it.",
    epilog="Examples:  nextfit serve  ·  nextfit chat model.gguf  ·  nextfit inspect ./checkpoint",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Dtype(StrEnum):
    auto = "auto"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"


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
DraftFile = Annotated[
    Path | None, typer.Option(help="GGUF file that holds the draft head, if it is apart from the model.")
]
Chunk = Annotated[int, typer.Option(min=1, help="Prompt tokens computed in one step.")]
Precision = Annotated[Dtype, typer.Option(help="What the model computes in; auto: what its files say.")]
Device = Annotated[str, typer.Option(help="Where the model computes: cpu, cuda, cuda:1 ...")]


def run(argv: Sequence[str]) -> int:
    """Run one command. A refusal is one message on stderr and exit code 2, never a traceback."""
    try:
        app(args=list(argv))
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    except (NextFitError, OSError) as error:
        print(f"nextfit: {error}", file=sys.stderr)
        return 2
    return 0


def _version(asked: bool) -> None:
    if asked:
        from nextfit import __version__

        print(f"nextfit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example:  nextfit serve model.gguf --port 9000 --context 32768 --api-key-file keys.txt")
def serve(
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every network.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="A key that requests must carry; repeat for several. Other users of this machine can see it."
        ),
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File with such keys, one a line.")] = None,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Name that requests use for the model; repeat for several.")
    ] = None,
    context: Context = None,
    draft: Draft = 4,
    draft_file: DraftFile = None,
    prefill_chunk: Chunk = 512,
    sequences: Annotated[int, typer.Option(min=1, help="Requests computed at once; more wait.")] = 8,
    dtype: Precision = Dtype.auto,
    device: Device = "cpu",
    body_limit: Annotated[int, typer.Option(min=1, help="Largest request body, in MiB.")] = 16,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds that running answers may take after SIGTERM.")
    ] = 30,
) -> None:
    """Answer OpenAI's chat and completions API over HTTP.

    /health is 503 until the model is loaded; then a curl line to try is printed.
    """
    from nextfit.server.guard import read_keys
    from nextfit.server.load import loader
    from nextfit.server.run import HttpConfig, serve

    keys = read_keys(api_key or (), api_key_file)
    engine = _engine(context, draft, draft_file, prefill_chunk, dtype, device, sequences=sequences)
    load = loader(model, tuple(served_model_name or ()), engine)
    serve(load, HttpConfig(host, port, keys, body_limit << 20, drain), lambda line: print(line, flush=True))


@app.command(epilog="Example:  nextfit chat model.gguf --system 'Answer in one sentence.' --no-thinking")
def chat(
    model: Model = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help="Whether the model thinks first.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0 is greedy; the checkpoint's if left out.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed and words give the same answers.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    context: Context = None,
    draft: Draft = 4,
    draft_file: DraftFile = None,
    prefill_chunk: Chunk = 512,
    dtype: Precision = Dtype.auto,
    device: Device = "cpu",
) -> None:
    """Talk to a model in the terminal. Ctrl-C ends an answer, /reset the conversation, /exit the program."""
    from nextfit.terminal import Settings, converse, loading

    engine = _engine(context, draft, draft_file, prefill_chunk, dtype, device, sequences=1)
    with loading() as progress:
        from nextfit.llm import LLM

        llm = LLM(model, progress=progress, **engine)
    converse(llm, Settings(system, thinking, temperature, seed, max_tokens))


@app.command(epilog="Example:  nextfit inspect model-00001-of-00003.gguf --draft-file mtp.gguf --json")
def inspect(
    path: Annotated[Path, typer.Argument(help="Folder or .safetensors or .gguf file of a checkpoint.")],
    draft_file: DraftFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what a checkpoint holds and whether it can be loaded, from its headers alone.

    Exit code 2 if it cannot be loaded.
    """
    from nextfit.checkpoint.inspect import print_report

    raise typer.Exit(print_report(path, draft=draft_file, json=json))


@app.command(epilog="Example:  nextfit logits ./checkpoint --ids ids.npy --out logits.npy")
def logits(
    model: Annotated[Path, typer.Argument(help="Folder or .safetensors or .gguf file of a checkpoint.")],
    ids: Annotated[Path, typer.Option(help="Token ids: a .npy file with one axis of integers.")],
    out: Annotated[
        Path, typer.Option(help="Where the logits go: a .npy file, float32 [positions, vocabulary].")
    ],
    mtp: Annotated[
        bool, typer.Option("--mtp", help="Of the draft head instead: row p sees position p and token p+1.")
    ] = False,
    draft_file: DraftFile = None,
    dtype: Precision = Dtype.float32,
) -> None:
    """Write the logits of every position of a text, to compare with another implementation."""
    from nextfit.arrays import read_ids, write_array
    from nextfit.checkpoint import open_checkpoint

    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: {out.parent} is not a folder")
    config = open_checkpoint(model, draft_file).require().config
    tokens = read_ids(ids, config.vocab_size, config.max_position_embeddings, at_least=2 if mtp else 1)
    from nextfit.llm import logits

    write_array(out, logits(model, tokens, draft=mtp, draft_file=draft_file, dtype=dtype.value))


def _engine(
    context: int | None,
    draft: int,
    draft_file: Path | None,
    prefill_chunk: int,
    dtype: Dtype,
    device: str,
    sequences: int,
) -> dict[str, Any]:
    """The options of `LLM`."""
    return {
        "context": context,
        "draft": draft,
        "draft_file": draft_file,
        "prefill_chunk": prefill_chunk,
        "dtype": dtype.value,
        "device": device,
        "sequences": sequences,
    }
