"""The command line: serve, chat, plan, inspect, accept, logits. Everything heavy is imported inside a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nextfit.errors import ConfigError, NextFitError
from nextfit.options import (
    AdaptiveDraft,
    AllowedHost,
    AnswerReserve,
    ApiKey,
    ApiKeyFile,
    BodyLimit,
    CacheFile,
    Chunk,
    Context,
    CorsOrigin,
    DecodeGap,
    Device,
    Draft,
    DraftFile,
    Drain,
    Dtype,
    EngineTimeout,
    Host,
    HostKvTokens,
    JsonDepth,
    KvTokens,
    Log,
    LogLevel,
    Model,
    NoPrefixCache,
    Paranoid,
    Port,
    Precision,
    Queue,
    RequestTimeout,
    Restart,
    Sequences,
    ServedModelName,
    SnapshotEvery,
    Snapshots,
)

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
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = None,
    api_key_file: ApiKeyFile = None,
    served_model_name: ServedModelName = None,
    allowed_host: AllowedHost = None,
    cors_origin: CorsOrigin = None,
    body_limit: BodyLimit = 16,
    json_depth: JsonDepth = 200,
    request_timeout: RequestTimeout = None,
    context: Context = None,
    draft: Draft = 4,
    adaptive_draft: AdaptiveDraft = True,
    draft_file: DraftFile = None,
    prefill_chunk: Chunk = 2048,
    decode_gap: DecodeGap = 512,
    sequences: Sequences = 8,
    queue: Queue = 256,
    kv_tokens: KvTokens = None,
    host_kv_tokens: HostKvTokens = 0,
    answer_reserve: AnswerReserve = 4096,
    dtype: Precision = Dtype.auto,
    device: Device = "cpu",
    paranoid: Paranoid = False,
    snapshots: Snapshots = 16,
    snapshot_every: SnapshotEvery = 2048,
    no_prefix_cache: NoPrefixCache = False,
    cache_file: CacheFile = None,
    restart: Restart = False,
    engine_timeout: EngineTimeout = 300,
    drain: Drain = 30,
    log_level: Log = LogLevel.info,
) -> None:
    """Answer OpenAI's chat and completions API over HTTP.

    /health is 503 until the model is loaded; then a curl line to try is printed.
    """
    from nextfit.server import logs
    from nextfit.server.config import HttpConfig
    from nextfit.server.guard import read_keys
    from nextfit.server.load import loader
    from nextfit.server.origins import read_hosts, read_origins
    from nextfit.server.run import serve

    level = log_level.value
    logs.configure(level)
    http: dict[str, Any] = dict(host=host, port=port, body_limit=body_limit << 20, json_depth=json_depth)
    http |= dict(keys=read_keys(api_key or (), api_key_file), hosts=read_hosts(allowed_host or (), host))
    http |= dict(origins=read_origins(cors_origin or ()), request_timeout=request_timeout, drain=drain)
    engine: dict[str, Any] = dict(context=context, sequences=sequences, prefill_chunk=prefill_chunk)
    engine |= dict(draft=draft, adaptive_draft=adaptive_draft, draft_file=draft_file, decode_gap=decode_gap)
    engine |= dict(kv_tokens=kv_tokens, host_kv_tokens=host_kv_tokens, answer_reserve=answer_reserve)
    engine |= dict(snapshots=0 if no_prefix_cache else snapshots, snapshot_every=snapshot_every)
    engine |= dict(cache_file=cache_file, dtype=dtype.value, device=device, paranoid=paranoid)
    names = tuple(served_model_name or ())
    load = loader(model, names, engine, queue=queue, restart=restart, timeout=engine_timeout, log_level=level)
    serve(load, HttpConfig(**http), lambda line: print(line, flush=True))


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
    prefill_chunk: Chunk = 2048,
    dtype: Precision = Dtype.auto,
    device: Device = "cpu",
    paranoid: Paranoid = False,
) -> None:
    """Talk to a model in the terminal. Ctrl-C ends an answer, /reset the conversation, /exit the program."""
    from nextfit.terminal import Settings, converse, loading

    with loading() as progress:
        from nextfit.llm import LLM

        llm = LLM(
            model,
            context=context,
            draft=draft,
            draft_file=draft_file,
            prefill_chunk=prefill_chunk,
            sequences=1,
            dtype=dtype.value,
            device=device,
            paranoid=paranoid,
            progress=progress,
        )
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


@app.command(epilog="Example:  nextfit plan ./checkpoint --gpu 4x16GiB --host 64GiB --context 262144")
def plan(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="Checkpoint, or a folder with only a config.json; the bundled model if left out."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Formats as EXPERTS/OTHERS/TABLE, such as nvfp4/q8_0/bf16, instead of the files'."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="GPU memories, such as 4x16GiB; none; this machine's if left out.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Host memory, such as 64GiB; what is free here if left out.")
    ] = None,
    context: Context = None,
    sequences: Sequences = 8,
    draft: Draft = 4,
    prefill_chunk: Chunk = 2048,
    page_size: Annotated[int, typer.Option(min=1, help="Tokens of a page.")] = 16,
    kv_tokens: KvTokens = None,
    host_kv_tokens: HostKvTokens = 0,
    kv: Annotated[str | None, typer.Option(help="Where keys and values lie: host or gpu.")] = None,
    kv_format: Annotated[str | None, typer.Option(help="Their format: bf16, q8_0, f8_e4m3 ...")] = None,
    host_experts: Annotated[
        int | None, typer.Option(min=0, help="Experts of each layer on the host; as few as fit if left out.")
    ] = None,
    snapshots: Annotated[int, typer.Option(min=0, help="Snapshots of the prefix cache.")] = 16,
    reserve: Annotated[str, typer.Option(help="Left free on each GPU.")] = "512MiB",
    dtype: Precision = Dtype.auto,
    formulas: Annotated[
        bool, typer.Option("--formulas", help="Every buffer and how it comes about.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what memory a model would take, byte by byte, without loading it.

    Also for hardware that is not here. Exit code 2 if it does not fit, then with what would.
    """
    from nextfit.memory.report import report
    from nextfit.models import default_path

    settings = dict(context=context, sequences=sequences, draft=draft, prefill_chunk=prefill_chunk)
    settings |= dict(page_size=page_size, kv_tokens=kv_tokens, host_kv_tokens=host_kv_tokens)
    settings |= dict(host_experts=host_experts, snapshots=snapshots)
    texts = dict(kv=kv, kv_format=kv_format, dtype=dtype.value)
    code = report(model or default_path(), weights, gpu, host, reserve, {**settings, **texts}, json, formulas)
    raise typer.Exit(code)


@app.command(epilog="Example:  nextfit accept --tasks --seed 7 --html tasks.html")
def accept(
    model: Model = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="Ask held-out tasks and score them.")] = False,
    seed: Annotated[int, typer.Option(help="Another seed asks other questions.")] = 1,
    samples: Annotated[
        int, typer.Option(min=1, help="Texts of each length; other tasks in proportion.")
    ] = 20,
    lengths: Annotated[str, typer.Option(help="Tokens of the texts to find facts in.")] = "2048,8192,32768",
    dtype: Precision = Dtype.auto,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots to this file.")] = None,
) -> None:
    """Ask a model tasks with known answers and score it. Exit code 1 if it is below the bounds.

    The bounds are those of the model that ships with the package. With the default lengths it takes some minutes.
    """
    from nextfit.accept.report import accept_tasks

    if not tasks:
        raise ConfigError("nothing was asked for: give --tasks")
    raise typer.Exit(accept_tasks(model, seed, samples, lengths, dtype.value, json, html))


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
