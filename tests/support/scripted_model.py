"""A model without weights that says what it is told, in place of `Model` and `State` in the real engine.

All that it remembers of a text is a hash, kept wherever the real model keeps state: in recurrent slots, committed
and logged, in the pages of the trunk and in those of the draft head. What comes next is looked up by that hash,
so the state of another text says something else; and where two kinds of state disagree, a step raises AssertionError.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine, plan_limits
from nextfit.engine.guide import Grammar
from nextfit.engine.request import Request
from nextfit.memory.arena import Arena, Memory
from nextfit.memory.plan_engine import table_width
from nextfit.model import Buffers, StateShape
from nextfit.ops.batch import Batch
from tests.support.random_model import small_config

PRIME, BASE = 2**61 - 1, 0x1E3779B97F4A7C15
PEAK = 64.0  # logit of what is said, half of it that of second best; of everything else 0, and no noise is so large

Answer = Callable[[list[int]], Sequence[int]]  # what to say after a prompt, before the end token
Wrong = Callable[[int, int], bool]  # (depth 1, 2, ..., position): whether that draft of that token errs


def never(depth: int, position: int) -> bool:
    return False


def wrong_at(depth: int) -> Wrong:
    """Drafts that err at one depth, 1 the first."""
    return lambda d, position: d == depth


def wrong_sometimes(share: float, first: int = 1) -> Wrong:
    """Drafts that err at `share` of the positions, at depths from `first` on; always at the same ones."""
    return lambda d, position: d >= first and after(after(0, position), d) / PRIME < share


def after(text: int, token: int) -> int:
    """Hash of a text with one more token; of the empty text it is 0."""
    return (text * BASE + token + 1) % PRIME


class Pages:
    """The hash that each token slot holds."""

    def __init__(self, shape: StateShape) -> None:
        self.size = shape.page_size
        self.values = [-1] * (shape.pages * shape.page_size)

    def at(self, table: list[int], slot: int) -> int:
        """Where token slot number `slot` of a sequence with that page table lies in `values`."""
        return table[slot // self.size] * self.size + slot % self.size


class ScriptedState:
    """What `ScriptedModel` remembers."""

    device = torch.device("cpu")

    def __init__(self, shape: StateShape) -> None:
        self.shape = shape
        self.committed = [-1] * shape.slots  # of each recurrent slot
        self.logged: list[list[int]] = [[]] * shape.slots  # tokens of its last verify step
        self.trunk, self.draft = Pages(shape), Pages(shape)
        self.streams = SimpleNamespace(tail=_Tails(self))

    def copy_slots(self, sources: Tensor, targets: Tensor) -> None:
        for a, b in zip(sources.tolist(), targets.tolist(), strict=True):
            self.committed[b], self.logged[b] = self.committed[a], self.logged[a]

    def commit_slots(self, slots: Tensor, rows: Tensor) -> None:
        for slot, count in zip(slots.tolist(), rows.tolist(), strict=True):
            self.commit(slot, count)

    def commit(self, slot: int, rows: int) -> None:
        """Commit the first `rows` logged rows of a slot."""
        for token in self.logged[slot][:rows]:
            self.committed[slot] = after(self.committed[slot], token)


class _Tails:
    """`streams.tail[slots, 0]`: the streams of the last committed row of each of `slots`, [slots, 3]."""

    def __init__(self, state: ScriptedState) -> None:
        self.state = state

    def __getitem__(self, index: tuple[list[int], int]) -> Tensor:
        return torch.tensor([[self.state.committed[slot], 0, 0] for slot in index[0]])


class ScriptedModel:
    """Streams are rows of int64 (hash of the text so far, position of the draft to make, its depth).

    `wrong` says which drafts err. Every forward pass of the trunk takes `pause` seconds, and number `fail_at`
    (1, 2, ...) raises. `forward_seconds` is what the model itself, not the engine, has taken.
    """

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(
        self,
        vocabulary: int,
        end: int,
        wrong: Wrong = never,
        pause: float = 0.0,
        fail_at: int | None = None,
    ) -> None:
        self.config = small_config(vocab_size=vocabulary)
        self.draft = ScriptedDraft(self)
        self.weights: dict[str, Tensor] = {}
        self.end, self.wrong, self.pause, self.fail_at = end, wrong, pause, fail_at
        self.steps = 0
        self.forward_seconds = 0.0
        self._next: dict[int, dict[int, float]] = {}  # logits by the hash of all before

    def learn(self, prompt: Sequence[int], answer: Sequence[int], peak: float = PEAK) -> None:
        """Say `answer`, then the end token, after `prompt`; with a lower `peak` where something prevents better."""
        text = 0
        for token in prompt:
            text = after(text, token)
        for token in (*answer, self.end):
            known = {t: p for t, p in self._next.get(text, {}).items() if p < PEAK or peak < PEAK}
            self._next[text] = {**known, token: max(peak, known.get(token, 0.0))}
            text = after(text, token)

    def forward(self, batch: Batch, state: ScriptedState, buffers: Buffers) -> Tensor:
        """Read the rows of `batch`: [rows, 3]."""
        start = time.perf_counter()
        self.steps += 1
        if self.steps == self.fail_at:
            raise RuntimeError(f"planted in step {self.steps}")
        if self.pause:
            time.sleep(self.pause)
        out = []
        tokens, slots, replay, tables = (
            t.tolist() for t in (batch.tokens, batch.slots, batch.replay, batch.pages)
        )
        for i, first in enumerate(batch.firsts):
            slot, table, rows = slots[i], tables[i], tokens[batch.starts[i] : batch.starts[i + 1]]
            text = self._before(state, slot, replay[i], first, table)
            for position, token in enumerate(rows, first):
                text = after(text, token)
                state.trunk.values[state.trunk.at(table, position)] = text
                out.append(text)
            if i < batch.decode_sequences:
                assert len(rows) <= state.shape.window, "more rows than a verify step may log"
                state.logged[slot] = rows
            else:
                state.committed[slot], state.logged[slot] = text, []
        streams = torch.from_numpy(np.array([(text, 0, 0) for text in out]))
        self.forward_seconds += time.perf_counter() - start
        return streams

    def _before(self, state: ScriptedState, slot: int, replay: int, first: int, table: list[int]) -> int:
        """The text before position `first`, once the accepted rows are committed."""
        if first == 0:
            state.committed[slot] = 0
            return 0
        state.commit(slot, replay)
        text = state.committed[slot]
        assert state.trunk.values[state.trunk.at(table, first - 1)] == text, "slot and pages disagree"
        return text

    def logits(self, x: Tensor, decode_rows: int, buffers: Buffers) -> Tensor:
        """[n, vocabulary] float32: what comes after the text of each row; the end if nothing was learnt."""
        start = time.perf_counter()
        out = self.peaks([self.following(text) for text in x[:, 0].tolist()])
        self.forward_seconds += time.perf_counter() - start
        return out

    def following(self, text: int) -> dict[int, float]:
        return self._next.get(text, {self.end: PEAK})

    def peaks(self, logits: list[dict[int, float]]) -> Tensor:
        out = torch.zeros(len(logits), self.config.vocab_size)
        for row, said in zip(out, logits, strict=True):
            row[list(said)] = torch.tensor(list(said.values()))
        return out


class ScriptedDraft:
    """The draft head: sees row p and token p + 1, and says the token at p + 2."""

    def __init__(self, trunk: ScriptedModel) -> None:
        self.trunk = trunk

    def forward(self, batch: Batch, state: ScriptedState, buffers: Buffers) -> Tensor:
        """The handed streams [rows, 3] and one token more for each -> the head's own streams."""
        start = time.perf_counter()
        out, rows = [], buffers.handed[: len(batch.tokens)].tolist()
        tokens, tables = batch.tokens.tolist(), batch.pages.tolist()
        for i, first in enumerate(batch.firsts):
            for row in range(batch.starts[i], batch.starts[i + 1]):
                text, _, depth = rows[row]
                position = first + row - batch.starts[i]
                at = state.draft.at(tables[i], position)
                assert not position or state.draft.values[at] == text, "streams and draft pages disagree"
                text = after(text, tokens[row])
                state.draft.values[state.draft.at(tables[i], position + 1)] = text
                out.append((text, position + 2, depth + 1))
        z = torch.from_numpy(np.array(out))
        self.trunk.forward_seconds += time.perf_counter() - start
        return z

    def logits(self, z: Tensor, decode_rows: int, buffers: Buffers) -> Tensor:
        """[n, vocabulary] float32."""
        start, trunk = time.perf_counter(), self.trunk
        tokens = []
        for text, position, depth in z.tolist():
            right = trunk.following(text)
            if trunk.wrong(depth, position):
                best = max(right, key=right.__getitem__)
                right = {(best + 1) % trunk.config.vocab_size: PEAK}
            tokens.append(right)
        out = trunk.peaks(tokens)
        trunk.forward_seconds += time.perf_counter() - start
        return out


class ScriptedEngine(Engine):
    """The real engine on a scripted model. `answer` says what to say after a prompt, and may be replaced.

    A step gives `tokens_per_step` tokens to each request that decodes, fewer where drafts err: it is the draft
    depth and one more. `limits` are those of EngineConfig; `model` may be given `wrong`, `pause`, `fail_at`.
    """

    model: ScriptedModel  # type: ignore[assignment]
    state: ScriptedState  # type: ignore[assignment]

    def __init__(
        self,
        answer: Answer,
        *,
        model: ScriptedModel | None = None,
        tokens_per_step: int = 1,
        context: int = 1024,
        adaptive_draft: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        **limits: Any,
    ) -> None:
        self.answer = answer
        model = model or ScriptedModel(vocabulary=320, end=319)
        limits |= dict(context=context, draft=tokens_per_step - 1, adaptive_draft=adaptive_draft)
        super().__init__(model, EngineConfig(**limits), (model.end,), clock)  # type: ignore[arg-type]

    def _allocate(self) -> Memory:
        limits = plan_limits(self.config, torch.float32)
        slots = limits.sequences + limits.snapshots + 1
        shape = StateShape(slots, limits.pages() + 1, limits.page_size, limits.window)
        unused = torch.empty(0)
        buffers = Buffers(
            streams=unused,
            handed=torch.empty(limits.rows, 3, dtype=torch.int64),
            inputs=unused,
            outputs=unused,
            logits=torch.empty(limits.decode_rows, 0),
            tables=torch.zeros(2 * limits.sequences + 1, table_width(limits), dtype=torch.int64),
            space=unused,
        )
        empty = Arena((), self.model.device)
        return Memory(empty, empty, ScriptedState(shape), buffers, unused)  # type: ignore[arg-type]

    def add(self, request: Request, grammar: Grammar | None = None) -> None:
        self.model.learn(request.prompt, self.answer(request.prompt))
        super().add(request, grammar)
