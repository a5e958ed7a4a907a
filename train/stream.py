"""Conversations as rows of tokens, made by processes of their own while the model trains."""

from __future__ import annotations

import multiprocessing as mp
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from nextfit.text.tokenizer import Tokenizer
from train import nano, words
from train.tasks import Sample, draw

TASKS = ("arithmetic", "retrieval", "recall", "tools", "facts", "chat")
RESERVOIR = 256  # batches that may come again when the processes fall behind


@dataclass(frozen=True)
class Packed:
    """Rows of whole conversations; each begins at a multiple of 4 and ends in at least one end of text."""

    tokens: NDArray[np.uint16]  # [rows, width]
    position: NDArray[np.uint16]  # [rows, width], within the conversation
    task: NDArray[
        np.uint8
    ]  # [rows, width]: 1 + number of the task where the model is to say the token, else 0


def render(sample: Sample) -> str:
    return nano.template().render(
        sample.messages, sample.tools, add_generation_prompt=False, **sample.options
    )


def _id(tokenizer: Tokenizer, token: str) -> int:
    id = tokenizer.id_of(token)
    assert id is not None, token
    return id


def said(ids: list[int], tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Which tokens the model says: what follows a generation prompt, up to the end of the turn."""
    start, end, think, close = (
        _id(tokenizer, t) for t in ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
    )
    role, line, empty = (tokenizer.encode(t) for t in ("assistant\n", "\n", "\n\n"))
    out = np.zeros(len(ids), bool)
    i = 0
    while i < len(ids):
        if ids[i] != start or ids[i + 1 : i + 1 + len(role)] != role:
            i += 1
            continue
        i += 1 + len(role)
        if ids[i] == think and ids[i + 1 : i + 2] == line:
            i += 2
        elif ids[i : i + 4] == [think, *empty, close, *empty]:
            i += 4
        else:
            raise ValueError(f"an answer that begins with {tokenizer.decode(ids[i : i + 8])!r}")
        stop = ids.index(end, i)
        out[i : stop + 1] = True
        i = stop + 1
    return out


def packed(seed: int, rows: int, width: int, long: float) -> Iterator[Packed]:
    """Batches of `rows` rows of `width` tokens, for ever."""
    random, tokenizer = Random(seed), nano.tokenizer()
    boundary, words.pieces = _id(tokenizer, "<|endoftext|>"), nano.pieces()
    while True:
        tokens = np.full((rows, width), boundary, np.uint16)
        position = np.tile(np.arange(width, dtype=np.uint16), (rows, 1))
        task = np.zeros((rows, width), np.uint8)
        used = np.zeros(rows, int)
        misses = 0
        while misses < 4:
            sample = draw(random, width, long)
            ids = tokenizer.encode(render(sample))
            n = (len(ids) // 4 + 1) * 4
            fits = np.flatnonzero(used + n <= width)
            if not len(fits):
                misses += 1
                continue
            row = fits[np.argmax(used[fits])]  # the fullest
            a = used[row]
            tokens[row, a : a + len(ids)] = ids
            position[row, a:] = np.arange(width - a)
            task[row, a : a + len(ids)] = said(ids, tokenizer) * (1 + TASKS.index(sample.task))
            used[row] += n
            position[row, used[row] :] = np.arange(width - used[row])
        yield Packed(tokens, position, task)


def _produce(out: mp.Queue, seed: int, rows: int, width: int, long: float) -> None:
    for batch in packed(seed, rows, width, long):
        out.put(batch)


class Stream:
    """Batches from `processes` processes; when none is ready, an earlier one again."""

    def __init__(self, seed: int, rows: int, width: int, long: float, processes: int) -> None:
        self.random, self.fresh, self.again = Random(seed), 0, 0
        self.kept: list[Packed] = []
        context = mp.get_context("spawn")
        self.queue = context.Queue(2 * processes)
        seeds = [seed * 1000 + i for i in range(processes)]
        self.processes = [
            context.Process(target=_produce, args=(self.queue, s, rows, width, long), daemon=True)
            for s in seeds
        ]
        for process in self.processes:
            process.start()

    def next(self) -> Packed:
        try:
            batch = self.queue.get(block=len(self.kept) < 8)
        except queue.Empty:
            self.again += 1
            return self.random.choice(self.kept)
        self.fresh += 1
        if len(self.kept) < RESERVOIR:
            self.kept.append(batch)
        else:
            self.kept[self.random.randrange(RESERVOIR)] = batch
        return batch

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
