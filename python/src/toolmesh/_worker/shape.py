"""Shapes: what one annotation is in JSON and how its values are converted."""

import base64
import binascii
import datetime
import decimal
import re
import sys
import uuid

from .values import Mismatch, describe, encode

JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class Shape:
    """One annotation: schema, load (None: the JSON value is the Python value),
    fits (a cheap test used to pick the member of a union), dump (None: encode
    as it is), expected (the words of messages)."""

    __slots__ = ("schema", "load", "fits", "dump", "expected", "order")

    def __init__(self, schema, expected, fits=None, load=None, dump=None, order=5):
        self.schema = schema
        self.expected = expected
        self.fits = fits or (lambda value: True)
        self.load = load
        self.dump = dump
        self.order = order


def _is_int(value):
    kind = type(value)
    return kind is int or kind is float and value.is_integer()


def _load_int(value, at):
    kind = type(value)
    if kind is int:
        return value
    if kind is float and value.is_integer():
        return int(value)
    raise Mismatch(at, "integer", describe(value))


def _load_float(value, at):
    kind = type(value)
    if kind is float:
        return value
    if kind is int:
        return float(value)
    raise Mismatch(at, "number", describe(value))


def text_loader(make, expected, hint=""):
    """A loader that makes its value of a text, and says what is expected of it."""

    def load(value, at):
        if type(value) is not str:
            raise Mismatch(at, expected, describe(value))
        try:
            return make(value)
        except (ValueError, ArithmeticError):
            raise Mismatch(at, expected, describe(value), f"expected {expected}{hint}, got {describe(value)}") from None

    return load


def is_text(value):
    return type(value) is str


def _load_decimal(value, at):
    kind = type(value)
    if kind in (str, int, float):
        try:
            return decimal.Decimal(str(value))
        except ArithmeticError:
            pass
    raise Mismatch(at, "decimal number", describe(value))


def _load_bytes(value, at):
    if type(value) is str:
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise Mismatch(at, "base64 text", describe(value))


def _dump_bytes(value, path):
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    return value


def _iso(parse):
    def make(text):
        if sys.version_info < (3, 11) and text.endswith(("Z", "z")):
            text = text[:-1] + "+00:00"
        return parse(text)

    return make


SIMPLE = {
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
        text_loader(_iso(datetime.datetime.fromisoformat), "date and time", " like 2026-01-31T12:00:00Z"),
        order=4,
    ),
    datetime.date: lambda: Shape(
        {"type": "string", "format": "date"},
        "date",
        is_text,
        text_loader(datetime.date.fromisoformat, "date", " like 2026-01-31"),
        order=4,
    ),
    datetime.time: lambda: Shape(
        {"type": "string", "format": "time"},
        "time of day",
        is_text,
        text_loader(_iso(datetime.time.fromisoformat), "time of day", " like 12:30:00"),
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
        {"type": "string", "format": "uuid"}, "UUID", is_text, text_loader(uuid.UUID, "UUID"), order=4
    ),
    decimal.Decimal: lambda: Shape(
        {"anyOf": [{"type": "number"}, {"type": "string"}]},
        "decimal number",
        lambda v: type(v) in (int, float, str),
        _load_decimal,
        order=4,
    ),
    re.Pattern: lambda: Shape({"type": "string", "format": "regex"}, "pattern", is_text, text_loader(re.compile, "pattern")),
}


def _scalar_schema(values):
    """An enum of JSON scalars, with its type when they share one."""
    kinds = []
    for value in values:
        kind = JSON_TYPES[type(value)]
        if kind not in kinds:
            kinds.append(kind)
    schema = {"enum": list(values)}
    return {"type": kinds[0] if len(kinds) == 1 else kinds, **schema}


def choice(pairs, expected):
    """A Shape of a closed set: pairs of (JSON scalar, Python value)."""
    table = {}
    for raw, value in pairs:
        table.setdefault((type(raw), raw), value)
    raws = [raw for _, raw in table]

    def key(value):
        kind = type(value)
        if kind is float and value.is_integer() and (int, int(value)) in table:
            return (int, int(value))
        return (kind, value)

    def fits(value):
        return type(value) in JSON_TYPES and key(value) in table

    def load(value, at):
        if fits(value):
            return table[key(value)]
        words = ", ".join(map(describe_short, raws[:20]))
        raise Mismatch(at, f"one of {words}", describe(value))

    return Shape(_scalar_schema(raws), expected, fits, load, order=4)


def describe_short(value):
    return encode(value).decode()
