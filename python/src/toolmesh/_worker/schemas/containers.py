"""Shapes of containers: lists and sets, tuples, dicts."""

from __future__ import annotations

import collections
import math
import re
import typing
from collections import abc
from collections.abc import Callable, Sequence
from typing import Any

from ..wire.frames import JSON
from .draft import Draft, Namespace
from .shapes import Dump, Schema, Shape
from .values import Mismatch, describe, encode, member, pointer


def array(item: Shape, make: Callable[[list[Any]], Any] = list) -> Shape:
    """The Shape of an array with items of one kind. make builds the value from a list."""
    distinct = make in (set, frozenset)
    schema: Schema = {"type": "array", "items": item.schema}
    if distinct:
        schema["uniqueItems"] = True

    def load(value: JSON) -> Any:
        if type(value) is not list:
            raise Mismatch("array", describe(value))
        value = [member(item.load, one, index) for index, one in enumerate(value)]
        if make is list:
            return value
        try:
            made = make(value)
        except TypeError as failure:  # items of a set must be hashable
            raise Mismatch("array of values that a set can hold", describe(value), str(failure)) from None
        if distinct and len(made) < len(value):
            raise _twice(value)
        return made

    dump: Dump | None = None
    write = item.dump
    if write is not None:

        def dump(value: Any) -> Any:
            if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
                return [write(one) for one in value]
            return value

    return Shape(schema, "array", load, dump, same=item.same and make is list)


def _twice(items: list[Any]) -> Mismatch:
    """The message about the first item that equals an earlier one."""
    seen: dict[Any, int] = {}
    for index, one in enumerate(items):
        if one in seen:
            break
        seen[one] = index
    return Mismatch("a value that no other item of the set equals", describe(one),
                    f"{describe(one)} equals item {seen[one]} in Python, and a set holds one of them", f"/{index}")


def tuple_of(draft: Draft, annotation: Any, args: Sequence[Any], where: str, namespace: Namespace) -> Shape:
    """The Shape of a tuple, of fixed length or not."""
    if not args and annotation in (tuple, typing.Tuple):  # noqa: UP006 - tuple[()] differs
        return array(draft.anything(), tuple)
    if args == ((),):  # Tuple[()] before 3.11
        args = ()
    if len(args) == 2 and args[1] is Ellipsis:
        return array(draft.shape(args[0], where, namespace), tuple)
    if any(unpacked(draft.resolve(arg, namespace, where)) is not None for arg in args):
        raise TypeError("what is unpacked in a tuple is not understood")
    return places([draft.shape(arg, where, namespace) for arg in args])


def unpacked(annotation: Any) -> Any:
    """The type that an annotation unpacks, *tuple[int, str] or Unpack[...]; None for others."""
    if getattr(annotation, "__unpacked__", False):
        return typing.get_origin(annotation)[typing.get_args(annotation)]
    if getattr(typing.get_origin(annotation), "_name", None) == "Unpack":
        return typing.get_args(annotation)[0]
    return None


def places(items: list[Shape], least: int | None = None, make: Callable[[list[Any]], Any] = tuple) -> Shape:
    """The Shape of an array with a Shape per position, of which the first least are required."""
    least, most = len(items) if least is None else least, len(items)
    schema: Schema = {"type": "array"}
    if items:
        schema.update(prefixItems=[one.schema for one in items], items=False, minItems=least)
    schema["maxItems"] = most
    words = f"array of {least} items" if least == most else f"array of {least} to {most} items"

    def load(value: JSON) -> Any:
        if type(value) is not list or not least <= len(value) <= most:
            raise Mismatch(words, describe(value) if type(value) is not list else f"array of {len(value)} items")
        return make([member(shape.load, one, at) for at, (shape, one) in enumerate(zip(items, value, strict=False))])

    dump: Dump | None = None
    if any(shape.dump for shape in items):

        def dump(value: Any) -> Any:
            if isinstance(value, (list, tuple)) and least <= len(value) <= most:
                return [shape.dump(one) if shape.dump else one for shape, one in zip(items, value, strict=False)]
            return value

    return Shape(schema, words, load, dump)


_WHOLE = re.compile(r"(0|-?[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def mapping(keys: Shape, values: Shape, finish: Callable[[dict[Any, Any]], Any] = dict) -> Shape:
    """The Shape of an object with keys of one kind and values of one kind. finish builds the value."""
    schema: Schema = {"type": "object", "additionalProperties": values.schema or True}
    kind, listed = keys.schema.get("type"), keys.schema.get("enum")
    texts: dict[str, JSON] | None = None
    if listed is not None:
        texts = {encode(one).decode() if type(one) is not str else one: one for one in listed}
        schema["propertyNames"] = {"enum": list(texts)}
    elif kind == "boolean":
        texts = {"true": True, "false": False}
        schema["propertyNames"] = {"enum": list(texts)}
    elif kind == "integer":
        schema["propertyNames"] = {"pattern": f"^{_WHOLE.pattern}$"}
    elif kind == "number":
        schema["propertyNames"] = {"pattern": f"^{_NUMBER.pattern}$"}
    elif kind in ("array", "object"):
        raise TypeError(f"a key of type {keys.expected} has no form in JSON")
    elif kind == "string" and len(keys.schema) > 1:
        schema["propertyNames"] = {key: one for key, one in keys.schema.items() if key != "type"}

    def load_key(text: str) -> Any:
        found: JSON = text
        if texts is not None:
            if text not in texts:
                raise Mismatch("a key that is one of " + ", ".join(list(texts)[:20]), describe(text))
            found = texts[text]
        elif kind in ("integer", "number"):
            # JSON's form of numbers: Python would also read " 1_0 " and "nan".
            written = (_NUMBER if kind == "number" else _WHOLE).fullmatch(text) and len(text) <= 1000
            found = (float(text) if kind == "number" else int(text)) if written else None
            if found is None or found in (math.inf, -math.inf):
                raise Mismatch(f"a key that is {keys.expected}", describe(text))
        return keys.load(found)

    def load(value: JSON) -> Any:
        if type(value) is not dict:
            raise Mismatch("object", describe(value))
        made: dict[Any, Any] = {}
        for name, one in value.items():
            key = member(load_key, name, name)
            if key in made:
                raise Mismatch("each key once", describe(name), f"{name} is a key that another one means too",
                               pointer("", name))
            made[key] = member(values.load, one, name)
        return made if finish is dict else finish(made)

    dump: Dump | None = None
    write, write_key = values.dump, keys.dump
    if write is not None or write_key is not None:

        def dump(value: Any) -> Any:
            if not isinstance(value, abc.Mapping):
                return value
            if write_key is not None:
                found = [(write_key(key), one) for key, one in value.items()]
                value = dict(found)
                if len(value) < len(found):
                    raise ValueError("keys collide")
            return {key: write(one) for key, one in value.items()} if write is not None else value

    same = values.same and keys.same and kind == "string" and finish is dict
    return Shape(schema, "object", load, dump, same=same, order=6)


def mapping_of(draft: Draft, base: Any, args: Sequence[Any], where: str, namespace: Namespace) -> Shape:
    if len(args) != 2:
        args = str, typing.Any
    keys, values = (draft.shape(arg, where, namespace) for arg in args)
    finish: Callable[[dict[Any, Any]], Any] = dict
    if base is collections.OrderedDict:
        finish = collections.OrderedDict
    elif base is collections.defaultdict:
        origin = typing.get_origin(args[1]) or args[1]
        factory = origin if origin in (int, float, str, bool, list, dict, set, tuple) else None
        finish = lambda made: collections.defaultdict(factory, made)  # noqa: E731
    return mapping(keys, values, finish)
