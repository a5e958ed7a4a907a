"""JSON schemas as requests bring them: bounded, and without what the grammar of one would silently leave out."""

from __future__ import annotations

import json
import re
from typing import Any

from nextfit.errors import RequestError

MAX_DEPTH = 128  # objects and lists in each other
MAX_BYTES = 256 << 10

_NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
_NOTES |= {"$defs", "definitions", "$schema", "$id", "discriminator", "example"}
_UNHELD = (  # keywords that say more than a grammar can
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas",
    "dependencies", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "nullable",
)  # fmt: skip
_ALONE = ("$ref", "anyOf", "oneOf", "allOf")  # next to them nothing but notes is looked at
_SCHEMAS = ("items", "additionalProperties", "propertyNames", "additionalItems", "unevaluatedProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_QUOTED = re.compile(r'"|\\\\|\\[xucfnrtv0]')  # in a pattern: what a JSON string cannot have as it stands
_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}
_TYPES |= {"boolean": bool, "null": type(None)}


def checked(schema: Any, field: str, *, strict: bool = True, bare: bool = False) -> Any:
    """A schema whose grammar keeps to `schema`. RequestError, which names `field`, if it is too large or too deep.

    With `strict` also if answers could break it: some keywords no grammar holds. `bare`: the values of its properties
    are written without quotes, as in tool calls.
    """
    if (depth := _depth(schema)) > MAX_DEPTH:
        raise RequestError(f"{field}: is nested {depth} levels deep; at most {MAX_DEPTH} are allowed", field)
    try:
        size = len(json.dumps(schema).encode())
    except ValueError as error:
        raise RequestError(f"{field}: is not JSON: {error}", field) from None
    if size > MAX_BYTES:
        raise RequestError(f"{field}: has {size} bytes; at most {MAX_BYTES} are allowed", field)
    return _Reader(field, strict).read(schema, "", bare=bare, inside=bare)


def _depth(value: Any) -> int:
    """Levels of objects and lists in each other."""
    depth, level = 0, [value]
    while level := [v for v in level if isinstance(v, dict | list)]:
        depth += 1
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return depth


class _Reader:
    def __init__(self, field: str, strict: bool) -> None:
        self._field, self._strict = field, strict

    def read(self, schema: Any, place: str, *, bare: bool, inside: bool = False) -> Any:
        """The schema at `place`; strings of it are written without quotes if `bare`, of its properties if `inside`."""
        if not isinstance(schema, dict):
            return schema
        if self._strict:
            self._check(schema, place)
        out = dict(schema)
        for key, value in schema.items():
            at = f"{place}.{key}"
            if key in _SCHEMAS:
                out[key] = self.read(value, at, bare=False)
            elif key in _LISTS and isinstance(value, list):
                kept = bare and key != "prefixItems"
                out[key] = [self.read(v, f"{at}[{i}]", bare=kept, inside=inside) for i, v in enumerate(value)]
            elif key in _BY_NAME and isinstance(value, dict):
                kept = inside and key == "properties"
                out[key] = {name: self.read(v, f"{at}.{name}", bare=kept) for name, v in value.items()}
        return out if bare else _quoted(out, name=place.endswith(".propertyNames"))

    def _check(self, schema: dict[str, Any], place: str) -> None:
        for key in _UNHELD:
            if key in schema:
                self._refuse(place, f"{key!r} cannot be enforced")
        if schema.get("uniqueItems"):
            self._refuse(place, "'uniqueItems' cannot be enforced")
        for key in _ALONE:
            beside = sorted(set(schema) - _NOTES - {key})
            if key in schema and beside:
                self._refuse(place, f"{beside[0]!r} beside {key!r} cannot be enforced")
        if len(schema.get("allOf", ())) > 1:
            self._refuse(place, "more than one schema in 'allOf' cannot be enforced")
        if str(schema.get("$ref", "#"))[:2] not in ("#", "#/"):
            self._refuse(place, f"a reference to {schema['$ref']!r} is not one into this schema, '#/...'")
        self._check_values(schema, place)
        self._check_strings(schema, place)
        self._check_objects(schema, place)

    def _check_values(self, schema: dict[str, Any], place: str) -> None:
        named = [key for key in ("enum", "const") if key in schema]
        if named:
            if beside := sorted(set(schema) - _NOTES - {"type", named[0]}):
                self._refuse(place, f"{beside[0]!r} beside {named[0]!r} cannot be enforced")
            values = [schema["const"]] if "const" in schema else schema["enum"]
            types = schema.get("type", list(_TYPES))
            allowed = [_TYPES[t] for t in ([types] if isinstance(types, str) else types) if t in _TYPES]
            for value in values if isinstance(values, list) else ():
                if not any(_is(value, t) for t in allowed):
                    self._refuse(place, f"the value {value!r} is not of type {types!r}")
        if "multipleOf" in schema and schema.get("type") != "integer":
            self._refuse(place, "'multipleOf' can be enforced for integers only")

    def _check_strings(self, schema: dict[str, Any], place: str) -> None:
        for key in ("pattern", "format"):
            if key in schema and ("minLength" in schema or "maxLength" in schema):
                self._refuse(place, f"a length beside {key!r} cannot be enforced")
        for pattern in [schema.get("pattern"), *schema.get("patternProperties", ())]:
            if isinstance(pattern, str) and _QUOTED.search(pattern):
                self._refuse(
                    place, f"quotes, backslashes and escaped characters cannot be enforced in {pattern!r}"
                )

    def _check_objects(self, schema: dict[str, Any], place: str) -> None:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if isinstance(properties, dict) and isinstance(required, list):
            for name in required:
                if isinstance(name, str) and name not in properties:
                    self._refuse(place, f"{name!r} is required and not among 'properties'")
        if "minProperties" in schema and (
            schema.get("additionalProperties") or "patternProperties" in schema
        ):
            self._refuse(place, "'minProperties' can be enforced for named properties only")

    def _refuse(self, place: str, why: str) -> None:
        where = f"{self._field}{place}"
        raise RequestError(f"{where}: {why}; strict false leaves it aside", self._field)


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _quoted(schema: dict[str, Any], name: bool) -> dict[str, Any]:
    """Lengths of strings as patterns: the compiler would allow characters in them that JSON has to escape."""
    low, high = schema.get("minLength", 0), schema.get("maxLength", "")
    others = {"pattern", "format", "enum", "const"} & set(schema)
    types = schema.get("type", "string" if name else "")
    if others or "string" not in ([types] if isinstance(types, str) else types) or (low == 0 and high == ""):
        return schema
    if not isinstance(low, int) or not isinstance(high, int | str) or (high != "" and int(high) < low):
        return schema  # the compiler refuses it
    one = '([ !#-\\[\\]-\ud7ff\ue000-\U0010ffff]|\\\\["\\\\/bfnrt])'  # no surrogates
    kept = {key: value for key, value in schema.items() if key not in ("minLength", "maxLength")}
    return {**kept, "pattern": f"{one}{{{low},{high}}}"}
