"""What the server's process and the engine's process say to each other.

One struct per message, as msgpack. Both ends come from one installation; `Hello` makes sure of it before
anything else is said, so it keeps its field whatever `VERSION` is.
"""

from __future__ import annotations

import msgspec

from nextfit.config import GenerationDefaults
from nextfit.engine.config import EngineConfig
from nextfit.engine.request import Output, Request, Stats
from nextfit.memory.ledger import Account
from nextfit.ops.choice import Choice

VERSION = 7


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
    """End after the current step, and after saving the prefix cache."""


class Hello(Message):
    """The engine's first message, before it imports or loads anything heavy."""

    version: int


class Loading(Message):
    """Bytes of weights."""

    done: int
    total: int


class Ready(Message):
    """The model is loaded, and what the server must know of it."""

    config: EngineConfig
    defaults: GenerationDefaults
    device: str
    dtype: str  # that the model computes in


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
    """What is in use, and what happened since the engine started; also its sign of life.

    Sent whenever it falls idle, and four times a second or, where a step takes longer, after it.
    """

    running: int  # requests; each has a slot
    waiting: int
    pages: int  # held by requests
    cached_pages: int  # held by the prefix cache alone
    snapshots: int
    host_pages: int  # of the prefix cache, in host memory
    sent_pages: int  # that were copied there
    returned_pages: int  # and back
    steps: int
    preemptions: int
    totals: Stats  # of all requests
    memory: list[Account]  # of the engine's process
    operators: list[Choice] = []  # the routes they took


class Saving(Message):
    """Bytes of the prefix cache, after Stop."""

    done: int
    total: int


class Died(Message):
    """The engine's last message. `refused`: the model or its settings cannot be used, so neither can they again."""

    reason: str
    refused: bool


Command = Welcome | Add | Cancel | FlushCache | Stop
Event = Hello | Loading | Ready | Accepted | Refused | Outputs | Gauges | Saving | Died

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
