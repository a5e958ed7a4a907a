"""The jinja2 environment that chat templates run in. Imports jinja2; `template` imports it late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from jinja2 import nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

STEP_LIMIT = 5_000_000  # loop turns and calls of one rendering: a few seconds

_steps_left: ContextVar[list[int]] = ContextVar("steps_left")


def start_counting() -> None:
    """Give the rendering that begins in this context its `STEP_LIMIT`."""
    _steps_left.set([STEP_LIMIT])


def _step() -> None:
    left = _steps_left.get()
    left[0] -= 1
    if left[0] < 0:
        raise SecurityError(f"more than {STEP_LIMIT:,} loop turns and calls in one rendering")


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _step()
        yield value


class Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with a limit on loop turns and calls."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters["_counted"] = _counted

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None, lineno=loop.lineno)
        tree.set_environment(self)
        return tree

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _step()
        return super().call(context, obj, *args, **kwargs)


class GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the model wrote; only training reads it."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body, lineno=line)

    @pass_eval_context
    def _body(self, context: nodes.EvalContext, caller: Callable[[], str]) -> str:
        return caller()


class TemplateDict:
    """`dict` as a template may use it: to build one, not to reach the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class TemplateNamespace(Namespace):
    """`namespace` without names that begin with an underscore."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _refuse_private(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"namespace attribute {name!r} begins with an underscore")
