"""A task's unit: a conversation whose last answer is right or wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nextfit.text.events import Reply

Message = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """The user's turns of `messages` are answered one after the other; other messages stand as they are."""

    task: str
    group: str  # what its score is shown by: a length, a number of digits
    messages: tuple[Message, ...]
    expected: str  # for people
    right: Callable[[Reply], bool]  # of the last answer
    tools: tuple[Message, ...] = ()
    options: Message = field(default_factory=dict)  # of the chat template


# Cases that begin alike and are asked one after the other, so that the prefix cache can serve them.
Lane = list[Case]


def user(text: str) -> Message:
    return {"role": "user", "content": text}
