"""Calls of functions that no training has seen: the right one of three, with exactly the right arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from nextfit.accept import words
from nextfit.accept.case import Case, Lane, Message, user
from nextfit.text.events import Reply


class _Function(NamedTuple):
    name: str
    description: str
    parameters: dict[str, Message]  # JSON schemas by name; all are required
    draw: Callable[[Random], dict[str, Any]]  # arguments of a call
    asked: tuple[str, ...]


_TEXT, _WHOLE, _NUMBER, _FLAG = ({"type": t} for t in ("string", "integer", "number", "boolean"))


def _city(r: Random) -> str:
    return r.choice(words.PLACES)


def _hour(r: Random) -> str:
    return f"{r.randrange(7, 23):02}:{r.choice((0, 10, 20, 40)):02}"


_PARAGRAPHS = ("shipment arrived", "gate is jammed", "meeting moved", "keys are found", "boiler leaks")
_UNITS = {"type": "string", "enum": ["metric", "imperial"]}

FUNCTIONS = (
    _Function("weather_report", "Current weather of a city.", {"city": _TEXT, "system": _UNITS},
              lambda r: {"city": _city(r), "system": r.choice(("metric", "imperial"))},
              ("How is the weather in {city}, in {system} units?", "Weather report for {city} please, {system}.")),
    _Function("dine_reservation", "Reserves a restaurant table.", {"restaurant": _TEXT, "guests": _WHOLE, "time": _TEXT},
              lambda r: {"restaurant": r.choice(words.FAMILY), "guests": r.randint(2, 12), "time": _hour(r)},
              ("Could we dine at {restaurant} with {guests} guests at {time}?", "A table for {guests} at {restaurant}, {time} please.")),
    _Function("exchange_money", "Exchanges an amount into a currency.", {"amount": _NUMBER, "currency": _TEXT},
              lambda r: {"amount": r.choice((r.randrange(5, 900), r.randrange(50, 9000) / 10)), "currency": r.choice(("francs", "rupees", "zloty", "kroner"))},
              ("Exchange {amount} into {currency}.", "I would like {amount} exchanged into {currency}.")),
    _Function("wake_me", "Sets an alarm clock.", {"at": _TEXT}, lambda r: {"at": _hour(r)},
              ("Wake me at {at}.", "Please have the alarm ring at {at}.")),
    _Function("telegram_dispatch", "Dispatches a telegram.", {"addressee": _TEXT, "wording": _TEXT},
              lambda r: {"addressee": words.full_name(r), "wording": r.choice(_PARAGRAPHS)},
              ("Dispatch a telegram to {addressee} saying {wording}.", "Telegram for {addressee}: {wording}")),
    _Function("thermostat", "Sets the temperature of a room.", {"chamber": _TEXT, "celsius": _WHOLE},
              lambda r: {"chamber": r.choice(("nursery", "attic", "cellar", "study")), "celsius": r.randint(12, 27)},
              ("Make the {chamber} {celsius} degrees warm.", "Thermostat of the {chamber} to {celsius}.")),
    _Function("train_connection", "Looks for trains between two cities.", {"from": _TEXT, "to": _TEXT},
              lambda r: dict(zip(("from", "to"), words.distinct(r, _city, 2), strict=True)),
              ("Which trains go from {from} to {to}?", "I need a train connection from {from} to {to}.")),
    _Function("roll_dice", "Rolls dice.", {"dice": _WHOLE, "sides": _WHOLE},
              lambda r: {"dice": r.randint(1, 6), "sides": r.choice((4, 6, 8, 12, 20))},
              ("Roll {dice} dice with {sides} sides.", "Throw {dice} dice of {sides} sides each.")),
    _Function("parcel_status", "Where a parcel is.", {"tracking": _TEXT}, lambda r: {"tracking": words.code(r)},
              ("Where is parcel {tracking}?", "What is the status of the parcel {tracking}?")),
    _Function("stock_quote", "The price of a share.", {"ticker": _TEXT}, lambda r: {"ticker": "".join(r.choice("BCDFGHKLMNPRSTVX") for _ in range(4))},
              ("What does {ticker} trade at?", "Stock quote of {ticker} please.")),
    _Function("jukebox", "Plays music.", {"performer": _TEXT, "shuffle": _FLAG},
              lambda r: {"performer": words.full_name(r), "shuffle": True},
              ("Play something by {performer}, shuffled.", "Put {performer} on, and shuffle it.")),
    _Function("cinema_seats", "Buys cinema seats.", {"film": _TEXT, "seats": _WHOLE},
              lambda r: {"film": " ".join(w.title() for w in words.distinct(r, lambda q: q.choice(words.WORDS), 2)), "seats": r.randint(1, 9)},
              ("{seats} seats for {film} please.", "Get {seats} cinema seats for the film {film}.")),
    _Function("trim_picture", "Cuts a picture to a size.", {"picture": _TEXT, "pixels": _WHOLE},
              lambda r: {"picture": f"{r.choice(words.WORDS)}.png", "pixels": r.randrange(100, 2000, 20)},
              ("Trim {picture} to {pixels} pixels.", "Cut the picture {picture} to {pixels} pixels.")),
    _Function("pay_invoice", "Pays an invoice.", {"invoice": _TEXT, "total": _NUMBER},
              lambda r: {"invoice": words.code(r), "total": r.randrange(10, 3000)},
              ("Pay invoice {invoice} over {total} euros.", "Settle the invoice {invoice}, total {total}.")),
    _Function("bulb_colour", "Changes the colour of a lamp.", {"colour": _TEXT, "percent": _WHOLE},
              lambda r: {"colour": r.choice(("crimson", "indigo", "amber", "scarlet")), "percent": r.randrange(5, 100, 5)},
              ("Make the light {colour} at {percent} percent.", "Lamp colour {colour}, brightness {percent} percent.")),
)  # fmt: skip


def schema(f: _Function) -> Message:
    parameters = {"type": "object", "properties": f.parameters, "required": list(f.parameters)}
    return {
        "type": "function",
        "function": {"name": f.name, "description": f.description, "parameters": parameters},
    }


def _calls(name: str, arguments: dict[str, Any], reply: Reply) -> bool:
    if len(reply.calls) != 1 or reply.calls[0].name != name:
        return False
    try:
        return bool(json.loads(reply.calls[0].arguments) == arguments)
    except ValueError:
        return False


def calls(r: Random, count: int) -> list[Lane]:
    """`auto` tool choice, no grammar: the model decides."""
    found = []
    for i in range(count):
        f = FUNCTIONS[i % len(FUNCTIONS)]
        offered = [f, *r.sample([g for g in FUNCTIONS if g is not f], 2)]
        r.shuffle(offered)
        arguments = f.draw(r)
        text = r.choice(f.asked).format(**arguments)
        right = lambda reply, f=f, arguments=arguments: _calls(f.name, arguments, reply)  # noqa: E731
        expected = f"{f.name}({json.dumps(arguments)})"
        found.append([Case("tool call", f.name, (user(text),), expected, right, tuple(map(schema, offered)))])
    return found


def results(r: Random, count: int) -> list[Lane]:
    """What a call brought has to be in the answer."""
    found = []
    for i in range(count):
        f = FUNCTIONS[i % len(FUNCTIONS)]
        arguments, value = f.draw(r), words.code(r)
        call = {"type": "function", "id": "call_1", "function": {"name": f.name, "arguments": arguments}}
        messages = (
            user(r.choice(f.asked).format(**arguments)),
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": f"I call {f.name}.",
                "tool_calls": [call],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": json.dumps({"answer": value})},
        )
        right = lambda reply, value=value: value in reply.content and not reply.calls  # noqa: E731
        found.append([Case("tool result", f.name, messages, value, right, (schema(f),))])
    return found
