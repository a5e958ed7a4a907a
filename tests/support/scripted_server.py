"""A real server on the scripted model, with the bundled model's tokenizer and template; the engine in its process.

    python -m tests.support.scripted_server '{"answers": {"hello": "<think>hm</think>Hi!"}, "tokens_per_step": 4}'

`load` is what a `Service` loads in the test's own process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from nextfit.checkpoint import Checkpoint, open_checkpoint
from nextfit.models import default_path
from nextfit.server.config import HttpConfig
from nextfit.server.engine_main import offer, run
from nextfit.server.loop import Built
from nextfit.server.process import EngineProcess
from nextfit.server.run import serve
from nextfit.server.service import Load, Served
from nextfit.server.worker import QUEUE, Worker
from nextfit.text import ChatTemplate, Tokenizer
from nextfit.text.grammar import Grammars
from nextfit.text.load import load_text

MODULE = "tests.support.scripted_server"

Said = str | Sequence[int]  # text, or token ids where text would be cut into others
Answer = Said | Sequence[Said]  # what it wants to say, then what it says where it may not say that


@cache
def bundled() -> tuple[Checkpoint, Tokenizer, ChatTemplate | None]:
    checkpoint = open_checkpoint(default_path()).require()
    return checkpoint, *load_text(checkpoint)


def load(
    answers: Mapping[str, Answer] | None = None,
    *,
    name: str = "scripted",
    queue: int = QUEUE,
    restart: bool = False,
    **options: Any,
) -> Load:
    """`answers` by a text that their prompt has; if it has several, the last one decides. A prompt with none is echoed.

    `options` are those of `ScriptedEngine` (`tokens_per_step`, `context`, `sequences`, `prefill_chunk` ...), `pause`
    and `fail_at` of `ScriptedModel`, and `wrong_at`, the depth at which drafts err.
    """
    arguments = json.dumps({"answers": answers or {}, **options})

    def load_scripted(report: object) -> Served:
        _, tokenizer, template = bundled()
        worker = Worker(EngineProcess(MODULE, arguments), queue, restart)
        return Served((name,), 1, tokenizer, template, worker)

    return load_scripted


def load_here(built: Built) -> Load:
    """The same for an engine of `build`, in a thread of the test's own process."""
    from tests.server.scripted import EngineThread

    _, tokenizer, template = bundled()
    return lambda report: Served(("scripted",), 1, tokenizer, template, Worker(EngineThread(built)))


def _ways(answer: Answer, tokenizer: Tokenizer) -> list[Sequence[int]]:
    """Token ids of an answer and of its other ways."""
    ways = [answer] if isinstance(answer, str) or not answer or isinstance(answer[0], int) else answer
    return [tokenizer.encode(way) if isinstance(way, str) else way for way in ways]  # type: ignore[misc]


def build(
    answers: Mapping[str, Answer], wrong_at: int = 0, grammars: Grammars | None = None, **options: Any
) -> Built:
    """The engine of `load`; `grammars` that several of them share."""
    from tests.support import scripted_model as scripted

    checkpoint, tokenizer, _ = bundled()
    said = {n: _ways(a, tokenizer) for n, a in answers.items()}

    def answer(prompt: list[int]) -> Sequence[int]:
        text = tokenizer.decode(prompt, skip_special=False)
        at = {n: text.rfind(n) for n in said}
        found = max(at, key=at.__getitem__, default=None)
        wanted, *others = [prompt] if found is None or at[found] < 0 else said[found]
        for other in others:
            model.learn(prompt, other, scripted.PEAK / 2)
        return wanted

    model = scripted.ScriptedModel(
        vocabulary=tokenizer.vocab_size,
        end=tokenizer.end_ids[0],
        wrong=scripted.wrong_at(wrong_at) if wrong_at else scripted.never,
        pause=options.pop("pause", 0.0),
        fail_at=options.pop("fail_at", None),
    )
    engine = scripted.ScriptedEngine(answer, model=model, **options)
    return offer(engine, checkpoint.generation, grammars or Grammars(tokenizer, tokenizer.vocab_size))


def main(arguments: Sequence[str]) -> None:
    """The engine's process: options as JSON, then what `EngineProcess` adds."""
    run(arguments[1:], lambda progress: build(**json.loads(arguments[0])))


if __name__ == "__main__":
    http = HttpConfig(port=0, drain=5)
    serve(load(**json.loads(sys.argv[1])), http, lambda line: print(line, flush=True))
