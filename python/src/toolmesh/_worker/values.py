"""Values between JSON and Python: results out, arguments in.

A result is encoded by the C encoder in one go. Only when it refuses, the value
is walked to name the offending place. Nothing is ever replaced by its repr.
"""

from __future__ import annotations

import json
import json.encoder
import math

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    JSON: TypeAlias = Any  # None, bool, int, float, str, list[JSON] or dict[str, JSON]

_SCALARS = frozenset((str, int, float, bool, type(None)))
_STRINGS = frozenset((str,))
_ARRAY_LIMIT = 1_000_000  # elements of an array or frame that become JSON


class Mismatch(Exception):
    """An argument does not fit what the signature says."""

    def __init__(self, pointer: str, expected: str, got: str, message: str | None = None) -> None:
        self.pointer = pointer
        self.expected = expected
        self.got = got
        self.message = message or f"expected {expected}, got {got}"
        super().__init__(f"{pointer or '/'}: {self.message}")

    def as_dict(self) -> dict[str, JSON]:
        """What details.errors of an error says of it."""
        return {"pointer": self.pointer, "expected": self.expected, "got": self.got, "message": self.message}


class NotSerializable(Exception):
    """A result that JSON cannot carry. path names the place, like result.items[3]."""

    def __init__(self, path: str, message: str, type_name: str = "") -> None:
        self.path = path
        self.type_name = type_name
        super().__init__(f"{path} {message}")


class _Refused(TypeError):
    pass


def describe(value: object) -> str:
    """What a JSON value is, for messages: its kind and a short form of it."""
    if value is None:
        return "null"
    kind = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}.get(
        type(value), type(value).__name__
    )
    if type(value) in (list, dict):
        return kind
    text = json.dumps(value, ensure_ascii=False) if type(value) in _SCALARS else repr(value)
    return f"{kind} {text if len(text) <= 60 else text[:57] + '...'}"


def pointer(parent: str, key: object) -> str:
    """The JSON pointer of a member of parent."""
    return f"{parent}/{str(key).replace('~', '~0').replace('/', '~1')}"


# Results.


def _check(value: Any) -> None:
    """Refuses objects whose keys are not all text but could be told apart only
    before they became text: {1: a, "1": b}. The C encoder does not notice."""
    kind = type(value)
    if kind is dict:
        if len(value) < 16:
            for key, child in value.items():
                if type(key) is not str:
                    _check_keys(value)
                kind = type(child)
                if kind is dict or kind is list or kind is tuple:
                    _check(child)
            return
        if set(map(type, value)) - _STRINGS:
            _check_keys(value)
        value = value.values()
    elif kind is not list and kind is not tuple:
        return
    # Long and flat is common: tables of numbers cost by the kind, not by the item.
    if set(map(type, value)) - _SCALARS:
        for child in value:
            _check(child)


def _check_keys(value: dict[Any, Any]) -> None:
    seen: set[object] = set()
    for key in value:
        text = _key_text(key)
        if text in seen:
            raise _Refused("keys collide")
        seen.add(text)


def _key_text(key: object) -> object:
    """The text that a key becomes in JSON; the key itself where it becomes none."""
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
    """What value becomes in JSON, one level deep; raises TypeError if nothing."""
    import base64
    import dataclasses
    import datetime
    import decimal
    import enum
    import pathlib
    import uuid
    from collections import abc

    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if hasattr(value, "__pydantic_serializer__"):
            return value.__pydantic_serializer__.to_python(value)
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, (decimal.Decimal, uuid.UUID, pathlib.PurePath)):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, (set, frozenset)):
        try:
            return sorted(value)
        except TypeError:
            return list(value)
    kind = type(value)
    if not isinstance(value, type):
        if hasattr(kind, "model_dump") and hasattr(kind, "model_fields"):
            return value.model_dump()
        if hasattr(kind, "__fields__") and hasattr(kind, "parse_obj"):
            return value.dict()
        if hasattr(kind, "__attrs_attrs__"):
            return {field.name: getattr(value, field.name) for field in kind.__attrs_attrs__}
        module = kind.__module__.partition(".")[0]
        if module == "numpy":
            if getattr(value, "size", 1) > _ARRAY_LIMIT:
                raise TypeError(f"is an array of {value.size} elements, more than {_ARRAY_LIMIT}")
            if hasattr(value, "tolist"):
                return value.tolist()
        if module == "pandas":
            if getattr(value, "size", 1) > _ARRAY_LIMIT:
                raise TypeError(f"is a {kind.__name__} of {value.size} elements, more than {_ARRAY_LIMIT}")
            if kind.__name__ == "DataFrame":
                return value.to_dict("records")
            if kind.__name__ == "Series":
                return value.to_list()
            if hasattr(value, "isoformat"):
                return value.isoformat()
    if isinstance(value, abc.Mapping):
        return dict(value)
    if isinstance(value, abc.Sequence) or kind.__module__ == "collections" and kind.__name__ == "deque":
        return list(value)
    raise TypeError(f"is of type {kind.__module__}.{kind.__qualname__}, which JSON has no form for")


def _default(value: Any) -> Any:
    converted = convert(value)
    _check(converted)
    return converted


_markers: dict[int, Any] = {}
_encode: Callable[[Any, int], tuple[str, ...]]
_make_encoder = getattr(json.encoder, "c_make_encoder", None)
if _make_encoder is not None:
    _encode = _make_encoder(
        _markers, _default, json.encoder.encode_basestring, None, ":", ",", False, False, False
    )
else:  # an interpreter without the accelerator
    _encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_default, separators=(",", ":"))

    def _encode(value: Any, _level: int) -> tuple[str, ...]:
        return (_encoder.encode(value),)


def encode(value: Any) -> bytes:
    """value as JSON bytes; raises NotSerializable with the path of what cannot be."""
    try:
        _check(value)
        return "".join(_encode(value, 0)).encode()
    except Exception as failure:
        _markers.clear()
        explain(value)
        # The walk found nothing: the value changed while it was encoded, or
        # converts differently each time.
        raise NotSerializable("result", f"cannot be encoded: {failure}") from None


def explain(value: Any, path: str = "result") -> None:
    """Raises NotSerializable for the first place in value that JSON cannot carry."""
    try:
        _explain(value, path, set())
    except RecursionError:
        raise NotSerializable(path, "is nested too deeply for JSON") from None


def _explain(value: Any, path: str, above: set[int]) -> None:
    kind = type(value)
    if kind is str or isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotSerializable(path, "holds a lone surrogate, which is not Unicode text", "str") from None
        return
    if value is None or kind is bool:
        return
    if isinstance(value, int):
        try:
            int.__repr__(value)
        except ValueError as failure:
            raise NotSerializable(path, f"is too long a number: {failure}", "int") from None
        return
    if isinstance(value, float):
        if math.isnan(value):
            raise NotSerializable(path, "is NaN: JSON has no NaN; return None or a string", "float")
        if math.isinf(value):
            raise NotSerializable(path, "is infinite: JSON has no infinity; return None or a string", "float")
        return
    if id(value) in above:
        raise NotSerializable(path, "contains itself", kind.__name__)
    above.add(id(value))
    if isinstance(value, dict):
        seen: dict[object, object] = {}
        for key, child in value.items():
            if not isinstance(key, (str, int, float, type(None))):
                raise NotSerializable(
                    path, f"has a key of type {type(key).__name__}: {key!r:.80}; JSON keys are strings", kind.__name__
                )
            if isinstance(key, float) and not math.isfinite(key):
                raise NotSerializable(path, f"has the key {key!r}, which JSON cannot carry", kind.__name__)
            text = _key_text(key)
            if text in seen:
                raise NotSerializable(
                    path, f"has the keys {seen[text]!r} and {key!r}, which are the same key in JSON", kind.__name__
                )
            seen[text] = key
            _explain(key, f"{path} (key {key!r})", above)
            _explain(child, _member(path, key), above)
    elif isinstance(value, (list, tuple)):
        for index, child in enumerate(value):
            _explain(child, f"{path}[{index}]", above)
    else:
        try:
            converted = convert(value)
        except RecursionError:
            raise
        except TypeError as failure:
            message = str(failure)
            if not message.startswith("is "):
                message = f"cannot be converted: {message}"
            raise NotSerializable(path, message, kind.__qualname__) from None
        except Exception as failure:
            raise NotSerializable(
                path, f"cannot be converted: {type(failure).__name__}: {failure}", kind.__qualname__
            ) from None
        _explain(converted, path, above)
    above.discard(id(value))


def _member(path: str, key: object) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f"{path}.{key}"
    return f"{path}[{key!r}]"


# Arguments.

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # every decoder has it; the stubs leave it out


def decode(body: bytes) -> JSON:
    """The JSON value in body; raises ValueError."""
    text = body.decode()
    try:
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    except StopIteration:
        pass
    return json.loads(text)  # space around it, or an error to be told properly
