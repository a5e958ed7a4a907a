"""`nextfit chat`: a conversation in the terminal, streamed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from nextfit.engine.request import Request
from nextfit.errors import ConfigError, RequestError
from nextfit.text import TextStream

if TYPE_CHECKING:
    from nextfit.llm import LLM

HELP = "/reset forgets the conversation · /exit or Ctrl-D leaves · Ctrl-C ends an answer"


@dataclass(frozen=True, slots=True)
class Settings:
    """None: what the checkpoint recommends."""

    system: str | None = None
    thinking: bool | None = None
    temperature: float | None = None
    seed: int | None = None
    max_tokens: int | None = None


@contextmanager
def loading() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr; the function takes bytes done and bytes in all."""
    columns = (TextColumn("loading"), BarColumn(), DownloadColumn(binary_units=True), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def converse(llm: LLM, settings: Settings, ask: Callable[[], str] = lambda: input("\n> ")) -> None:
    """Answer what `ask` returns until it raises EOFError or returns /exit."""
    if llm.template is None:
        raise ConfigError("the checkpoint has no chat template, so there is nothing to chat with")
    start = [{"role": "system", "content": settings.system}] if settings.system else []
    messages = list(start)
    print(HELP)
    while True:
        try:
            said = ask().strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if said == "/exit":
            return
        if said == "/reset":
            messages = list(start)
        elif said:
            messages.append({"role": "user", "content": said})
            try:
                answer = _answer(llm, settings, messages)
            except RequestError as error:
                print(f"nextfit: {error}", file=sys.stderr)
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})


def _answer(llm: LLM, settings: Settings, messages: list[dict[str, Any]]) -> str:
    """Generate one turn, printing it as it comes. Ctrl-C ends it; what was said until then counts."""
    assert llm.template is not None
    thinking = None if settings.thinking is None else {"enable_thinking": settings.thinking}
    prompt = llm.tokenizer.encode(llm.template.render(messages, chat_template_kwargs=thinking))
    given = {name: getattr(settings, name) for name in ("temperature", "seed", "max_tokens")}
    params = llm.sampling_params({name: value for name, value in given.items() if value is not None})
    request = Request("chat", prompt, params)
    stream = TextStream(llm.tokenizer)
    parts = []
    llm.engine.add(request)
    try:
        while llm.engine.has_work():
            for output in llm.engine.step():
                text = stream.push(s.token for s in output.tokens).text
                if output.finish_reason is not None:
                    text += stream.finish().text
                parts.append(text)
                print(text, end="", flush=True)
    except KeyboardInterrupt:
        llm.engine.cancel(request.id)
        while llm.engine.has_work():
            llm.engine.step()
    print()
    return "".join(parts)
