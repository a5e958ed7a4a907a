"""What the server's process and the engine's process say to each other.

One struct per message, as msgpack. Both ends come from one installation; `Hello` makes sure of it before
anything else is said, so it keeps its field whatever `VERSION` is.
"""

from __future__ import annotations

import msgspec

from nextfit.config import GenerationDefaults
from nextfit.engine.request import Output, Request

VERSION = 1


class Message(msgspec.Struct, array_like=True, tag=True):
    """An array: the name of the struct, then its fields in order."""


class Welcome(Message):
    """The server's answer to a Hello of its own version; the engine loads when it has it."""


class Add(Message):
    request: Request


class Cancel(Message):
    id: str


class FlushCache(Message):
    """Forget every cached prefix that no running request uses."""


class Stop(Message):
    """End after the current step."""


class Hello(Message):
    """The engine's first message, before it imports or loads anything heavy."""

    version: int


class Loading(Message):
    """Bytes of weights."""

    done: int
    total: int


class Ready(Message):
    """The model is loaded, and what the server must know of it."""

    context: int  # tokens, prompt and answer together
    sequences: int  # requests computed at once
    defaults: GenerationDefaults


class Accepted(Message):
    """The engine took the request; its first tokens are some steps away."""

    id: str


class Refused(Message):
    """The engine did not take the request. With `fault` it is to blame itself and `param` is None."""

    id: str
    message: str
    param: str | None
    fault: bool


class Outputs(Message):
    """What one step gave."""

    outputs: list[Output]


class Gauges(Message):
    """What is in use, whenever the engine falls idle and once a second while it works."""

    running: int
    waiting: int
    free_slots: int
    free_pages: int  # held by no request; the prefix cache may keep some of them


class Died(Message):
    """The engine's last message. `refused`: the model or its settings cannot be used, so neither can they again."""

    reason: str
    refused: bool


Command = Welcome | Add | Cancel | FlushCache | Stop
Event = Hello | Loading | Ready | Accepted | Refused | Outputs | Gauges | Died

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
