"""A chat request's messages, tools and thinking as the checkpoint's template and the answer's reader know them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request

from nextfit.engine.params import SamplingParams
from nextfit.errors import RequestError
from nextfit.server.constraints import demanded, refused
from nextfit.server.errors import ApiError
from nextfit.server.generation import Generation
from nextfit.server.observe import Record
from nextfit.server.sampling import check_model, choices
from nextfit.server.schemas import ChatMessage, ChatRequest, unsupported
from nextfit.server.service import Served
from nextfit.server.stream import while_connected
from nextfit.text import MarkupReader, Tools, formats

# OpenAI's levels as the model's template knows them; "none" is no thinking at all
EFFORT = {"minimal": "low", "low": "low", "medium": "medium", "high": "xhigh", "xhigh": "xhigh"}
_NAME = re.compile(r"[^\s<>]{1,128}")  # that the call format can spell


@dataclass(frozen=True, slots=True)
class Conversation:
    """The prompt's token ids, and what is needed to read an answer to it."""

    ids: list[int]
    tools: Tools
    thinking: bool  # the prompt ends inside a thought
    single: bool  # one tool call at most
    thought_end: int | None  # the token that ends the thought in which the answer begins
    budget: int | None  # tokens that the thought may have
    grammar: str | None  # that the answer behind it keeps to

    def reader(self) -> MarkupReader:
        return MarkupReader(self.tools, thinking=self.thinking, single=self.single)

    def bound(self, params: Sequence[SamplingParams]) -> list[SamplingParams]:
        """Settings of the answer's choices with what the conversation demands of it."""
        own = {"thought_end": self.thought_end, "thinking_budget": self.budget, "grammar": self.grammar}
        return [replace(p, **own) for p in params]  # type: ignore[arg-type]


async def begin(body: ChatRequest, served: Served, request: Request) -> Generation:
    """The answer to `body`, which the engine has taken: refusals come before the status line of a stream.

    Raises ApiError, RequestError, QueueFull, and Disconnected when the client leaves first.
    """
    check_model(body.model, served)
    conversation = await asyncio.to_thread(converse, body, served)
    limit = body.max_completion_tokens or body.max_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = conversation.bound(choices(body, served, limit, logprobs))
    record = Record.of(request.scope)
    generation = Generation(served, [conversation.ids], params, record, conversation.reader)
    await while_connected(request, generation.start())
    return generation


def converse(body: ChatRequest, served: Served) -> Conversation:
    """Render and encode `body`. Raises ApiError and RequestError."""
    if served.template is None:
        raise ApiError(400, "the checkpoint has no chat template; /v1/completions works", code="unsupported")
    tools = _declared(body)
    if body.tool_choice == "none":
        tools = []  # the model is not told of them
    form = demanded(body, tools)
    kwargs: dict[str, Any] = {}
    if body.reasoning_effort == "none":
        kwargs["enable_thinking"] = False
    elif body.reasoning_effort is not None:
        kwargs["reasoning_effort"] = EFFORT[body.reasoning_effort]
    if body.enable_thinking is not None:
        kwargs["enable_thinking"] = body.enable_thinking
    messages = _one_system([_message(m, f"messages[{i}]") for i, m in enumerate(body.messages)])
    try:
        text = served.template.render(
            messages, tools or None, chat_template_kwargs=body.chat_template_kwargs, **kwargs
        )
    except RecursionError:
        raise RequestError("messages or chat_template_kwargs are nested too deeply", "messages") from None
    ids = served.tokenizer.encode(text)
    served.check_room(ids, "messages")
    thinking = text.rstrip().endswith("<think>")
    end = served.tokenizer.id_of("</think>") if thinking else None
    if thinking and end is None and (form or body.thinking_budget is not None):
        raise unsupported("thinking_budget or a form of the answer", "for a model without a token </think>")
    if form is not None and thinking:
        form = formats.after_thought(form)
    return Conversation(
        ids=ids,
        tools=Tools(tools),
        thinking=thinking,
        single=body.parallel_tool_calls is False,
        thought_end=end,
        budget=body.thinking_budget,
        grammar=form.source if form else None,
    )


def _declared(body: ChatRequest) -> list[dict[str, Any]]:
    """The tools as they were sent, checked."""
    tools, names = body.tools or [], set()
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if tool.get("type") != "function":
            raise unsupported(f"{where}.type", f"a tool of type {tool.get('type')!r} is")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise refused(f"{where}.function", "is missing or not an object")
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise refused(
                f"{where}.function.name", f"is {name!r}, expected 1 to 128 characters, no white space, < or >"
            )
        if name in names:
            raise refused(f"{where}.function.name", f"{name!r} is declared twice")
        if parameters is not None and not isinstance(parameters, dict):
            raise refused(f"{where}.function.parameters", f"is {parameters!r}, expected a JSON schema")
        names.add(name)
    return tools


def _message(message: ChatMessage, where: str) -> dict[str, Any]:
    """The turn with its text parts joined and the developer's role under the name that templates know."""
    fields = message.model_dump(exclude_none=True)
    if message.role == "developer":
        fields["role"] = "system"
    if isinstance(message.content, list):
        texts = []
        for i, part in enumerate(message.content):
            if part.type != "text" or part.text is None:
                raise unsupported(f"{where}.content[{i}]", f"a part of type {part.type!r} is")
            texts.append(part.text)
        fields["content"] = "".join(texts)
    return fields


def _one_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All system messages as one at the beginning, in their order: templates know no other place for them."""
    system = [m for m in messages if m["role"] == "system"]
    if len(system) < 2 and messages[0]["role"] == "system":
        return list(messages)
    rest = [m for m in messages if m["role"] != "system"]
    text = "\n\n".join(m["content"] for m in system if m.get("content"))
    return [{**system[0], "content": text}, *rest] if system else rest
