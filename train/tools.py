"""Tool calls with schemas that hardly ever come twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from train import words

Schema = dict[str, Any]
Say = Callable[[str, str], dict[str, Any]]

_DO = "get set find book send list open close start stop check create delete move order play read search update show".split()
_SHOW = {
    "get": ("Get", "Tell me", "I need"), "set": ("Set", "Change"), "find": ("Find", "Look for"), "book": ("Book", "Reserve"),
    "send": ("Send", "Pass on"), "list": ("List", "Show me all of"), "open": ("Open",), "close": ("Close", "Shut"),
    "start": ("Start", "Begin"), "stop": ("Stop", "End"), "check": ("Check", "Look at"), "create": ("Create", "Make"),
    "delete": ("Delete", "Remove"), "move": ("Move",), "order": ("Order", "Buy"), "play": ("Play",), "read": ("Read", "Open"),
    "search": ("Search", "Look for"), "update": ("Update", "Change"), "show": ("Show", "Display"),
}  # fmt: skip
_TEXT = "city person title topic place owner target label item subject recipient artist street reason".split()
_WHOLE = "count days limit level page volume hours year size amount floor minutes".split()
_FLAG = "urgent private loud silent cached verbose".split()
_CHOICE = {
    "unit": ("celsius", "kelvin"),
    "mode": ("fast", "slow", "safe"),
    "colour": tuple(words.COLOURS),
    "format": ("pdf", "text", "html"),
}
_RESULT = "status price result total temperature place answer id time".split()


def _parameter(r: Random, taken: set[str]) -> tuple[str, Schema]:
    kind = r.choices(("text", "whole", "flag", "choice"), (5, 3, 1, 1.5))[0]
    source = {"text": _TEXT, "whole": _WHOLE, "flag": _FLAG, "choice": list(_CHOICE)}[kind]
    key = r.choice([k for k in source if k not in taken] or ["extra"])
    if r.random() < 0.3 and kind != "choice":
        key = f"{words.word(r)}_{key}" if r.random() < 0.5 else f"{r.choice(words.NOUNS)}_{key}"
    schema: Schema = {
        "type": {"text": "string", "whole": "integer", "flag": "boolean", "choice": "string"}[kind]
    }
    if kind == "choice" and key in _CHOICE:
        schema["enum"] = list(_CHOICE[key])
    return key, schema


def _function(r: Random) -> tuple[str, Schema]:
    do, thing = r.choice(_DO), r.choice(words.NOUNS) if r.random() < 0.6 else words.word(r)
    properties: Schema = {}
    for _ in range(r.choice((1, 1, 2, 2, 3))):
        key, schema = _parameter(r, set(properties))
        properties[key] = schema
    described = f"{do.title()} the {thing}." if r.random() < 0.7 else f"Use this to {do} a {thing}."
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": f"{do}_{thing}", "description": described, "parameters": parameters}
    return do, {"type": "function", "function": function}


def _value(r: Random, schema: Schema) -> Any:
    if schema["type"] == "integer":
        return r.randrange(1, 10 ** r.randint(1, 4))
    if schema["type"] == "boolean":
        return r.random() < 0.5
    if "enum" in schema:
        return r.choice(schema["enum"])
    return r.choice((words.name, words.full_name, words.word, lambda q: q.choice(words.PLACES), words.code))(
        r
    )


_WITH = (
    "with {k} {v}",
    "{k} {v}",
    "{k}: {v}",
    "{k} = {v}",
    "the {k} is {v}",
    "use {v} as {k}",
    "for {k} {v}",
)


def _asked(r: Random, do: str, function: Schema, arguments: Schema) -> str:
    thing = function["name"].split("_", 1)[1]
    style = r.choice(_WITH) if r.random() < 0.5 else None
    parts = []
    for k, v in arguments.items():
        shown = {True: "yes", False: "no"}.get(v, v) if isinstance(v, bool) else v
        parts.append((style or r.choice(_WITH)).format(k=k.replace("_", " "), v=shown))
    verb = r.choice(_SHOW[do])
    line = f"{verb} the {thing}, " if r.random() < 0.7 else f"{verb} a {thing}: "
    lead = r.choice(("", "", "", "Please: ", "Can you help? ", "I want this: "))
    return f"{lead}{line}{', '.join(parts)}."


def tools(r: Random, say: Say) -> tuple[list[dict[str, Any]], list[Schema]]:
    """Messages and schemas: one of several functions is called, and its result used; at times none fits."""
    made = {
        s["function"]["name"]: (do, s) for do, s in (_function(r) for _ in range(r.choice((1, 2, 2, 3, 4))))
    }
    messages: list[dict[str, Any]] = []
    for _ in range(r.choice((1, 1, 1, 2))):
        if r.random() < 0.12:
            a, b = r.randint(1, 20), r.randint(1, 20)
            messages += [
                {"role": "user", "content": f"What is {a} + {b}?"},
                say(f"{a} + {b} = {a + b}", "No function is needed."),
            ]
            continue
        do, schema = r.choice(list(made.values()))
        function = schema["function"]
        arguments = {k: _value(r, p) for k, p in function["parameters"]["properties"].items()}
        listed = list(arguments.items())
        r.shuffle(listed)
        messages.append({"role": "user", "content": _asked(r, do, function, dict(listed))})
        called = say("", f"I call {function['name']}.")
        called["tool_calls"] = [
            {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        ]
        messages.append(called)
        if r.random() < 0.8:
            key = r.choice(_RESULT)
            value = r.choice((words.code, words.name, lambda q: str(q.randrange(1000))))(r)
            messages += [
                {"role": "tool", "content": json.dumps({key: value})},
                say(f"The {key} is {value}.", "The result is there."),
            ]
        else:
            messages += [{"role": "tool", "content": "ok"}, say("Done.", "The result is there.")]
    return messages, [s for _, s in made.values()]
