"""Tool calls with schemas that hardly ever come twice, asked for as people ask."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from train import words
from train.say import asked, say, say_one

Schema = dict[str, Any]
Say = Callable[[str, str], dict[str, Any]]

# what a function does: its name and how it is asked for
_VERBS: tuple[tuple[str, str], ...] = (
    ("get", "[get|fetch|tell me|give me|show me|I need|what is|look up]"), ("set", "[set|change|adjust|put|turn]"), ("find", "[find|look for|search for|I am looking for|where is]"), ("book", "[book|reserve|get me]"),
    ("send", "[send|pass on|deliver|write|mail]"), ("list", "[list|show me all of|show all of|which are|give me a list of]"), ("open", "[open|unlock]"), ("close", "[close|shut|lock]"), ("start", "[start|begin|launch|run|switch on]"),
    ("stop", "[stop|end|halt|switch off|finish]"), ("check", "[check|look at|test|verify|is everything all right with]"), ("create", "[create|make|add|set up|I want a new|new]"), ("delete", "[delete|remove|erase|get rid of|throw away]"),
    ("move", "[move|bring|shift|carry]"), ("order", "[order|buy|purchase|I want|get me]"), ("play", "[play|put on|I want to hear|start]"), ("read", "[read|open|show me]"), ("search", "[search|look for|find|search for]"),
    ("update", "[update|change|edit|modify|correct]"), ("show", "[show|display|show me|let me see]"), ("cancel", "[cancel|call off|drop|stop]"), ("add", "[add|put|enter|note]"), ("schedule", "[schedule|plan|arrange|set up]"),
    ("calculate", "[calculate|compute|work out|what is]"), ("convert", "[convert|change|turn|translate]"), ("track", "[track|follow|where is|watch]"), ("rent", "[rent|hire|I need]"), ("pay", "[pay|settle|transfer]"), ("call", "[call|phone|ring]"),
    ("print", "[print|put on paper]"), ("share", "[share|pass on|publish]"), ("rename", "[rename|give a new name to]"), ("copy", "[copy|duplicate|clone]"), ("upload", "[upload|put up|send up]"), ("download", "[download|fetch|load]"),
    ("enable", "[enable|switch on|turn on|activate]"), ("disable", "[disable|switch off|turn off|deactivate]"), ("count", "[count|how many are]"), ("compare", "[compare|set side by side]"), ("remind", "[remind me of|do not let me forget]"),
    ("lookup", "[look up|find|what is]"), ("register", "[register|sign up|enter]"), ("assign", "[assign|give|hand]"), ("save", "[save|store|keep]"), ("measure", "[measure|take|determine]"), ("estimate", "[estimate|guess|roughly what is]"),
)  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """A kind of argument: what it may be called, how its value is put into a request, what it is described as."""

    keys: tuple[str, ...]
    type: str
    value: Callable[[Random], Any]
    put: tuple[str, ...]  # with {v}, {k}
    described: str


def _title(r: Random) -> str:
    return r.choice((words.phrase, words.word, words.name))(r)


def _whole(r: Random) -> int:
    return r.randrange(1, 10 ** r.choice((1, 1, 2, 2, 3, 4)))


def _decimal(r: Random) -> float:
    return r.choice((r.randrange(10, 10000) / 10, r.randrange(100, 100000) / 100))


def _slot(keys: str, type: str, value: Callable[[Random], Any], put: str, described: str) -> Slot:
    return Slot(tuple(keys.split()), type, value, tuple(put.split("|")), described)


SLOTS = (
    _slot("city town place location region area venue site country district", "string", words.place, "in {v}|for {v}|at {v}|near {v}|around {v}|in the city of {v}", "[Where|Name of the {k}|The {k}|Which {k}]"),
    _slot("origin departure from_city start source from_place from_location start_city", "string", words.place, "from {v}|starting in {v}|leaving {v}|departing from {v}|out of {v}", "[Where it begins|Starting point|From where|The {k}]"),
    _slot("destination to_city target arrival end to_place goal target_city", "string", words.place, "to {v}|going to {v}|bound for {v}|arriving in {v}|with {v} as the destination", "[Where it ends|Goal|To where|The {k}]"),
    _slot("date day when deadline due_date start_date on_date day_of_week", "string", words.date, "on {v}|for {v}|dated {v}|due {v}|by {v}", "[The day|Date|Which day|When]"),
    _slot("time hour start_time at alarm_time pickup_time clock_time", "string", words.hour, "at {v}|for {v}|at {v} sharp|by {v}", "[Time of day|The hour|At what time|When]"),
    _slot("recipient receiver contact person addressee guest attendee to_person", "string", words.full_name, "to {v}|for {v}|with {v}|addressed to {v}", "[Who gets it|Name of the {k}|The {k}|Who]"),
    _slot("user name customer client employee patient member student player", "string", words.name, "for {v}|of {v}|with {v}|under the name {v}|for the {k} {v}", "[Name of the {k}|The {k}|Who]"),
    _slot("author artist owner creator writer composer brand sender maker", "string", words.full_name, "by {v}|from {v}|of {v}|made by {v}", "[Who made it|Name of the {k}|The {k}]"),
    _slot("title name label heading caption new_name", "string", _title, "called {v}|named {v}|titled {v}|with the title {v}|with the name {v}|by the name of {v}", "[What it is called|The {k}|{k}]"),
    _slot("message text body content note comment description reason", "string", words.phrase, "saying {v}|that says {v}|with the text {v}|which reads {v}|with the words {v}|with the {k} {v}", "[What it says|The {k}|Text]"),
    _slot("topic query subject keyword term category theme phrase", "string", _title, "about {v}|on {v}|regarding {v}|concerning {v}|matching {v}", "[What it is about|The {k}|What to look for]"),
    _slot("count number quantity limit max_results copies pieces tickets people guests", "integer", _whole, "{v} of them|at most {v}|{v} times|{v} in all|{v} {k}|with {v} {k}", "[How many|Number of {k}|The {k}]"),
    _slot("minutes hours days seconds weeks nights months", "integer", _whole, "for {v} {k}|{v} {k} long|lasting {v} {k}|within {v} {k}|over {v} {k}", "[How long|Number of {k}|Duration in {k}]"),
    _slot("amount sum price budget value cost fee", "number", lambda r: r.choice((_whole, _decimal))(r), "of {v}|worth {v}|over {v}|with {v}|for {v}|{v} euros|of {v} dollars", "[How much|The {k}|{k} of money]"),
    _slot("level volume brightness temperature percent degrees speed intensity", "integer", _whole, "to {v}|at {v}|to level {v}|to {v} percent|at {v} degrees|with {k} {v}", "[How much|The {k}|New {k}]"),
    _slot("id code order_id ticket_number reference account serial booking_code number_plate sku", "string", words.code, "number {v}|with the id {v}|{v}|with the code {v}|with the reference {v}|numbered {v}|no. {v}", "[Number of it|The {k}|Identifier|Which one]"),
    _slot("room device lamp machine zone door channel station", "string", lambda r: r.choice((words.noun, lambda q: f"{q.choice(words.ADJECTIVES)} {words.noun(q)}", words.noun))(r), "in the {v}|of the {v}|for the {v}|on the {v}", "[Which {k}|The {k}|Name of the {k}]"),
    _slot("item product object dish food article model part", "string", lambda r: r.choice((words.noun, words.word, words.phrase))(r), "for {v}|of {v}|with {v}|namely {v}|with the {k} {v}", "[Which {k}|The {k}|What]"),
    _slot("email address url file path filename", "string", lambda r: r.choice((f"{words.word(r)}@{words.word(r)}.com", f"{words.word(r)}.{r.choice(('txt', 'pdf', 'csv', 'py'))}", f"{words.number(r, 2)} {words.name(r)} Street"))
          , "at {v}|to {v}|from {v}|using {v}|with {v}", "[The {k}|Where]"),
)  # fmt: skip

_FLAGS = "urgent private loud silent cached verbose recursive public repeat express vegetarian insured quiet shared hidden detailed".split()
_CHOICES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("unit", ("celsius", "kelvin", "fahrenheit")), ("unit", ("metres", "feet", "miles")), ("mode", ("fast", "slow", "safe")), ("colour", tuple(words.COLOURS)), ("format", ("pdf", "text", "html", "csv")), ("size", ("small", "medium", "large")),
    ("language", ("english", "french", "german", "spanish")), ("priority", ("low", "normal", "high")), ("currency", ("euro", "dollar", "pound", "yen")), ("class", ("first", "second", "economy")), ("order", ("ascending", "descending")),
    ("state", ("on", "off")), ("genre", ("rock", "jazz", "folk", "classical")), ("transport", ("car", "train", "bus", "bike")), ("meal", ("breakfast", "lunch", "dinner")), ("status", ("open", "closed", "pending")),
)  # fmt: skip
_RESULT = "status price result total temperature place answer id time name count owner weight height balance distance code date message level rate score room seat".split()
_NAMED = "[with {k} {v}|{k} {v}|{k}: {v}|{k} = {v}|the {k} is {v}|use {v} as {k}|for {k} {v}|and {k} {v}|{k} should be {v}]"


def _spaced(key: str) -> str:
    return key.replace("_", " ")


@dataclass(frozen=True)
class Argument:
    key: str
    schema: Schema
    value: Any
    put: str  # its words in a request
    ordered: bool = False  # only its place among the others tells what it is


_FREE: tuple[tuple[str, Callable[[Random], Any]], ...] = (
    ("string", words.value), ("string", words.phrase), ("string", words.hour), ("string", words.full_name), ("string", words.place),
    ("integer", _whole), ("integer", _whole), ("number", _decimal),
)  # fmt: skip
_PREPOSITIONS = "in for to at of with from by on about as over into via under".split()


def _free_argument(r: Random, taken: set[str]) -> Argument | None:
    """Of any name, which may not be said at all."""
    key = r.choice((words.noun, words.noun, words.word))(r)
    if r.random() < 0.15:
        key = f"{key}_{words.noun(r)}"
    if key in taken:
        return None
    type, make = r.choice(_FREE)
    value, spoken = make(r), _spaced(key)
    kind = r.random()
    if kind < 0.35:
        put = r.choice(
            (
                f"{value} {spoken}{'s' * (type == 'integer' and r.random() < 0.5)}",
                f"{spoken} {value}",
                f"{spoken}: {value}",
                f"{value} as {spoken}",
                f"the {spoken} {value}",
            )
        )
    else:
        put = f"{r.choice(_PREPOSITIONS)} {value}" if kind < 0.8 else f"{value}"
    schema: Schema = {"type": type}
    if r.random() < 0.4:
        schema = {
            "type": type,
            "description": say(r, "[The {k}|{k}|Which {k}|What {k} it is|{k} of it].", k=spoken),
        }
    return Argument(key, schema, value, put, ordered=kind >= 0.35)


def _argument(r: Random, taken: set[str]) -> Argument | None:
    """One with a key that is not taken yet."""
    if r.random() < 0.4:
        return _free_argument(r, taken)
    kind = r.random()
    if kind < 0.08:
        key = r.choice(_FLAGS)
        value: Any = r.random() < 0.6
        put = (
            f"[{key}|make it {key}|it is {key}|{key}: yes]"
            if value
            else f"[not {key}|{key}: no|it is not {key}]"
        )
        schema: Schema = {"type": "boolean"}
        described, put = f"[Whether it is {key}|{key}?]", say(r, f"{{v}}{put}", v="").strip()
    elif kind < 0.26:
        key, options = r.choice(_CHOICES)
        if r.random() < 0.3:
            options = tuple(words.word(r) for _ in range(r.randint(2, 4)))
        value, schema = r.choice(options), {"type": "string", "enum": list(options)}
        described, put = (
            f"[The {key}|Which {key}]",
            f"in {value}"
            if r.random() < 0.45
            else say(r, f"{{v}}[as {value}|{value} {key}|{key} {value}|{value}]", v=""),
        )
    else:
        slot = r.choice(SLOTS)
        key, value, schema = r.choice(slot.keys), slot.value(r), {"type": slot.type}
        shown = f"{value}" if slot.type != "string" or r.random() < 0.85 else f'"{value}"'
        described, put = slot.described, r.choice(slot.put).format(v=shown, k=_spaced(key))
    if r.random() < 0.12:
        key = f"{words.noun(r)}_{key}"
    if key in taken:
        return None
    if r.random() < 0.25:
        shown = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
        put = say(r, "{v}" + _NAMED, v="%", k=_spaced(key)).replace("%", "", 1).replace("%", str(shown))
    if r.random() < 0.5:
        schema = {"type": schema["type"], "description": say(r, described, k=_spaced(key)) + "."} | schema
    return Argument(key, schema, value, put)


@dataclass(frozen=True)
class Function:
    ask: str  # pattern of what is asked for
    thing: str
    schema: Schema
    arguments: tuple[Argument, ...]  # those of the next call; optional ones may be missing


def _named(r: Random, do: str, thing: str) -> str:
    kind, snake = r.random(), thing.replace(" ", "_")
    if kind < 0.62:
        return f"{do}_{snake}"
    if kind < 0.82:
        return do + "".join(w.title() for w in thing.split())
    if kind < 0.92:
        return f"{snake}_{do}"
    return snake if kind < 0.96 else f"{do}{words.noun(r).title()}"


_DESCRIBED = "[{do} the {t}|{do} a {t}|Use this to {do} a {t}|{do}s the {t}|Call this to {do} {t}s|{do} {t} by {k}|Can {do} the {t} of somebody|For {t}s: {do}]."


def _function(r: Random, alike: Function | None) -> Function:
    """`alike`: one whose thing or verb it may share, so that both have to be read."""
    do, ask = r.choice(_VERBS)
    if r.random() < 0.55:  # any word, and it is said
        do = ask = r.choice((words.word, words.noun, lambda q: q.choice(words.VERBS)))(r)
    thing = (
        words.noun(r)
        if r.random() < 0.75
        else f"{r.choice((words.noun(r), r.choice(words.ADJECTIVES)))} {words.noun(r)}"
    )
    if alike and r.random() < 0.4:
        thing = alike.thing
    arguments: list[Argument] = []
    for _ in range(r.choice((1, 1, 2, 2, 2, 3, 3, 4))):
        a = _argument(r, {x.key for x in arguments})
        if a:
            arguments.append(a)
    keep = [r.random() < 0.85 for _ in arguments]
    kept = tuple(a for a, k in zip(arguments, keep, strict=True) if k or r.random() < 0.5)
    required = [a.key for a, k in zip(arguments, keep, strict=True) if k]
    parameters = {"type": "object", "properties": {a.key: a.schema for a in arguments}, "required": required}
    if r.random() < 0.1:
        kept = tuple(a for a in kept if a.key in required)
    key = arguments[0].key if arguments else "name"
    described = say(r, _DESCRIBED, do=do, t=thing, k=_spaced(key))
    if r.random() < 0.25:  # what it is asked by stands in the description alone
        asks = [r.choice((words.noun, words.word, lambda q: q.choice(words.VERBS)))(r) for _ in range(2)]
        described, ask = (
            say(
                r,
                "[{t}|Does|For|The|Makes|Gets|Looks for] {a} [of|in|to|for|a|the|with] {b}.",
                t=thing,
                a=asks[0],
                b=asks[1],
            ),
            asks[0],
        )
        asked_thing = asks[1]
    else:
        asked_thing = thing
    function = {"name": _named(r, do, thing), "description": described, "parameters": parameters}
    return Function(ask, asked_thing, {"type": "function", "function": function}, kept)


_REQUEST = (
    "{ask}[ the| a| my| our| an|] {t}{args}[.|.|.|?|]", "[Please|Can you|Could you|I want you to|Would you|You should] {ask}[ the| a| my|] {t}{args}[.|?|]", "{t}{args}[, please.|?|.|: {ask} it.]",
    "[I need|We need|I want|There should be|It is about] [the|a|my] {t}{args}. [{ask} it.|Please {ask} it.|Can you {ask} it?]", "{ask} [the|a|some|this|that] {t}{args}, [please|thanks|will you?|if you can].",
)  # fmt: skip


_FRAMES = (
    "", "", "", "I want ", "I would like ", "We need ", "Could we have ", "Please do ", "How about ", "Make it ", "Let us have ", "Is there ", "Can I get ", "Do ", "Now ", "It is time for ", "Where is ", "What about "
)  # fmt: skip


def _asked(r: Random, f: Function) -> str:
    listed = [a.put for a in f.arguments]
    if r.random() < 0.5 and not any(a.ordered for a in f.arguments):
        r.shuffle(listed)
    joint = r.choice((" ", " ", " ", ", ", " and "))
    args = (r.choice((" ", " ", ", ", ": ")) + joint.join(listed)) if listed else ""
    ask = say(r, "{v}" + f.ask, v="")
    if r.random() < 0.4:  # by one word of its name, anywhere
        word, parts = r.choice((ask, f.thing)), list(listed)
        parts.insert(
            r.randint(0, len(parts)), f"{r.choice(('', 'the ', 'a ', 'to ', 'for the ', 'my '))}{word}"
        )
        return asked(r, f"{r.choice(_FRAMES)}{joint.join(parts)}{r.choice(('.', '?', '', ', please.'))}")
    return asked(r, say_one(r, _REQUEST, ask=ask, t=f.thing, args=args))


def _result(r: Random) -> tuple[str, str]:
    """(what comes back, what is said)."""
    if r.random() < 0.2:
        return r.choice(("ok", "done", '{"success": true}', "OK")), "Done."
    if r.random() < 0.1:
        why = words.phrase(r)
        return json.dumps({"error": why}), f"That failed: {why}."
    found: dict[str, Any] = {}
    for _ in range(r.choice((1, 1, 2, 3))):
        key = r.choice(_RESULT) if r.random() < 0.7 else f"{words.noun(r)}_{r.choice(_RESULT)}"
        found[key] = r.choice((words.code, words.name, words.place, words.word, _whole, _decimal))(r)
    said = ", ".join(f"the {_spaced(k)} is {v}" for k, v in found.items())
    return json.dumps(found), f"{said[0].upper()}{said[1:]}."


def tools(r: Random, say: Say) -> tuple[list[dict[str, Any]], list[Schema]]:
    """Messages and schemas: one of several functions is called, and its result used; at times none fits."""
    made: dict[str, Function] = {}
    first = None
    for _ in range(r.choice((1, 2, 3, 3, 4, 5))):
        f = _function(r, first)
        made.setdefault(f.schema["function"]["name"], f)
        first = first or f
    messages: list[dict[str, Any]] = []
    order = list(made.values())
    r.shuffle(order)
    for f in order[: r.choice((1, 1, 1, 2))]:
        if r.random() < 0.1:
            messages += _without(r, say)
            continue
        name = f.schema["function"]["name"]
        messages.append({"role": "user", "content": _asked(r, f)})
        called = say("", f"I call {name}.")
        arguments = {a.key: a.value for a in f.arguments}
        called["tool_calls"] = [{"type": "function", "function": {"name": name, "arguments": arguments}}]
        messages.append(called)
        came, text = _result(r)
        messages += [{"role": "tool", "content": came}, say(text, "The result is there.")]
    order = list(made.values())
    r.shuffle(order)
    return messages, [f.schema for f in order]


def _without(r: Random, say: Say) -> list[dict[str, Any]]:
    a, b = r.randint(1, 20), r.randint(1, 20)
    question, text = r.choice(
        ((f"What is {a} + {b}?", f"{a} + {b} = {a + b}"), ("Hello!", "Hello! How can I help you?"), ("Thank you!", "You are welcome."))
    )  # fmt: skip
    return [{"role": "user", "content": question}, say(text, "No function is needed.")]
