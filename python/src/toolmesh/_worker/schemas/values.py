"""Conversion between JSON and Python values: results out, arguments in.

The C encoder encodes a result in one go. Only if it refuses, the value is walked to name the offending place. No value
is ever replaced by its repr.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import itertools
import json
import json.encoder
import math
import pathlib
import re
import uuid
from collections import abc
from collections.abc import Callable, Iterable
from typing import Any

from ..wire.frames import JSON
from . import files, redaction

_BUILT_IN, _SLOT = type(dict[str, int]().items), type(list.__iter__)  # types of methods written in C
_SCALARS = frozenset((str, int, float, bool, type(None)))
_STRINGS = frozenset((str,))
_ARRAY_LIMIT = 1_000_000  # max elements of an array, a frame or a list-like object
_DEPTH = 5000  # max levels, even if a tool has raised Python's own limit
_MISSING = ("NaTType", "NAType")  # missing values of pandas
_SHOWN = 80  # max characters of a key in a path


class Mismatch(Exception):
    """An argument does not match the signature. pointer is the JSON pointer of its place."""

    def __init__(self, expected: str, got: str, message: str | None = None, pointer: str = "") -> None:
        self.pointer = pointer
        self.expected = expected
        self.got = got
        self.message = message or f"expected {expected}, got {got}"
        super().__init__(self.message)

    def as_dict(self) -> dict[str, JSON]:
        """Its form in details.errors of an error."""
        return {"pointer": self.pointer, "expected": self.expected, "got": self.got, "message": self.message}


class NotSerializable(Exception):
    """A result that JSON cannot represent. path names the place, like result.items[3]."""

    def __init__(self, path: str, message: str, type_name: str = "") -> None:
        self.path = path
        self.type_name = type_name
        super().__init__(f"{path} {message}")


class _Refused(TypeError):
    pass


def describe(value: object) -> str:
    """A JSON value for messages: its kind and a short form of it."""
    if value is None:
        return "null"
    kind = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}.get(
        type(value), type(value).__name__
    )
    if type(value) in (list, dict):
        return kind
    if type(value) is str:
        text = _text(value[:61])
    elif type(value) in _SCALARS:
        text = _text(value)
    else:
        return kind
    return f"{kind} {text if len(text) <= 60 else text[:57] + '...'}"


def pointer(parent: str, key: object) -> str:
    """The JSON pointer of a member of parent."""
    return f"{parent}/{str(key).replace('~', '~0').replace('/', '~1')}"


def needed(name: str, kind: JSON) -> Mismatch:
    """The Mismatch of a missing member. kind is the type in its schema, or a text; empty: any."""
    kind = " or ".join(kind) if type(kind) is list else kind
    return Mismatch(kind or "a value", "nothing", f"{name} is required: {kind}" if kind else f"{name} is required",
                    pointer("", name))


def member(load: Callable[[JSON], Any], value: JSON, key: object) -> Any:
    """load(value) for the member at key: a Mismatch names that place."""
    try:
        return load(value)
    except Mismatch as failure:
        failure.pointer = pointer("", key) + failure.pointer
        raise


# Results.


def _check(value: Any, left: int = _DEPTH) -> None:
    """Refuses objects with keys that are equal only as text, {1: a, "1": b}, which the C encoder does not notice, and
    more than left levels, which overflow its stack."""
    if not left:
        raise _Refused("nested too deeply")
    kind = type(value)
    if kind is dict:
        if len(value) < 16:
            for key, child in value.items():
                if type(key) is not str:
                    _check_keys(value)
                kind = type(child)
                if kind not in _SCALARS:
                    _check(child, left - 1)
            return
        if set(map(type, value)) - _STRINGS:
            _check_keys(value)
        value = value.values()
    elif kind is not list and kind is not tuple:
        if kind in _SCALARS:
            return
        if isinstance(value, dict):
            if _own_items(value):
                raise _Refused("gives its items itself")
            _check_keys(dict.keys(value))
            value = list(dict.values(value))
        elif not isinstance(value, (list, tuple)):
            return
        elif _own_items(value):
            raise _Refused("gives its items itself")
    # Long and flat values are common: tables of numbers are checked by type, not by item.
    if set(map(type, value)) - _SCALARS:
        for child in value:
            _check(child, left - 1)


def _own_items(value: Any) -> bool:
    """Whether a subclass of list, tuple or dict has its own methods for its items: they may be endless, so convert must
    handle it before the encoder."""
    if isinstance(value, dict):
        return type(value.items) is not _BUILT_IN
    return type(type(value).__iter__) is not _SLOT


def _check_keys(value: Iterable[Any]) -> None:
    seen: set[object] = set()
    for key in value:
        text = _key_text(key)
        if text in seen:
            raise _Refused("keys collide")
        seen.add(text)


def _key_text(key: object) -> object:
    """The text of a key in JSON; the key itself if it has none."""
    if isinstance(key, str):
        return str.__str__(key)
    if key is None:
        return "null"
    if key is True:
        return "true"
    if key is False:
        return "false"
    if isinstance(key, int):
        return int.__repr__(key)
    if isinstance(key, float):
        return float.__repr__(key)
    return key


def convert(value: Any) -> Any:
    """The form of value in JSON, one level deep; raises TypeError if it has none."""
    if isinstance(value, enum.Enum):
        return value.value
    kind = type(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if hasattr(value, "__pydantic_serializer__"):
            return _dumped(lambda **how: value.__pydantic_serializer__.to_python(value, **how))
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if kind is files.File:
        return (files.named.get() or files.store)(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if kind.__name__ in _MISSING and kind.__module__.startswith("pandas"):
        return None
    text = _text_of(value)
    if text is not None:
        return text
    if isinstance(value, (set, frozenset)):
        items = list(value) if kind in (set, frozenset) else _few(value)
        try:
            return sorted(items)
        except TypeError:
            return items
    if isinstance(value, re.Pattern):
        return value.pattern
    if isinstance(value, collections.UserString):
        return value.data
    if not isinstance(value, type):
        if hasattr(kind, "model_dump") and hasattr(kind, "model_fields"):
            return _dumped(value.model_dump)
        if hasattr(kind, "__fields__") and hasattr(kind, "parse_obj"):
            try:
                return json.loads(value.json(by_alias=True))
            except Exception:
                return value.dict(by_alias=True)
        if hasattr(kind, "__attrs_attrs__"):
            return {field.name: getattr(value, field.name) for field in kind.__attrs_attrs__}
        module = kind.__module__.partition(".")[0]
        if module in ("numpy", "torch", "jaxlib", "tensorflow", "cupy"):
            size = getattr(value, "size", 1)
            size = value.numel() if callable(size) else size
            if isinstance(size, int) and size > _ARRAY_LIMIT:
                raise TypeError(f"is an array of {size} elements, more than {_ARRAY_LIMIT}")
            if hasattr(value, "tolist"):
                return _listed(value)
        bases = {base.__name__ for base in kind.__mro__ if base.__module__.partition(".")[0] == "pandas"}
        if bases:
            if getattr(value, "size", 1) > _ARRAY_LIMIT:
                raise TypeError(f"is a {kind.__name__} of {value.size} elements, more than {_ARRAY_LIMIT}")
            if "DataFrame" in bases:
                if not value.columns.is_unique:
                    name = value.columns[value.columns.duplicated()][0]
                    raise TypeError(f"is a {kind.__name__} with more than one column {_shown(name)}")
                return value.to_dict("records")
            if bases & {"Series", "Index", "ExtensionArray"}:
                return list(value)
    if isinstance(value, abc.Mapping):
        keys = _few(value)
        held = {key: value[key] for key in keys}
        if len(held) < max(len(keys), len(value)):  # multidict counts all and names each key once
            raise TypeError(f"is a {kind.__name__} that has one key more than once; JSON keys stand once")
        return held
    if isinstance(value, (abc.Sequence, abc.Set, abc.ValuesView, collections.deque)) or kind.__module__ == "array":
        return list(_few(value))
    raise TypeError(f"is of type {kind.__module__}.{kind.__qualname__}, which JSON has no form for")


def _listed(value: Any) -> Any:
    """A scalar or an array of numpy and similar libraries as Python values."""
    dtype: Any = getattr(value, "dtype", None)
    kind, names = getattr(dtype, "kind", ""), getattr(dtype, "names", None)
    if names or kind in ("M", "m"):
        # Converted all at once, numpy returns times that datetime cannot represent (nanoseconds, or far away) as
        # numbers without a unit.
        one = isinstance(value, dtype.type)
        if one and not names:
            made = value.tolist()
            if type(made) is int:
                made = str(value) if kind == "M" else value / type(value)(1, "s")
            return made
        return list(value) if one or value.shape else _listed(value[()])
    made = value.tolist()
    if type(made) is type(value):
        raise TypeError(f"is of type {type(value).__module__}.{type(value).__name__}, which JSON has no form for")
    return made


def _few(value: Any, items: Any = None) -> list[Any]:
    """The items of a list-like object, which may be endless."""
    taken = list(itertools.islice(iter(value if items is None else items), _ARRAY_LIMIT + 1))
    if len(taken) > _ARRAY_LIMIT:
        raise TypeError(f"is a {type(value).__name__} of more than {_ARRAY_LIMIT} elements")
    return taken


def _pairs(value: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return _few(value, value.items()) if _own_items(value) else value.items()


def _items(value: list[Any] | tuple[Any, ...]) -> Iterable[Any]:
    return _few(value) if _own_items(value) else value


def _dumped(dump: Callable[..., Any]) -> Any:
    """A model in the form that its author defines. If that fails, as for bytes that are no text, the rules here
    apply."""
    try:
        return dump(mode="json", by_alias=True)
    except Exception:
        return dump(mode="python", by_alias=True)


def _text_of(value: Any) -> str | None:
    """The text form of a value of a standard type, None if it has none."""
    import fractions

    if isinstance(value, (datetime.date, datetime.time)):
        return None if type(value).__name__ in _MISSING else value.isoformat()
    if isinstance(value, (
        decimal.Decimal, uuid.UUID, pathlib.PurePath, fractions.Fraction,
        ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network,
    )):
        return str(value)
    return None


def plain_key(key: Any) -> Any:
    """A key of a dict as a JSON key; raises TypeError if impossible."""
    while isinstance(key, enum.Enum):
        key = key.value
    if key is None or isinstance(key, (str, int, float)):
        return key
    if type(key).__module__ == "numpy" and hasattr(key, "tolist"):
        return plain_key(_listed(key))
    text = _text_of(key)
    if text is None:
        raise TypeError(f"a key of type {type(key).__name__}")
    return text


def _default(value: Any) -> Any:
    converted = convert(value)
    _check(converted)
    return converted


# Without markers, which work for one value at a time: several threads encode, and code of a value may encode others.
# A circular value hits Python's limit of recursion, and explain says so.
_encode: Callable[[Any, int], tuple[str, ...]] = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, _default, json.encoder.encode_basestring, None, ":", ",", False, False, False
)


def encode(value: Any) -> bytes:
    """value as JSON bytes; raises NotSerializable with the path of the offending place."""
    if value is None:
        return b"null"  # the result of many tools
    try:
        if type(value) not in _SCALARS:
            _check(value)
        return "".join(_encode(value, 0)).encode()
    except Exception as failure:
        try:
            # Keys that are dates or members of an Enum are supported here, not in the encoder.
            return "".join(_encode(explain(value), 0)).encode()
        except NotSerializable:
            raise
        except Exception:
            # The value changed while it was encoded, or converts differently each time.
            raise NotSerializable("result", f"cannot be encoded: {_words(failure)}") from None


def explain(value: Any, path: str = "result") -> Any:
    """value in JSON types, keys too; raises NotSerializable for the first place that JSON cannot represent."""
    try:
        return _explain(value, path, set())
    except RecursionError:
        raise NotSerializable(path, "is nested too deeply for JSON") from None


def _words(failure: BaseException) -> str:
    """str(failure), whatever its __str__ does."""
    try:
        return redaction.text(f"{type(failure).__name__}: {failure}")[:500]
    except Exception:
        return type(failure).__name__


def _shown(key: object) -> str:
    """A key for people: its shortened repr, whatever its __repr__ does."""
    try:
        text = repr(key[: _SHOWN + 1] if isinstance(key, str) else key)
    except Exception:
        return f"<{type(key).__name__}>"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _explain(value: Any, path: str, above: set[int]) -> Any:
    kind, made = type(value), value
    if kind is str or isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotSerializable(path, "holds a lone surrogate, which is not Unicode text", "str") from None
        return value
    if value is None or kind is bool:
        return value
    if isinstance(value, int):
        try:
            int.__repr__(value)
        except ValueError as failure:
            raise NotSerializable(path, f"is too long a number: {failure}", "int") from None
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise NotSerializable(path, "is NaN: JSON has no NaN; use None or a string", "float")
        if math.isinf(value):
            raise NotSerializable(path, "is infinite: JSON has no infinity; use None or a string", "float")
        return value
    if id(value) in above:
        raise NotSerializable(path, "contains itself", kind.__name__)
    if len(above) == _DEPTH:
        raise RecursionError
    above.add(id(value))
    if isinstance(value, dict):
        seen: dict[object, object] = {}
        made = {}
        for key, child in _explained(_pairs, value, path):
            try:
                known = plain_key(key)
            except Exception:
                raise NotSerializable(
                    path, f"has a key of type {type(key).__name__}: {_shown(key)}; JSON keys are strings", kind.__name__
                ) from None
            if isinstance(known, float) and not math.isfinite(known):
                raise NotSerializable(path, f"has the key {_shown(key)}, which JSON cannot carry", kind.__name__)
            text = _key_text(known)
            if text in seen:
                raise NotSerializable(
                    path, f"has the keys {_shown(seen[text])} and {_shown(key)}, which are the same key in JSON",
                    kind.__name__,
                )
            seen[text] = key
            _explain(known, f"{path} (key {_shown(key)})", above)
            made[known] = _explain(child, _member(path, key), above)
    elif isinstance(value, (list, tuple)):
        items = enumerate(_explained(_items, value, path))
        made = [_explain(child, f"{path}[{index}]", above) for index, child in items]
    else:
        made = _explain(_explained(convert, value, path), path, above)
    above.discard(id(value))
    return made


def _explained(convert: Callable[[Any], Any], value: Any, path: str) -> Any:
    """convert(value); raises NotSerializable if that fails."""
    try:
        return convert(value)
    except RecursionError:
        raise
    except Exception as failure:
        message = _words(failure)
        if isinstance(failure, TypeError) and message.startswith("TypeError: is "):
            message = message.removeprefix("TypeError: ")
        else:
            message = f"cannot be converted: {message}"
        raise NotSerializable(path, message, type(value).__qualname__) from None


def _member(path: str, key: object) -> str:
    if isinstance(key, str) and len(key) <= _SHOWN and key.isidentifier():
        return f"{path}.{key}"
    return f"{path}[{_shown(key)}]"


# Arguments.

def no_constant(name: str) -> Any:
    """Refuses NaN and infinities as numbers."""
    raise ValueError(f"{name} is not JSON")


_text = json.JSONEncoder(ensure_ascii=False).encode  # bound now: a tool may replace functions of json


def reader(decoder: json.JSONDecoder) -> Callable[[bytes], JSON]:
    """A function that reads a body with a decoder."""
    scan = decoder.scan_once  # type: ignore[attr-defined]  # missing in the stubs
    whole = decoder.decode

    def decode(body: bytes) -> JSON:
        """The JSON value in body; raises ValueError, also for too deep nesting."""
        text = body.decode()
        try:
            value, end = scan(text, 0)
            if end == len(text):
                return value
        except StopIteration:
            pass
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return whole(text)  # white space around it, or an error with a good message

    return decode


decode = reader(json.JSONDecoder(parse_constant=no_constant))


# Numbers in their original text. A double holds about 16 digits. Code that needs more, or the exact digits, reads the
# arguments with decode_exact and gets the text of each float here. The floats themselves are plain. Only tools that
# need the texts pay for a call per float.

# id of a float of the current arguments -> the float, which keeps its id valid, and its text.
_texts: dict[int, tuple[float, str]] = {}


def _keep(text: str) -> float:
    number = float(text)
    _texts[id(number)] = number, text
    return number


_read = reader(json.JSONDecoder(parse_float=_keep, parse_constant=no_constant))


def decode_exact(body: bytes) -> JSON:
    """decode, and sent knows the numbers until forget."""
    try:
        return _read(body)
    except BaseException:
        _texts.clear()
        raise


def sent(number: float) -> str | None:
    """The text of a float of the arguments; None if unknown."""
    return _texts[id(number)][1] if id(number) in _texts else None


def forget() -> None:
    """Forgets the texts once the arguments are bound."""
    _texts.clear()
