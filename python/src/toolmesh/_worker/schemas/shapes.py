"""Shapes of JSON scalars: numbers, text, and types with a text form such as dates; closed sets of scalars; unions. Also
the helpers that the Builder of schema applies to Shapes."""

from __future__ import annotations

import base64
import copy
import dataclasses
import datetime
import decimal
import ipaddress
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, TypeAlias

from ..wire.frames import JSON
from . import files
from .values import Mismatch, describe, encode, sent

Schema: TypeAlias = dict[str, JSON]
Load: TypeAlias = Callable[[JSON], Any]  # raises Mismatch
Dump: TypeAlias = Callable[[Any], Any]

_EXACT = 1 << 53  # below it each integer has a double of its own


UNRESOLVED: Any = object()  # in place of an annotation with a name that does not exist


# Where each text must stay a str, as a union asks first for a member that keeps all texts of a value: what inner unions
# have refused. Each way to a value asks them: two at each level of a recursive union.
_keeping: ContextVar[dict[tuple[int, int], JSON] | None] = ContextVar("toolmesh_keeping", default=None)


@dataclasses.dataclass(slots=True, eq=False)
class Shape:
    """The Shape of one annotation. schema is its JSON schema. load makes the Python value from a JSON value and raises
    Mismatch; same says that both are equal. dump writes a value (None: unchanged). expected has the words for messages.
    order decides between members of a union that accept the same value."""

    schema: Schema
    expected: str
    load: Load
    dump: Dump | None = None
    same: bool = False
    order: int = 5

    def but(self, **changes: Any) -> Shape:
        return dataclasses.replace(self, **changes)

    def takes(self, value: JSON) -> bool:
        try:
            self.load(value)
        except Exception:
            return False
        return True


def no_text(value: JSON, expected: str) -> None:
    """Refuses a text that would become another value, where a union asks for members that keep it."""
    if type(value) is str and _keeping.get() is not None:
        raise Mismatch(expected, describe(value))


def sure(value: float) -> int | None:
    """The integer that was sent as a float without a fraction; None if the float may only be the nearest one."""
    whole = int(value)
    if -_EXACT < whole < _EXACT:
        return whole
    text = sent(value)
    return whole if text is not None and decimal.Decimal(text) == whole else None


def _load_int(value: JSON) -> int:
    """An integer, also in the form 1.0."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        whole = sure(value)
        if whole is not None:
            return whole
        raise Mismatch("integer", describe(value),
                       "an integer of 2^53 or more must be written without a fraction or exponent")
    raise Mismatch("integer", describe(value))


def _load_float(value: JSON) -> float:
    """A number as a float, if a float can represent it."""
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            made = float(value)
        except OverflowError:
            return value
        return made if made == value else value  # otherwise it stays an int
    raise Mismatch("number", describe(value))


def _load_timedelta(value: JSON) -> datetime.timedelta:
    _load_float(value)  # refuses other types than numbers
    try:
        if type(value) is int:
            return datetime.timedelta(seconds=value)
        exact = decimal.Decimal(sent(value) or repr(value)).scaleb(6)
        if exact != exact.to_integral_value():
            raise Mismatch("number of seconds", describe(value), "a duration is told in microseconds at most")
        return datetime.timedelta(microseconds=int(exact))
    except OverflowError:
        raise Mismatch("number of seconds", describe(value), "more seconds than a duration can hold") from None


def _only(kind: type[Any], expected: str) -> Load:
    """The loader of a type whose JSON value is the Python value."""

    def load(value: JSON) -> Any:
        if type(value) is not kind:
            raise Mismatch(expected, describe(value))
        return value

    return load


def from_text(make: Callable[[str], Any], expected: str, hint: str = "") -> Load:
    """A loader that makes its value from a text. expected is for messages."""

    def load(value: JSON) -> Any:
        if type(value) is not str or _keeping.get() is not None:
            raise Mismatch(expected, describe(value))
        try:
            return make(value)
        except (ValueError, ArithmeticError, re.error):
            raise Mismatch(expected, describe(value), f"expected {expected}{hint}, got {describe(value)}") from None

    return load


_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def _load_decimal(value: JSON) -> decimal.Decimal:
    no_text(value, "decimal number")
    kind = type(value)
    if kind in (int, float) or kind is str and _DECIMAL.fullmatch(value):
        try:
            return decimal.Decimal(value if kind is int else (kind is float and sent(value)) or str(value))
        except ArithmeticError:
            pass
    raise Mismatch("decimal number", describe(value))


def dump_bytes(value: Any) -> Any:
    """Bytes as base64 text."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    return value


_TIME = re.compile(r"(\d\d:\d\d(?::\d\d)?)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)?", re.ASCII)


def _time_text(text: str) -> str:
    """A time of day of RFC 3339, with or without offset, in the form that each version of Python reads."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    clock, fraction, offset = match.groups()
    if fraction is not None and fraction[6:].strip("0"):
        raise ValueError(text)  # finer than Python's microseconds: cutting would change the time
    made = clock if fraction is None else f"{clock}.{fraction[:6]:0<6}"
    return made + ("+00:00" if offset in ("Z", "z") else offset or "")


def _datetime(text: str) -> datetime.datetime:
    # A date alone is no datetime: a union of both must tell them apart.
    if text[10:11] not in ("T", "t", " "):
        raise ValueError(text)
    return datetime.datetime.fromisoformat(f"{_date_text(text[:10])}T{_time_text(text[11:])}")


_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _date_text(text: str) -> str:
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    return text


def _text(expected: str, make: Callable[[str], Any], hint: str = "", **schema: JSON) -> Callable[[], Shape]:
    """A function that makes the Shape of a type with a text form."""
    load = from_text(make, expected, hint)
    return lambda: Shape({"type": "string", **schema}, expected, load, order=4)


def _bytes(kind: Callable[[bytes], Any]) -> Callable[[], Shape]:
    load = from_text(lambda text: kind(base64.b64decode(text, validate=True)), "base64 text")
    schema = {"type": "string", "contentEncoding": "base64"}
    return lambda: Shape(dict(schema), "base64 text", load, dump_bytes)


def _load_file(value: JSON) -> files.File:
    if not files.refers(value):
        raise Mismatch("file", describe(value))
    return files.fetch(value)


_FLOAT, ANY = 3, 9  # the orders of a float, and of what takes any value

SIMPLE: dict[type[Any], Callable[[], Shape]] = {
    str: lambda: Shape({"type": "string"}, "string", _only(str, "string"), same=True, order=4),
    int: lambda: Shape({"type": "integer"}, "integer", _load_int, order=2),
    float: lambda: Shape({"type": "number"}, "number", _load_float, order=_FLOAT),
    bool: lambda: Shape({"type": "boolean"}, "boolean", _only(bool, "boolean"), same=True, order=1),
    type(None): lambda: Shape({"type": "null"}, "null", _only(type(None), "null"), same=True, order=0),
    bytes: _bytes(bytes),
    bytearray: _bytes(bytearray),
    memoryview: _bytes(memoryview),
    datetime.datetime: _text("date and time", _datetime, " like 2026-01-31T12:00:00Z", format="date-time"),
    datetime.date: _text(
        "date", lambda text: datetime.date.fromisoformat(_date_text(text)), " like 2026-01-31", format="date"
    ),
    datetime.time: _text(
        "time of day", lambda text: datetime.time.fromisoformat(_time_text(text)), " like 12:30:00", format="time"
    ),
    datetime.timedelta: lambda: Shape(
        {"type": "number", "description": "seconds"}, "number of seconds", _load_timedelta, order=4
    ),
    uuid.UUID: _text("UUID", uuid.UUID, format="uuid"),
    decimal.Decimal: lambda: Shape(
        {"anyOf": [{"type": "number"}, {"type": "string"}]}, "decimal number", _load_decimal, order=4
    ),
    re.Pattern: _text("regular expression", re.compile, format="regex"),
    ipaddress.IPv4Address: _text("IPv4 address", ipaddress.IPv4Address, format="ipv4"),
    ipaddress.IPv6Address: _text("IPv6 address", ipaddress.IPv6Address, format="ipv6"),
    files.File: lambda: Shape(copy.deepcopy(files.SCHEMA), "file", _load_file, order=6),
}

JSON_TYPES: dict[type[Any], str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def choice(pairs: Iterable[tuple[JSON, Any]], expected: str, dump: Dump | None = None) -> Shape:
    """The Shape of a closed set: pairs of (JSON scalar, Python value)."""
    table: dict[tuple[type[Any], JSON], Any] = {}
    for raw, value in pairs:
        table.setdefault((type(raw), raw), value)
    raws = [raw for _, raw in table]
    kinds = list(dict.fromkeys(JSON_TYPES[kind] for kind, _ in table))
    schema: Schema = {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": raws}

    def load(value: JSON) -> Any:
        kind = type(value)
        if kind in JSON_TYPES:
            if (kind, value) in table:
                return table[kind, value]
            # 1 and 1.0 are the same number in JSON, true is no number.
            other: Any = None
            if kind is float and value.is_integer():
                other = int, sure(value)
            elif kind is int and -_EXACT < value < _EXACT:
                other = float, float(value)
            if other in table:
                return table[other]
        words = ", ".join(encode(raw).decode() for raw in raws[:20])
        raise Mismatch(f"one of {words}" if len(raws) > 1 else words, describe(value))

    return Shape(schema, expected, load, dump, order=4)


def carried(value: Any) -> bool:
    """Whether JSON can represent a scalar unchanged."""
    return type(value) in JSON_TYPES and not (type(value) is float and not math.isfinite(value))


def plain(value: Any) -> Any:
    """A value of a scalar's subclass as the basic type."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def guard(load: Load, base: type[Any]) -> Load:
    """Turns a class's own refusal in __init__ into one of the arguments."""

    def guarded(value: JSON) -> Any:
        try:
            return load(value)
        except (ValueError, TypeError) as failure:
            raise Mismatch(f"object {base.__name__}", describe(value), f"{base.__name__}: {failure}") from None

    return guarded


def is_json(value: Any) -> bool:
    """Whether a value may be part of a schema."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def either(shapes: list[Shape]) -> Shape:
    """The Shape of a union."""
    if len(shapes) == 1:
        return shapes[0]
    members: list[Schema] = []
    for shape in shapes:
        for member in shape.schema["anyOf"] if set(shape.schema) == {"anyOf"} else [shape.schema]:
            if member not in members:
                members.append(member)
    schema: Schema = {} if {} in members else {"anyOf": members}
    expected = " or ".join(dict.fromkeys(shape.expected for shape in shapes))
    ordered = sorted(shapes, key=lambda shape: shape.order)
    # A number keeps its type where both are accepted.
    of_float = sorted(ordered, key=lambda shape: shape.order != _FLOAT)

    # The kinds of values that more than one member may take, as far as their schemas say.
    shared = {kind for kind, name in ((str, "string"), (list, "array"), (dict, "object"))
              if sum(name in shape.schema.get("type", name) for shape in shapes) > 1}

    def load(value: JSON) -> Any:
        kind, refused, asked = type(value), _keeping.get(), (id(ordered), id(value))
        if refused is not None and asked in refused:
            raise Mismatch(expected, describe(value))
        if kind in shared and refused is None:
            token = _keeping.set({})
            try:
                for shape in ordered:
                    try:
                        if shape.order < ANY:
                            return shape.load(value)
                    except Mismatch:
                        pass
            except Exception:
                pass  # of a class of the index: raised below, if no member before it takes the value
            finally:
                _keeping.reset(token)
        deepest: Mismatch | None = None  # the message of the member that matched the most
        for shape in of_float if kind is float else ordered:
            try:
                return shape.load(value)
            except Mismatch as failure:
                if deepest is None or len(failure.pointer) > len(deepest.pointer):
                    deepest = failure
        if refused is not None:
            refused[asked] = value
        if deepest is not None and deepest.pointer:
            raise deepest
        raise Mismatch(expected, describe(value))

    dump: Dump | None = None
    dumps = [shape.dump for shape in shapes if shape.dump is not None]
    if dumps:

        def dump(value: Any) -> Any:
            for one in dumps:
                value = one(value)
            return value

    return Shape(schema, expected, load, dump, same=all(shape.same for shape in shapes),
                 order=min(shape.order for shape in shapes))
