"""The checkpoint's own chat template, rendered as transformers renders it (byte for byte).

Templates are programs from a file, so they run in jinja2's immutable sandbox: no attribute that begins
with an underscore, no method that changes a value, `range` up to 100,000. They see plain JSON values
only. One rendering may take `sandbox.STEP_LIMIT` loop turns and calls together, and Python's recursion depth.
Memory is not bounded: a template that multiplies strings can exhaust it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nextfit.errors import CheckpointError, RequestError
from nextfit.text.messages import normalize_messages, plain

if TYPE_CHECKING:
    import jinja2


class ChatTemplate:
    """A compiled template; rendering is thread-safe.

    `variables` are visible in every rendering: the tokenizer's `template_variables`.
    """

    def __init__(self, source: str, variables: Mapping[str, str] | None = None) -> None:
        """Raises CheckpointError when `source` is not a template."""
        self.source = source
        self._variables = dict(variables or {})
        try:
            self._template = _environment().from_string(source)
        except Exception as error:  # also Python's own, for what jinja2 translates but Python refuses
            line = getattr(error, "lineno", None)
            place = f", line {line}" if line is not None else ""
            raise CheckpointError(f"chat template{place}: {error}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for `messages` (OpenAI's shape; see `normalize_messages`).

        `kwargs` (`enable_thinking`, `reasoning_effort` ...) are seen by the template under their names
        and stay undefined when not given; `chat_template_kwargs` win over them. Raises RequestError,
        with the template's own words when it refuses the conversation.
        """
        from jinja2.exceptions import TemplateError

        from nextfit.text.sandbox import start_counting

        try:
            fixed = {"messages": normalize_messages(messages), "tools": plain(tools, "tools")}
            fixed |= {
                "documents": plain(documents, "documents"),
                "add_generation_prompt": add_generation_prompt,
            }
            given = plain({**kwargs, **(chat_template_kwargs or {})}, "chat_template_kwargs")
        except RecursionError:
            raise RequestError("the request is nested too deeply for a chat template", "messages") from None
        if taken := sorted(fixed.keys() & given.keys()):
            raise RequestError(
                f"chat_template_kwargs has {taken[0]!r}, which is set by a field of its own",
                "chat_template_kwargs",
            )
        start_counting()
        try:
            return self._template.render({**self._variables, **given, **fixed})
        except TemplateError as error:
            raise RequestError(f"chat template: {error.message}", "messages") from None
        except Exception as error:  # whatever an operation inside the template raises on these values
            raise RequestError(f"chat template: {type(error).__name__}: {error}", "messages") from None


def _environment() -> jinja2.Environment:
    """transformers' settings, filters and globals."""
    from jinja2.ext import loopcontrols

    from nextfit.text.sandbox import GenerationTag, Sandbox, TemplateDict, TemplateNamespace

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = TemplateDict()
    environment.globals["namespace"] = TemplateNamespace
    del environment.globals["lipsum"]  # unbounded work in one call
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes <, > and & for HTML, which would change every tool schema."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(format)
