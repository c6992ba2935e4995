"""Shapes of the values that JSON writes as a scalar: numbers, text, and what
has a text of its own like dates; and closed sets of scalars. Below them, what
the Builder of schema puts around the Shapes that it makes of these.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import re
import sys
import uuid

from .values import Mismatch, NotSerializable, describe, encode

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    from .values import JSON

    Schema: TypeAlias = dict[str, JSON]
    Fits: TypeAlias = Callable[[JSON], bool]
    Load: TypeAlias = Callable[[JSON, str], Any]  # (value, JSON pointer of its place); raises Mismatch
    Dump: TypeAlias = Callable[[Any, str], Any]  # (Python value, path of its place)


class Shape:
    """One annotation: schema, load (None: the JSON value is the Python value),
    fits (a cheap test used to pick the member of a union), dump (None: encode
    as it is), expected (the words of messages)."""

    __slots__ = ("schema", "load", "fits", "dump", "expected", "order")

    def __init__(
        self,
        schema: Schema,
        expected: str,
        fits: Fits | None = None,
        load: Load | None = None,
        dump: Dump | None = None,
        order: int = 5,
    ) -> None:
        self.schema = schema
        self.expected = expected
        self.fits: Fits = fits or (lambda value: True)
        self.load = load
        self.dump = dump
        self.order = order


def _is_int(value: JSON) -> bool:
    kind = type(value)
    return kind is int or kind is float and value.is_integer()


def _load_int(value: JSON, at: str) -> int:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    raise Mismatch(at, "integer", describe(value))


def _load_float(value: JSON, at: str) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    raise Mismatch(at, "number", describe(value))


def from_text(make: Callable[[str], Any], expected: str, hint: str = "") -> Load:
    """A loader that makes its value of a text, and says what is expected of it."""

    def load(value: JSON, at: str) -> Any:
        if type(value) is not str:
            raise Mismatch(at, expected, describe(value))
        try:
            return make(value)
        except (ValueError, ArithmeticError):
            raise Mismatch(at, expected, describe(value), f"expected {expected}{hint}, got {describe(value)}") from None

    return load


def is_text(value: JSON) -> bool:
    """The fits of everything that travels as text."""
    return type(value) is str


def _load_decimal(value: JSON, at: str) -> decimal.Decimal:
    kind = type(value)
    if kind in (str, int, float):
        try:
            return decimal.Decimal(str(value))
        except ArithmeticError:
            pass
    raise Mismatch(at, "decimal number", describe(value))


def _load_bytes(value: JSON, at: str) -> bytes:
    if type(value) is str:
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise Mismatch(at, "base64 text", describe(value))


def _dump_bytes(value: Any, path: str) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    return value


def _iso(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def make(text: str) -> Any:
        if sys.version_info < (3, 11) and text.endswith(("Z", "z")):
            text = text[:-1] + "+00:00"
        return parse(text)

    return make


SIMPLE: dict[type[Any], Callable[[], Shape]] = {
    str: lambda: Shape({"type": "string"}, "string", is_text, order=8),
    int: lambda: Shape({"type": "integer"}, "integer", _is_int, _load_int, order=2),
    float: lambda: Shape({"type": "number"}, "number", lambda v: type(v) in (int, float), _load_float, order=3),
    bool: lambda: Shape({"type": "boolean"}, "boolean", lambda v: type(v) is bool, order=1),
    type(None): lambda: Shape({"type": "null"}, "null", lambda v: v is None, order=0),
    bytes: lambda: Shape(
        {"type": "string", "contentEncoding": "base64"}, "base64 text", is_text, _load_bytes, _dump_bytes
    ),
    bytearray: lambda: Shape(
        {"type": "string", "contentEncoding": "base64"},
        "base64 text",
        is_text,
        lambda v, at: bytearray(_load_bytes(v, at)),
        _dump_bytes,
    ),
    datetime.datetime: lambda: Shape(
        {"type": "string", "format": "date-time"},
        "date and time",
        is_text,
        from_text(_iso(datetime.datetime.fromisoformat), "date and time", " like 2026-01-31T12:00:00Z"),
        order=4,
    ),
    datetime.date: lambda: Shape(
        {"type": "string", "format": "date"},
        "date",
        is_text,
        from_text(datetime.date.fromisoformat, "date", " like 2026-01-31"),
        order=4,
    ),
    datetime.time: lambda: Shape(
        {"type": "string", "format": "time"},
        "time of day",
        is_text,
        from_text(_iso(datetime.time.fromisoformat), "time of day", " like 12:30:00"),
        order=4,
    ),
    datetime.timedelta: lambda: Shape(
        {"type": "number", "description": "seconds"},
        "number of seconds",
        lambda v: type(v) in (int, float),
        lambda v, at: datetime.timedelta(seconds=_load_float(v, at)),
        order=4,
    ),
    uuid.UUID: lambda: Shape(
        {"type": "string", "format": "uuid"}, "UUID", is_text, from_text(uuid.UUID, "UUID"), order=4
    ),
    decimal.Decimal: lambda: Shape(
        {"anyOf": [{"type": "number"}, {"type": "string"}]},
        "decimal number",
        lambda v: type(v) in (int, float, str),
        _load_decimal,
        order=4,
    ),
    re.Pattern: lambda: Shape(
        {"type": "string", "format": "regex"}, "pattern", is_text, from_text(re.compile, "pattern")
    ),
}

JSON_TYPES: dict[type[Any], str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _scalar_schema(values: list[JSON]) -> Schema:
    """An enum of JSON scalars, with its type when they share one."""
    kinds: list[str] = []
    for value in values:
        kind = JSON_TYPES[type(value)]
        if kind not in kinds:
            kinds.append(kind)
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}


def choice(pairs: Iterable[tuple[JSON, Any]], expected: str) -> Shape:
    """A Shape of a closed set: pairs of (JSON scalar, Python value)."""
    table: dict[tuple[type[Any], JSON], Any] = {}
    for raw, value in pairs:
        table.setdefault((type(raw), raw), value)
    raws = [raw for _, raw in table]

    def key(value: JSON) -> tuple[type[Any], JSON]:
        kind = type(value)
        if kind is float and value.is_integer() and (int, int(value)) in table:
            return (int, int(value))
        return (kind, value)

    def fits(value: JSON) -> bool:
        return type(value) in JSON_TYPES and key(value) in table

    def load(value: JSON, at: str) -> Any:
        if fits(value):
            return table[key(value)]
        words = ", ".join(map(describe_short, raws[:20]))
        raise Mismatch(at, f"one of {words}", describe(value))

    return Shape(_scalar_schema(raws), expected, fits, load, order=4)


def describe_short(value: JSON) -> str:
    """A value as messages list it: its JSON."""
    return encode(value).decode()


def rewrite(schema: JSON, prefix: str, rename: dict[str, str]) -> JSON:
    """schema with its references below prefix pointing into $defs, renamed."""
    if isinstance(schema, dict):
        made = {}
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str) and value.startswith(prefix):
                name = value[len(prefix):]
                made[key] = "#/$defs/" + rename.get(name, name)
            else:
                made[key] = rewrite(value, prefix, rename)
        return made
    if isinstance(schema, list):
        return [rewrite(value, prefix, rename) for value in schema]
    return schema


def plain(value: Any) -> Any:
    """A value of a scalar's subclass as the scalar itself."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def guard(load: Load, base: type[Any]) -> Load:
    """A class's own refusal in __init__ is about the arguments."""

    def guarded(value: JSON, at: str) -> Any:
        try:
            return load(value, at)
        except Mismatch:
            raise
        except (ValueError, TypeError) as failure:
            raise Mismatch(at, f"object {base.__name__}", describe(value), f"{base.__name__}: {failure}") from None

    return guarded


def dump_only(base: type[Any], dump: Dump | None) -> Dump | None:
    """dump for instances of base; what else a tool returns is encoded as it is."""
    if dump is None:
        return None
    return lambda value, path: dump(value, path) if isinstance(value, base) else value


def varargs(item: Shape) -> Load:
    """The loader of further positional arguments, each of item's Shape."""

    def load(value: JSON, at: str) -> Any:
        if type(value) is not list:
            raise Mismatch(at, "array", describe(value))
        if item.load is None:
            return value
        return [item.load(one, f"{at}/{index}") for index, one in enumerate(value)]

    return load


def constraints(note: Any, schema: Schema, extra: Schema) -> None:
    """Reads a description and bounds off an Annotated object of any library."""
    for attribute in ("description", "documentation"):
        text = getattr(note, attribute, None)
        if isinstance(text, str) and text:
            extra.setdefault("description", text)
    kind = schema.get("type")
    sized = ("minLength", "maxLength")
    if kind == "array":
        sized = ("minItems", "maxItems")
    elif kind == "object":
        sized = ("minProperties", "maxProperties")
    for attribute, keyword in (
        ("ge", "minimum"), ("gt", "exclusiveMinimum"), ("le", "maximum"), ("lt", "exclusiveMaximum"),
        ("multiple_of", "multipleOf"), ("min_length", sized[0]), ("max_length", sized[1]),
    ):
        value = getattr(note, attribute, None)
        if type(value) in (int, float):
            extra[keyword] = value
    pattern = getattr(note, "pattern", None)
    if isinstance(pattern, str) and kind == "string":
        extra["pattern"] = pattern
    examples = getattr(note, "examples", None)
    if isinstance(examples, (list, tuple)) and examples:
        try:
            encode(list(examples))
            extra["examples"] = list(examples)
        except NotSerializable:
            pass
