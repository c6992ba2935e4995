"""Fits arguments from models and frameworks to a tool's schema.

1.0 and "1" become integers, "false" becomes false, and null for an optional argument is left out. Other values that do
not fit are refused, with the place.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from typing import Any

from .._client.answers import refused
from .._core import errors, values

Schema = dict[str, Any]

_JSON = (dict, list, tuple, str, int, float, bool, type(None))
_INTEGER = re.compile(r"[+-]?[0-9]{1,300}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)
_EXACT = 1 << 53
_TRUTH = {"true": True, "false": False}


def fitted(arguments: dict[str, Any], input_schema: Schema, tool: str) -> dict[str, Any]:
    """The arguments of a call. InvalidArguments says where they do not fit."""
    try:
        return typing.cast("dict[str, Any]", _fit(arguments, input_schema, input_schema.get("$defs", {}), ""))
    except values.Mismatch as failure:
        raise refusal(failure, tool) from None


def refusal(failure: values.Mismatch, tool: str) -> errors.MeshError:
    return refused("invalid_arguments", f"{failure.pointer}: {failure}".removeprefix(": "), tool,
                   details={"errors": [failure.as_dict()]})


def plain(value: Any) -> bool:
    """Whether a value is JSON, as from a model."""
    if type(value) in (list, tuple):
        return all(map(plain, value))
    if type(value) is dict:
        return all(type(key) is str and plain(one) for key, one in value.items())
    return type(value) in _JSON


def takes_null(schema: Any, definitions: Schema) -> bool:
    """Whether null is a value, and not a way to leave something out."""
    schema = _resolved(schema, definitions)
    if not isinstance(schema, dict):
        return schema is not False
    either = schema.get("anyOf") or schema.get("oneOf")
    if either:
        return any(takes_null(one, definitions) for one in either)
    if "enum" in schema or "const" in schema:
        return None in schema.get("enum", [schema.get("const")])
    if "type" in schema:
        return "null" in schema["type"] if isinstance(schema["type"], list) else schema["type"] == "null"
    # A parameter without a type has the type of its default.
    return schema.get("default") is None


def _resolved(schema: Any, definitions: Schema) -> Any:
    for _ in range(100):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        schema = definitions.get(str(schema["$ref"]).rpartition("/")[2], True)
    return schema


def _fit(value: Any, schema: Any, definitions: Schema, at: str) -> Any:
    schema = _resolved(schema, definitions)
    if type(value) not in _JSON or not isinstance(schema, dict):
        return value  # a Python value: the client writes it as JSON
    kinds = schema.get("type")
    either = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(kinds, list) and "enum" not in schema:
        either = [{**schema, "type": kind} for kind in kinds]
    if either:
        return _fit_one(value, either, definitions, at)
    if "enum" in schema or "const" in schema:
        return _choice(value, schema.get("enum", [schema.get("const")]), at)
    if kinds == "array" or kinds is None and "items" in schema:
        return _array(value, schema, definitions, at)
    if kinds == "object" or kinds is None and "properties" in schema:
        return _object(value, schema, definitions, at)
    if kinds not in _SCALARS:
        return value
    try:
        if isinstance(value, bool) and kinds in ("integer", "number"):
            raise ValueError
        return _SCALARS[kinds](value)
    except ValueError:
        raise values.Mismatch(str(kinds), values.describe(value), pointer=at) from None


def _fit_one(value: Any, either: list[Any], definitions: Schema, at: str) -> Any:
    """The member that accepts the value unchanged, else the first that it can be converted to; text comes last."""
    made, failures = [], []
    for one in either:
        try:
            found = _fit(value, one, definitions, at)
        except values.Mismatch as failure:
            failures.append(failure)
            continue
        if type(found) is type(value) and found == value:
            return found
        made.append(found)
    if made:
        return min(made, key=lambda one: type(one) is str)
    real = [one for one in failures if one.expected != "null"]
    if len(real) == 1:
        raise real[0]
    expected = " or ".join(dict.fromkeys(one.expected for one in failures))
    raise values.Mismatch(expected, values.describe(value), pointer=at)


def _choice(value: Any, choices: list[Any], at: str) -> Any:
    for one in choices:
        if type(one) is type(value) and one == value:
            return one
    # Some providers have only texts for choices, some no integers.
    alike = [one for one in choices if one is not None and value is not None and (
        str(one).casefold() == str(value).casefold() if isinstance(value, (str, bool)) else
        isinstance(value, (int, float)) and (one == value or one == str(value)) and not isinstance(one, bool))]
    if len(alike) == 1:
        return alike[0]
    raise values.Mismatch("one of " + ", ".join(values.encode(one).decode() for one in choices[:20]),
                          values.describe(value), pointer=at)


def _array(value: Any, schema: Schema, definitions: Schema, at: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise values.Mismatch("array", values.describe(value), pointer=at)
    first = schema.get("prefixItems") or []
    return [_fit(one, first[index] if index < len(first) else schema.get("items", True), definitions, f"{at}/{index}")
            for index, one in enumerate(value)]


def _object(value: Any, schema: Schema, definitions: Schema, at: str) -> Any:
    if not isinstance(value, dict):
        raise values.Mismatch("object", values.describe(value), pointer=at)
    properties, required = schema.get("properties", {}), schema.get("required", ())
    further = schema.get("additionalProperties", True)
    made = {}
    for name, one in value.items():
        place = values.pointer(at, str(name))
        if name in properties:
            if one is not None or name in required or takes_null(properties[name], definitions):
                made[name] = _fit(one, properties[name], definitions, place)
        elif further is False and "patternProperties" not in schema:
            raise values.Mismatch("no such argument", values.describe(one), f"there is no {name!r}", place)
        else:
            made[name] = _fit(one, further, definitions, place)
    for name in required:
        if name not in made:
            declared = _resolved(properties.get(name), definitions)
            missing = values.needed(name, declared.get("type") if isinstance(declared, dict) else None)
            missing.pointer = at + missing.pointer
            raise missing
    return made


def _null(value: Any) -> None:
    if value is not None:
        raise ValueError


def _boolean(value: Any) -> bool:
    if isinstance(value, str) and value.casefold() in _TRUTH:
        return _TRUTH[value.casefold()]
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    raise ValueError


def _integer(value: Any) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, int):
        return int(value)
    raise ValueError


def _number(value: Any) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value) if not _INTEGER.fullmatch(value.strip()) else int(value)
    if isinstance(value, int) and abs(value) <= _EXACT:
        return float(value)
    if isinstance(value, (int, float)):
        return value
    raise ValueError


def _string(value: Any) -> str:
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    "null": _null, "boolean": _boolean, "integer": _integer, "number": _number, "string": _string,
}
