"""Every message survives the way; another version is told apart before anything else is said."""

from __future__ import annotations

import math
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request, Sampled, Stats
from nextfit.server import link, loop, messages
from nextfit.server.loop import run_engine
from tests.server.scripted import ScriptedEngine, built, says

SIGNED = st.integers(-(2**63), 2**63 - 1)
st.register_type_strategy(int, SIGNED)
st.register_type_strategy(float, st.floats(allow_nan=False))


def structs(union: Any) -> list[type[messages.Message]]:
    return list(typing.get_args(union))


def test_every_struct_travels_one_way() -> None:
    commands, events = structs(messages.Command), structs(messages.Event)
    assert set(messages.Message.__subclasses__()) == {*commands, *events}
    assert not {*commands} & {*events}


@pytest.mark.parametrize("struct", structs(messages.Command) + structs(messages.Event))
def test_round_trip(struct: type[messages.Message]) -> None:
    decode = messages.decode_command if struct in structs(messages.Command) else messages.decode_event

    @settings(max_examples=25, deadline=None, database=None)
    @given(st.builds(struct, **{f.name: st.from_type(f.type) for f in msgspec.structs.fields(struct)}))
    def check(message: messages.Message) -> None:
        found = decode(messages.encode(message))
        assert type(found) is struct
        assert found == message

    check()


def test_extremes() -> None:
    params = SamplingParams(seed=2**64 - 1, logit_bias={0: -100.0, 2**31: 0.5}, temperature=0, stop=("é",))
    add = messages.Add(Request("r", [0, 2**31 - 1], params))
    found = messages.decode_command(messages.encode(add))
    assert found == add
    sampled = Sampled(7, -math.inf, ((7, -math.inf), (8, 0.0)))
    out = messages.Outputs([Output("r", (sampled,), "error", 3, "why", Stats(1, 2, 3, 4, 5, 6), "grammar")])
    assert messages.decode_event(messages.encode(out)) == out


def test_types_are_kept() -> None:
    """Tuples stay tuples and classes classes: `==` alone would not tell for floats and ints."""
    out = messages.Outputs([Output("r", (Sampled(7, -1.0, ((7, -1.0),)),))])
    found = messages.decode_event(messages.encode(out))
    assert isinstance(found, messages.Outputs)
    output = found.outputs[0]
    assert type(output) is Output and type(output.tokens[0]) is Sampled
    assert [type(value) for value in msgspec.structs.astuple(output)][:2] == [str, tuple]
    assert type(output.tokens[0].top[0]) is tuple


def test_a_foreign_message_is_refused() -> None:
    for data in (messages.encode(messages.Stop()), b"\x91\xa3New", b""):
        with pytest.raises(msgspec.DecodeError):
            messages.decode_event(data)


def test_an_engine_that_is_not_welcomed_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "WELCOME_SECONDS", 0.1)
    monkeypatch.setattr(link, "FLUSH_SECONDS", 0.1)
    assert run_engine(tmp_path, lambda progress: built(ScriptedEngine(says("a"))), lambda: None) == 1
