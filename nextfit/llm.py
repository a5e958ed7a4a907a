"""The engine as a library: load a model, generate; the server runs on the same loop."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nextfit import __version__
from nextfit.checkpoint import Checkpoint, open_checkpoint
from nextfit.checkpoint.fingerprint import fingerprint
from nextfit.checkpoint.load import load_weights
from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine, plan_limits
from nextfit.engine.params import MAX_DRAFT, SamplingParams
from nextfit.engine.persist import CacheFile
from nextfit.engine.request import Output, Request, Sampled
from nextfit.errors import ConfigError, RequestError
from nextfit.memory.arena import allocate
from nextfit.memory.hardware import Hardware, host_memory
from nextfit.memory.plan import plan
from nextfit.memory.plan_fit import explain, smallest_changes
from nextfit.memory.plan_values import MemoryPlan
from nextfit.memory.plan_weights import from_checkpoint
from nextfit.model import Model
from nextfit.models import default_path
from nextfit.ops.batch import Batch
from nextfit.text import TextStream
from nextfit.text.grammar import Grammars
from nextfit.text.load import load_text

Progress = Callable[[int, int], None]
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, slots=True)
class Result:
    """One finished generation; `token_ids` end where `text` does, without end tokens."""

    token_ids: list[int]
    text: str
    logprobs: list[Sampled] | None  # with alternatives, where `logprobs` was asked for
    prompt_logprobs: list[Sampled] | None  # of the prompt's tokens from the second on, where they were
    finish_reason: str  # "stop", "length" or "error"
    rounds: int  # decode steps
    drafted: int  # tokens
    accepted: int  # of them
    cached_tokens: int  # of the prompt


class LLM:
    """A loaded model with its tokenizer and engine.

    `path` is a folder or file of a checkpoint, None the bundled one. `context` bounds prompt and answer
    together (None: the model's limit), `sequences` the requests computed at once, `prefill_chunk` the prompt
    rows of one step, `decode_gap` those between two tokens of an answer. `draft` is the tokens drafted per round,
    fewer with `adaptive_draft` where that is faster, `draft_file` a GGUF file that holds the draft head where it
    is apart. `kv_tokens` bounds what the pages of all requests and cached prefixes hold, `host_kv_tokens` what host
    memory keeps of prefixes that they have no room for. `answer_reserve` is the room for its answer that a request is
    begun with, `snapshots` the states that the prefix cache keeps (0: none of it), one every `snapshot_every` tokens
    of a long prompt. From `cache_file` that cache begins with what `save_cache` wrote there last. `dtype` "auto"
    computes in what the files say. `paranoid` is a slow debug mode in which memory that nobody has written is NaN and
    every step is checked (AssertionError, IndexError).
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        draft: int = 4,
        adaptive_draft: bool = True,
        draft_file: str | Path | None = None,
        prefill_chunk: int = 2048,
        decode_gap: int = 512,
        context: int | None = None,
        sequences: int = 8,
        page_size: int = 16,
        kv_tokens: int | None = None,
        host_kv_tokens: int = 0,
        answer_reserve: int = 4096,
        snapshots: int = 16,
        snapshot_every: int = 2048,
        cache_file: str | Path | None = None,
        dtype: str = "auto",
        device: str = "cpu",
        paranoid: bool = False,
        progress: Progress | None = None,
    ) -> None:
        checkpoint = open_checkpoint(path or default_path(), draft_file).require()
        c = checkpoint.config
        limits = EngineConfig(
            context=context or c.max_position_embeddings,
            sequences=sequences,
            prefill_chunk=prefill_chunk,
            decode_gap=decode_gap,
            draft=draft,
            adaptive_draft=adaptive_draft,
            page_size=page_size,
            kv_tokens=kv_tokens,
            host_kv_tokens=host_kv_tokens,
            answer_reserve=answer_reserve,
            snapshots=snapshots,
            snapshot_every=snapshot_every,
            paranoid=paranoid,
        )
        _check_limits(limits, c.max_position_embeddings, c.indexer_compress_ratio)
        kept = _cache_file(checkpoint, limits, dtype, device, cache_file) if cache_file else None
        self.config, self.generation, self.context = c, checkpoint.generation, limits.context
        self.tokenizer, self.template = load_text(checkpoint)
        planned = _plan(checkpoint, limits, dtype, device)
        self.model = load_model(checkpoint, dtype, device, draft > 0, progress)
        ends = {*checkpoint.generation.eos_token_ids, *self.tokenizer.end_ids}  # files may list only one
        self.engine = Engine(self.model, limits, tuple(ends), plan=planned)
        self.grammars = Grammars(self.tokenizer, self.config.vocab_size)
        self._requests = 0
        self._cache_file = kept
        if kept is not None:
            kept.load(self.engine.snapshots)

    def save_cache(self, progress: Callable[[int, int], object] = lambda done, total: None) -> None:
        """Write the prefix cache to `cache_file`, if there is one. What prevents it is logged."""
        if self._cache_file is not None:
            self._cache_file.save(self.engine.snapshots, progress)

    def generate(
        self,
        prompts: str | Sequence[str] | None = None,
        *,
        prompt_token_ids: Sequence[Sequence[int]] | None = None,
        params: SamplingParams | Mapping[str, Any] | None = None,
    ) -> list[Result]:
        """Generate for each prompt, given as text or as token ids. Raises RequestError for a bad one.

        `params` as a mapping, or None, starts from the checkpoint's recommended settings.
        """
        if (prompts is None) == (prompt_token_ids is None):
            raise RequestError("give either prompts or prompt_token_ids")
        if prompts is not None:
            texts = [prompts] if isinstance(prompts, str) else prompts
            prompt_token_ids = [self.tokenizer.encode(t) for t in texts]
        assert prompt_token_ids is not None
        settings = params if isinstance(params, SamplingParams) else self.sampling_params(params or {})
        grammar = self.grammars.get(settings.grammar).result() if settings.grammar is not None else None
        answers: dict[str, _Answer] = {}
        try:
            for ids in prompt_token_ids:
                request = Request(f"generate-{self._requests}", list(ids), settings)
                self._requests += 1
                self.engine.add(request, grammar)
                answers[request.id] = _Answer(TextStream(self.tokenizer, settings.stop), settings)
            while any(a.result is None for a in answers.values()):
                for output in self.engine.step():
                    if output.request_id in answers and answers[output.request_id].push(output):
                        self.engine.cancel(output.request_id)
        except BaseException:
            for id in answers:
                self.engine.cancel(id)
            raise
        return [a.result for a in answers.values() if a.result]

    def sampling_params(self, values: Mapping[str, Any]) -> SamplingParams:
        """`values` over the checkpoint's recommended settings. Raises RequestError for an unknown name."""
        known = {f.name for f in fields(SamplingParams)}
        for name in values:
            if name not in known:
                raise RequestError(f"there is no sampling parameter {name!r}; known: {sorted(known)}", name)
        g = self.generation
        defaults = SamplingParams(
            temperature=g.temperature,
            top_k=g.top_k,
            top_p=g.top_p,
            min_p=g.min_p,
            repetition_penalty=g.repetition_penalty,
        )
        lists = {k: tuple(v) for k, v in values.items() if isinstance(v, list)}
        return replace(defaults, **{**values, **lists})


class _Answer:
    """Collects one request's outputs."""

    def __init__(self, stream: TextStream, params: SamplingParams) -> None:
        self.stream, self.params = stream, params
        self.tokens: list[Sampled] = []
        self.prompt: list[Sampled] = []
        self.text = ""
        self.result: Result | None = None
        self.stopped = False

    def push(self, output: Output) -> bool:
        """Take an output; True when a stop string ended the answer and the engine need not go on."""
        self.prompt += output.prompt
        if not self.stopped:
            self.tokens += output.tokens
            delta = self.stream.push(t.token for t in output.tokens)
            self.text += delta.text
            self.stopped = delta.stopped is not None
        if output.finish_reason is None:
            return self.stopped
        delta = self.stream.finish()
        self.text += delta.text
        kept = self.tokens[: delta.tokens]
        stats = output.stats
        assert stats is not None
        self.result = Result(
            token_ids=[t.token for t in kept],
            text=self.text,
            logprobs=kept if self.params.logprobs is not None else None,
            prompt_logprobs=self.prompt if self.params.prompt_logprobs is not None else None,
            finish_reason="stop" if self.stopped else output.finish_reason,
            rounds=stats.rounds,
            drafted=stats.drafted,
            accepted=stats.accepted,
            cached_tokens=stats.cached_tokens,
        )
        return False


def _check_limits(limits: EngineConfig, longest: int, ratio: int) -> None:
    checks = (
        ("context", limits.context, 2, longest),
        ("sequences", limits.sequences, 1, None),
        ("prefill_chunk", limits.prefill_chunk, 1, None),
        ("decode_gap", limits.decode_gap, 1, None),
        ("answer_reserve", limits.answer_reserve, 1, None),
        ("draft", limits.draft, 0, MAX_DRAFT),
        ("kv_tokens", limits.kv_tokens, 1, None),
        ("host_kv_tokens", limits.host_kv_tokens, 0, None),
        ("snapshots", limits.snapshots, 0, None),
        ("snapshot_every", limits.snapshot_every, 1, None),
    )
    for name, value, low, high in checks:
        if value is not None and (value < low or (high is not None and value > high)):
            expected = f"at least {low}" if high is None else f"{low} to {high}"
            raise ConfigError(f"{name} is {value}; expected {expected} (--{name.replace('_', '-')})")
    if limits.host_kv_tokens and not limits.snapshots:
        raise ConfigError(
            "host_kv_tokens keeps cached prefixes, and snapshots is 0 (--host-kv-tokens, --snapshots)"
        )
    if limits.page_size < ratio or limits.page_size % ratio:
        raise ConfigError(f"page_size is {limits.page_size}; expected a multiple of the index block, {ratio}")


def _cache_file(
    checkpoint: Checkpoint, limits: EngineConfig, dtype: str, device: str, path: str | Path
) -> CacheFile:
    """The file for engines that compute the same state from the same tokens."""
    if not limits.snapshots:
        raise ConfigError("cache_file keeps snapshots, and snapshots is 0 (--cache-file, --snapshots)")
    config = checkpoint.config
    identity = {
        "version": __version__,
        "weights": fingerprint(checkpoint),
        "config": hashlib.sha256(repr(config).encode()).hexdigest(),
        "dtype": config.dtype if dtype == "auto" else dtype,
        "device": torch.device(device).type,
        "page size": str(limits.page_size),
        "draft head": "on" if limits.draft and config.mtp_num_hidden_layers else "off",
    }
    return CacheFile(Path(path), identity)


def _plan(checkpoint: Checkpoint, limits: EngineConfig, dtype: str, device: str) -> MemoryPlan:
    """What the engine will take. Raises ConfigError if it does not fit, before anything is loaded."""
    c, weights = checkpoint.config, from_checkpoint(checkpoint)
    # one CUDA device holds all of it, and nobody has measured what its driver takes
    hardware = Hardware((), host_memory() if torch.device(device).type == "cpu" else 1 << 60)
    found = plan_limits(limits, _dtype(checkpoint, dtype))
    p = plan(c, weights, hardware, found)
    if not p.fits:
        raise ConfigError(explain(p, smallest_changes(c, weights, hardware, found)))
    return p


def _dtype(checkpoint: Checkpoint, name: str) -> torch.dtype:
    name = checkpoint.config.dtype if name == "auto" else name
    if name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}; expected one of {', '.join(DTYPES)} (--dtype)")
    return DTYPES[name]


def load_model(
    checkpoint: Checkpoint, dtype: str, device: str, draft: bool, progress: Progress | None = None
) -> Model:
    """Read the weights and build the model that computes in `dtype` ("auto": the checkpoint's own)."""
    computed = _dtype(checkpoint, dtype)
    weights = load_weights(checkpoint, device=device, draft=draft, progress=progress)
    return Model(checkpoint.config, weights, computed)


@torch.no_grad()
def logits(
    path: str | Path | None,
    ids: NDArray[np.int64],
    *,
    draft: bool = False,
    draft_file: str | Path | None = None,
    dtype: str = "float32",
) -> NDArray[np.float32]:
    """Logits of every position of `ids` [n], [n, vocabulary] float32, computed as one prompt.

    `draft`: of the draft head instead, [n - 1, vocabulary]; row p has position p's streams and token p + 1.
    """
    checkpoint = open_checkpoint(path or default_path(), draft_file).require()
    if draft and not checkpoint.config.mtp_num_hidden_layers:
        raise ConfigError(f"{checkpoint.path} has no draft head (--mtp)")
    model = load_model(checkpoint, dtype, "cpu", draft)
    chunk = 512
    config = EngineConfig(context=len(ids), sequences=1, draft=0, prefill_chunk=chunk, snapshots=0)
    memory = allocate(model, plan_limits(config, model.dtype))
    state, pages = memory.state, config.pages()
    every = torch.empty(chunk, model.config.vocab_size, dtype=model.dtype)  # an engine has logits of few rows
    buffers = replace(memory.buffers, logits=every)
    tokens = torch.from_numpy(ids)
    out = []
    for first in range(0, len(ids), chunk):
        batch = _prompt_rows(tokens[first : first + chunk], first, pages)
        x = model.forward(batch, state, buffers)
        if draft:
            followers = tokens[first + 1 : first + 1 + chunk]
            if not len(followers):
                break
            assert model.draft is not None
            batch = _prompt_rows(followers, first, pages)
            buffers.handed[: len(followers)] = x[: len(followers)]
            x = model.draft.forward(batch, state, buffers)
            out.append(model.draft.logits(x, 0, buffers).to(torch.float32, copy=True))
        else:
            out.append(model.logits(x, 0, buffers).to(torch.float32, copy=True))
    return torch.cat(out).numpy()


def _prompt_rows(tokens: torch.Tensor, first: int, pages: int) -> Batch:
    """Prefill rows of the only sequence."""
    zero = torch.zeros(1, dtype=torch.int64)
    return Batch(tokens, (len(tokens),), (first,), zero, zero, torch.arange(pages)[None], decode_sequences=0)
