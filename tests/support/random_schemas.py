"""Random JSON schemas whose values are short: up to five levels, references, alternatives, patterns and the like."""

from __future__ import annotations

import random
from typing import Any

PATTERNS = ("^[a-c]{1,3}$", r"^\d{2}-\d{2}$", "^(up|down)$", "[x-z]", "^k[0-9]?$")
WORDS = ("red", "green", 'a "b"', "c\\d", "für", "🦙")


def random_schema(seed: int) -> dict[str, Any]:
    """An object; everything in it is drawn from the seed."""
    rng = random.Random(seed)
    shared = {name: _value(rng, 2, ()) for name in ("p", "q")}
    root = _object(rng, 5, tuple(shared))
    if rng.random() < 0.3:  # one that contains itself
        shared["node"] = {
            "type": "object",
            "properties": {
                "v": _value(rng, 1, ()),
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            },
            "required": ["v"],
        }
        root["properties"]["list"] = {"$ref": "#/$defs/node"}
    return {**root, "$defs": shared}


def _object(rng: random.Random, depth: int, shared: tuple[str, ...]) -> dict[str, Any]:
    names = rng.sample(["a", "b", "c d", 'e"f', "g\\h", "ü"], rng.randint(1, 3))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value(rng, depth - 1, shared) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
        "additionalProperties": False,
    }
    if rng.random() < 0.2:
        schema["minProperties"] = rng.randint(1, len(names))
    return schema


def _value(rng: random.Random, depth: int, shared: tuple[str, ...]) -> Any:
    if shared and rng.random() < 0.2:
        return {"$ref": f"#/$defs/{rng.choice(shared)}", "description": "shared"}
    if depth == 0 or rng.random() < 0.25:
        return _leaf(rng)
    match rng.choice(["object", "object", "array", "any", "all", "tuple"]):
        case "object":
            return _object(rng, depth, shared)
        case "array":
            low = rng.randint(0, 2)
            items = _value(rng, depth - 1, shared)
            return {"type": "array", "items": items, "minItems": low, "maxItems": low + rng.randint(0, 1)}
        case "any":
            return {"anyOf": [_value(rng, depth - 1, shared) for _ in range(rng.randint(2, 3))]}
        case "all":
            return {"allOf": [_value(rng, depth - 1, shared)]}
    return {"type": "array", "prefixItems": [_leaf(rng), _leaf(rng)], "items": False, "minItems": 1}


def _leaf(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    return rng.choice(
        [
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 200)},
            {"type": "number", "minimum": low, "maximum": low + 1},
            {"type": "integer", "minimum": 0, "maximum": 60, "multipleOf": rng.choice([2, 7])},
            {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 6)},
            {"type": "string", "pattern": rng.choice(PATTERNS)},
            {"type": "string", "format": rng.choice(["date", "uuid"])},
            {"type": ["boolean", "null"]},
            {"enum": rng.sample([*WORDS, 1, -2.5, None, True, [1, {"x": "y"}]], 3)},
            {"type": "string", "enum": rng.sample(WORDS, 2), "title": "a word"},
            {"const": rng.choice(WORDS)},
        ]
    )
