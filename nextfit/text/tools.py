"""Tools as a request declares them: their names, and of which types their parameters are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

STRING = frozenset({"string"})
_TYPES = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
_MAX_DEPTH = 16  # of alternatives and references in each other
_MAX_SEEN = 64  # of them that are looked at
_WORDS = frozenset({"enum", "const", "pattern", "format"})  # strings of a form, not of any text


class Tools:
    """The declared functions by name; `tools` have OpenAI's shape, already checked."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        functions = [tool["function"] for tool in tools]
        self._parameters = {f["name"]: Parameters(f.get("parameters") or {}) for f in functions}

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def __getitem__(self, name: str) -> Parameters:
        return self._parameters[name]


class Parameters:
    """The parameters of one function by their JSON schema, which may be any JSON value."""

    def __init__(self, schema: Any) -> None:
        self._root = schema if isinstance(schema, dict) else {}
        properties = self._root.get("properties")
        self._properties = properties if isinstance(properties, dict) else {}

    def __contains__(self, name: str) -> bool:
        return name in self._properties

    def types(self, name: str) -> frozenset[str]:
        """JSON types that the schema allows for `name`; a string where it does not say."""
        schema = self._properties.get(name, self._root.get("additionalProperties"))
        return self._allowed(schema, set(), _MAX_DEPTH) or STRING

    def trimmed(self, name: str) -> bool:
        """Whether strings for `name` are words of a form, around which white space is layout."""
        schema = self._properties.get(name, self._root.get("additionalProperties"))
        return "string" in self.types(name) and not self._free(schema, set())

    def _free(self, schema: Any, seen: set[int]) -> bool:
        """Whether the schema allows strings that nothing is said about; one that was `seen` adds nothing."""
        if not isinstance(schema, dict):
            return True
        if id(schema) in seen or len(seen) > _MAX_SEEN or not _WORDS.isdisjoint(schema):
            return False
        seen.add(id(schema))
        if isinstance(reference := schema.get("$ref"), str):
            return self._free(self._at(reference), seen)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if isinstance(inner := schema.get(keyword), list):
                return any(self._free(s, seen) for s in inner)
        types = schema.get("type", "string")
        return "string" in types if isinstance(types, str | list) else True

    def _allowed(self, schema: Any, seen: set[int], depth: int) -> frozenset[str] | None:
        """None: the schema does not say. `seen` schemas add nothing, so that all are read once."""
        if not isinstance(schema, dict) or id(schema) in seen or not depth:
            return None
        seen.add(id(schema))
        found: frozenset[str] | None = None
        for types in self._said(schema, seen, depth - 1):
            if types is not None:
                found = types if found is None else found & types
        if found and schema.get("nullable") is True:
            found |= {"null"}
        return found

    def _said(self, schema: dict[str, Any], seen: set[int], depth: int) -> Iterator[frozenset[str] | None]:
        """What each keyword allows; all of it holds together."""
        if "type" in schema:
            named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            known = _TYPES.intersection(t for t in named if isinstance(t, str))
            yield known | {"integer"} if "number" in known else known or None
        if isinstance(values := schema.get("enum"), list):
            yield frozenset().union(*map(_types_of, values)) or None
        if "const" in schema:
            yield _types_of(schema["const"])
        for keyword in ("anyOf", "oneOf"):
            if isinstance(inner := schema.get(keyword), list):
                said = [self._allowed(s, seen, depth) for s in inner]
                yield frozenset().union(*(s for s in said if s)) or None
        if isinstance(inner := schema.get("allOf"), list):
            for s in inner:
                yield self._allowed(s, seen, depth)
        if isinstance(reference := schema.get("$ref"), str):
            yield self._allowed(self._at(reference), seen, depth)

    def _at(self, reference: str) -> Any:
        """What a reference into the same schema, like `#/$defs/x`, points to; None if nothing."""
        place: Any = self._root if reference.startswith("#") else None
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict):
                place = place.get(part)
            elif isinstance(place, list) and part.isdecimal() and int(part[:9]) < len(place):
                place = place[int(part[:9])]
            else:
                return None
        return place


def as_json(text: str, types: frozenset[str]) -> str:
    """A parameter's text as JSON of one of `types`; what none of the others fits is a string.

    JSON text is kept as it stands, so that no number loses digits.
    """
    stripped = text.strip()
    if types != STRING:
        if stripped in ("True", "False") and "boolean" in types and "string" not in types:
            return stripped.lower()
        if stripped == "None" and "null" in types and "string" not in types:
            return "null"
        try:
            value = _READER.decode(stripped)
        except (ValueError, RecursionError):
            value = text
        if not types.isdisjoint(_types_of(value) - STRING):
            return stripped
    return json.dumps(text, ensure_ascii=False)


def _types_of(value: Any) -> frozenset[str]:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"} if value.is_integer() else {"number"})
        case str():
            return STRING
        case list():
            return frozenset({"array"})
    return frozenset({"object"})


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


# values of numbers do not matter, and a long one would take long
_READER = json.JSONDecoder(parse_int=lambda digits: 0, parse_constant=_refuse)
