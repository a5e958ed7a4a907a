"""The engine: requests in, tokens out, one step at a time. It knows nothing of text."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch

from nextfit.cache import Pool, SharedPool
from nextfit.engine.batch import PageTables
from nextfit.engine.config import EngineConfig
from nextfit.engine.depth import Acceptance, DraftDepth
from nextfit.engine.guide import Grammar, make_guide
from nextfit.engine.host_pages import HostPages
from nextfit.engine.paranoid import Paranoid
from nextfit.engine.request import Output, Request, Sampled, Stats
from nextfit.engine.round import run_round
from nextfit.engine.scheduler import Rows, Scheduler
from nextfit.engine.sequence import Sequence
from nextfit.engine.snapshots import Snapshots
from nextfit.errors import RequestError
from nextfit.memory.allocator import keep_freed_memory
from nextfit.memory.arena import Memory, allocate
from nextfit.memory.ledger import Account, Ledger
from nextfit.memory.plan_values import Limits, MemoryPlan
from nextfit.model import Model, weight_bytes


def plan_limits(config: EngineConfig, dtype: torch.dtype) -> Limits:
    """What the memory plan needs to know of an engine."""
    return Limits(
        context=config.context,
        sequences=config.sequences,
        draft=config.draft,
        prefill_chunk=config.prefill_chunk,
        page_size=config.page_size,
        kv_tokens=config.kv_tokens,
        snapshots=config.snapshots,
        host_kv_tokens=config.host_kv_tokens,
        dtype=str(dtype).removeprefix("torch."),
    )


class Engine:
    """Continuous batching over one model: `add` requests, call `step` while `has_work`."""

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        ends: tuple[int, ...],
        clock: Callable[[], float] = time.perf_counter,
        plan: MemoryPlan | None = None,
    ) -> None:
        """`ends` are the token ids that finish an answer unless a request sets `ignore_eos`.

        `clock` gives seconds; only how many tokens are drafted depends on it. `plan` is what the ledger compares with;
        left out, it knows only of what the engine itself allocates.
        """
        keep_freed_memory()
        self.model, self.config, self.ends = model, config, frozenset(ends)
        self.scheduler = Scheduler(config)
        self.memory = self._allocate()
        self.state = self.memory.state
        self._tables = PageTables(self.memory.buffers.tables)
        self._drafting = config.draft > 0 and model.draft is not None
        self.snapshots = Snapshots(self.scheduler, self.state)
        self.host_pages = HostPages(self.state, self.memory.cold)
        self._ledger = self._open_ledger(plan)
        self._paranoid = Paranoid(self.scheduler, self.memory, model) if config.paranoid else None
        self._clock = clock
        self._depths = DraftDepth()
        self._sequences: dict[str, Sequence] = {}
        self._arrivals = 0
        self._ended = Stats()
        self._cancelled: list[Output] = []
        self.steps = 0  # computed so far

    def _allocate(self) -> Memory:
        return allocate(self.model, plan_limits(self.config, self.model.dtype))

    def _open_ledger(self, plan: MemoryPlan | None) -> Ledger:
        planned = plan.owners() if plan else self.memory.planned()
        return Ledger(planned, self.memory.taken() + weight_bytes(self.model.weights))

    def ledger(self) -> list[Account]:
        """Bytes planned, allocated and used at most until now, by owner."""
        return self._ledger.accounts()

    def add(self, request: Request, grammar: Grammar | None = None) -> None:
        """Queue a request; RequestError if it cannot be served, then nothing has changed.

        `grammar` is the compiled one of its params. Then end tokens end the answer, also with `ignore_eos`, as soon
        as it is satisfied, and no sooner.
        """
        c, p, n = self.config, request.params, len(request.prompt)
        vocabulary = self.model.config.vocab_size
        p.validate(vocabulary)
        if request.id in self._sequences:
            raise RequestError(f"a request with id {request.id!r} is running")
        if n == 0:
            raise RequestError("the prompt is empty; it needs at least one token", "prompt")
        wrong = next((t for t in request.prompt if not 0 <= t < vocabulary), None)
        if wrong is not None:
            raise RequestError(f"token id {wrong} is outside the vocabulary of {vocabulary}", "prompt")
        if n >= c.context:
            raise RequestError(
                f"the prompt has {n} tokens and leaves no room for an answer: the context limit is {c.context} "
                "(--context)",
                "prompt",
            )
        if p.max_tokens is not None and n + p.max_tokens > c.context:
            raise RequestError(
                f"max_tokens: {p.max_tokens} and {n} prompt tokens exceed the context limit of {c.context} "
                f"(--context); at most {c.context - n} tokens can be generated",
                "max_tokens",
            )
        if (p.grammar is None) != (grammar is None):
            raise RequestError("a grammar comes with its text, and compiled", "grammar")
        stops = frozenset(p.stop_token_ids)
        ends = stops if p.ignore_eos and grammar is None else stops | self.ends
        depth = c.draft if p.draft is None else p.draft
        if depth > c.draft:
            raise RequestError(
                f"draft is {depth}; this engine drafts at most {c.draft} tokens (--draft)", "draft"
            )
        sequence = Sequence(
            request=request,
            seed=secrets.randbits(63) if p.seed is None else p.seed,
            draft_depth=depth if self._drafting else 0,
            ends=ends,
            limit=c.context if p.max_tokens is None else n + p.max_tokens,
            order=self._arrivals,
            guide=make_guide(p, ends, vocabulary, grammar.matcher(self.ends) if grammar else None),
            tokens=list(request.prompt),
            acceptance=Acceptance(depth),
        )
        self._arrivals += 1
        self._sequences[request.id] = sequence
        self.scheduler.add(sequence)

    def cancel(self, request_id: str) -> None:
        """Stop a request at once; its last Output comes with the next step. Unknown ids are ignored."""
        sequence = self._sequences.pop(request_id, None)
        if sequence:
            sequence.finish = "cancelled"
            self._forget(sequence)
            self._cancelled.append(_output(sequence))

    def has_work(self) -> bool:
        return bool(self._sequences or self._cancelled)

    def step(self) -> list[Output]:
        """Compute one step; what it added to each request that got tokens or ended."""
        out, self._cancelled = self._cancelled, []
        start = self._clock()
        rows = self.scheduler.schedule()
        self.host_pages.copy(self.scheduler.cache.take_moves())
        if rows:
            self._ledger.note(**self._used(rows))
            with self._paranoid.watch(rows) if self._paranoid else nullcontext():
                out += self._compute(rows, start)
        return out

    def _used(self, rows: list[Rows]) -> dict[str, float]:
        """Shares of what is divided that a step of these rows has in use."""
        cache, slots = self.scheduler.cache, self.scheduler.slots
        pools: dict[str, Pool | SharedPool] = {
            "pages": cache.pages,
            "slots": slots,
            "snapshots": cache.host.snapshots,
            "host_pages": cache.host.pages,
        }
        used = {name: 1 - pool.free / pool.capacity for name, pool in pools.items() if pool.capacity}
        most = self.config.prefill_chunk + self.config.sequences * (1 + self.config.draft)
        return used | {"rows": sum(r.count for r in rows) / most}

    def _compute(self, rows: list[Rows], start: float) -> list[Output]:
        """A step of the scheduled rows, which began at `start`."""
        self.snapshots.restore(rows)
        verified = _drafts(rows)
        model = self._paranoid.model if self._paranoid else self.model
        depth = self._depth if self._drafting else None
        advances = run_round(model, self.memory, self._tables, rows, depth)
        self.snapshots.save(rows)
        if all(r.decode for r in rows):
            drafts = (verified + _drafts(rows)) / (2 * len(rows))
            self._depths.note(len(rows), drafts, self._clock() - start)
        self.steps += 1
        for advance in advances:
            s = advance.sequence
            if s.finish:
                del self._sequences[s.request.id]
                self._forget(s)
        return [_output(a.sequence, a.tokens, a.prompt) for a in advances]

    def totals(self) -> Stats:
        """Counts of all requests so far, running ones among them."""
        return sum((s.stats() for s in self._sequences.values()), start=self._ended)

    def _forget(self, s: Sequence) -> None:
        self._ended += s.stats()
        self.scheduler.remove(s)

    def _depth(self, decoding: list[Sequence]) -> list[int]:
        """Drafts for each of the sequences that decode in a round."""
        rooms = [s.draft_room() for s in decoding]
        if not self.config.adaptive_draft:
            return rooms
        depth = self._depths.choose([(s.acceptance, room) for s, room in zip(decoding, rooms, strict=True)])
        return [min(depth, room) for room in rooms]


def _drafts(rows: list[Rows]) -> int:
    return sum(len(r.sequence.drafts) for r in rows)


def _output(s: Sequence, tokens: tuple[Sampled, ...] = (), prompt: tuple[Sampled, ...] = ()) -> Output:
    error = param = None
    if s.finish == "error":
        param = "grammar"
        error = f"the grammar allows no next token after {s.generated} of the answer, or takes too long to say which"
    return Output(s.request.id, tokens, s.finish, s.stop_token, error, s.stats(), param, prompt)
