"""One dispatch per operator: which of its routes a call takes, and why not a faster one.

A route is chosen by the device, the card, the class of the rows and a format, once for each combination; never by
how many rows there are. `choices` says what was chosen, for `/debug/routes`.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from nextfit.ops import compiled
from nextfit.ops.choice import Choice

log = logging.getLogger("nextfit.ops")

# Compute capabilities that every Triton kernel is compiled for by the tests: 7.0 as 70, and so on.
COMPILED = (70, 75, 80, 86, 89, 90, 100, 120)
# Those of them on which `python -m tests.device.kernels` found every kernel equal to its reference. A card that is
# not here takes the references: a kernel that never ran on it is not trusted with anybody's tokens.
CHECKED: tuple[int, ...] = ()

FLOATS = ("float32", "bfloat16", "float16")
F = TypeVar("F", bound=Callable[..., Any])
Key = tuple[torch.device, object, bool | None]


@dataclass(frozen=True, slots=True)
class Route:
    """An implementation beside the reference: the function of the same name in the operator's module `name`."""

    name: str
    formats: tuple[str, ...] = FLOATS
    few: bool | None = None  # True: decode and verify rows only, False: prefill rows only
    device: str = "cuda"


TRITON = Route("triton")
CPU = Route("cpu", ("bfloat16",), few=True, device="cpu")


class Operator(Generic[F]):
    """A reference and its other routes, the fastest first."""

    def __init__(self, reference: F, *routes: Route) -> None:
        self.package = reference.__module__.rpartition(".")[0]
        self.function = reference.__name__
        self.name = f"{self.package.removeprefix('nextfit.ops.')}.{self.function}"
        self.reference, self.routes = reference, routes
        self._chosen: dict[Key, tuple[F, Choice]] = {}
        OPERATORS[self.name] = self

    def __call__(self, device: torch.device, format: object, few: bool | None = None) -> F:
        """The function to call.

        `format`: the torch dtype of the values, or the format of the weight that the operator streams; `few`:
        whether the rows are decode or verify rows, None where the operator treats all rows alike.
        """
        key = (device, format, few)
        if key not in self._chosen:
            self._chosen[key] = self._choose(*key)
        function, choice = self._chosen[key]
        choice.calls += 1
        return function

    def route(self, name: str) -> F:
        """The function of a route, whatever it is admitted for. Raises ModuleNotFoundError where it needs more."""
        function: F = getattr(importlib.import_module(f"{self.package}.{name}"), self.function)
        return function

    def choices(self) -> list[Choice]:
        return [choice for _, choice in self._chosen.values()]

    def forget(self) -> None:
        """Choose anew."""
        self._chosen.clear()

    def _choose(self, device: torch.device, format: object, few: bool | None) -> tuple[F, Choice]:
        rows, name = {True: "few", False: "many", None: "any"}[few], str(format).removeprefix("torch.")
        passed: list[str] = []
        for route in self.routes:
            why = _refusal(route, device, name, few)
            if not why:
                try:
                    return self.route(route.name), Choice(
                        self.name, rows, name, route.name, "; ".join(passed)
                    )
                except ModuleNotFoundError as e:
                    why = f"{e.name} is not installed"
            passed.append(f"{route.name}: {why}")
        return self.reference, Choice(self.name, rows, name, "reference", "; ".join(passed))


OPERATORS: dict[str, Operator[Any]] = {}
_forced: str | None = None
_said: set[int] = set()


def _refusal(route: Route, device: torch.device, format: str, few: bool | None) -> str:
    """Why a call cannot take `route`, or nothing."""
    if format not in route.formats:
        return f"not for {format}"
    if route.few is not None and few is not route.few:
        return f"only for {'few' if route.few else 'many'} rows"
    if _forced is not None:
        return "" if route.name == _forced else f"{_forced} is forced"
    if device.type != route.device:
        return f"not for {device.type}"
    if route.device == "cpu":
        return "" if compiled.kernels else "not compiled when the package was installed"
    major, minor = torch.cuda.get_device_capability(device)
    card = 10 * major + minor
    if card not in CHECKED:
        _say(card)
        return f"not checked on sm_{card}"
    return ""


def _say(card: int) -> None:
    if card not in _said:
        _said.add(card)
        log.warning(
            "the kernels were not checked on a card of sm_%d: the reference operators run instead", card
        )


@contextmanager
def forced(route: str) -> Iterator[None]:
    """Within it every operator takes the route of this name where its formats allow, on any device. For tests."""
    global _forced
    before, _forced = _forced, route
    _forget()
    try:
        yield
    finally:
        _forced = before
        _forget()


def _forget() -> None:
    for operator in OPERATORS.values():
        operator.forget()


def choices() -> list[Choice]:
    """What was chosen so far, operator by operator. An operator that is not there has only its reference."""
    return [choice for _, operator in sorted(OPERATORS.items()) for choice in operator.choices()]
