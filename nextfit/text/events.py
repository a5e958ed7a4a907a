"""What an answer consists of, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """Tool call number `index` (0, 1, ...) of the answer begins."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments: the pieces up to its CallEnd are the text of one JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is complete. One that lacks this was cut off, and its arguments are not to be used."""

    index: int


Event = Reasoning | Content | CallBegin | Arguments | CallEnd


def append(events: list[Event], event: Event) -> None:
    """Add `event`, as more text of the last one where it is of the same kind and call."""
    match events[-1] if events else None, event:
        case (Reasoning(a), Reasoning(b)):
            events[-1] = Reasoning(a + b)
        case (Content(a), Content(b)):
            events[-1] = Content(a + b)
        case (Arguments(i, a), Arguments(j, b)) if i == j:
            events[-1] = Arguments(i, a + b)
        case _:
            events.append(event)


@dataclass(slots=True)
class Call:
    name: str
    arguments: str = ""  # JSON


@dataclass(slots=True)
class Reply:
    """A whole answer, put together from its events."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, event: Event) -> None:
        match event:
            case Reasoning(text):
                self.reasoning += text
            case Content(text):
                self.content += text
            case CallBegin(_, name):
                self.calls.append(Call(name))
            case Arguments(index, text):
                self.calls[index].arguments += text
