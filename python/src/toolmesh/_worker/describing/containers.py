"""Shapes of what holds other values: lists and sets, tuples, dicts."""

from __future__ import annotations

import collections
import math
import re
import typing
from collections import abc

from . import records
from .shapes import SIMPLE, Shape, inside
from .unions import either
from .values import Mismatch, describe, encode, pointer

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Any

    from ..wire.frames import JSON
    from .draft import Draft, Namespace
    from .shapes import Dump, Schema


def array(
    draft: Draft,
    args: Sequence[Any],
    where: str,
    namespace: Namespace,
    make: Callable[[list[Any]], Collection[Any] | Iterator[Any]],
) -> Shape:
    """The Shape of an array with items of one kind, which make makes of a list."""
    item = draft.shape(args[0], where, namespace) if args else draft.anything()
    schema: Schema = {"type": "array", "items": item.schema}

    distinct = make in (set, frozenset)

    def load(value: JSON, at: str) -> Any:
        if type(value) is not list:
            raise Mismatch(at, "array", describe(value))
        if item.load is not None:
            step = item.load
            value = [step(one, f"{at}/{index}") for index, one in enumerate(value)]
        if make is list:
            return value
        try:
            made = make(value)
        except TypeError as failure:  # what is in a set must be hashable
            raise Mismatch(at, "array of values that a set can hold", describe(value), str(failure)) from None
        if distinct and len(made) < len(value):  # type: ignore[arg-type]  # a set has a length
            raise _twice(value, at)
        return made

    dump: Dump | None = None
    write = item.dump
    if write is not None:

        def dump(value: Any, path: str) -> Any:
            if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
                return [write(one, path) for one in value]
            return value

    needs = item.load is not None or make is not list

    def fits(value: JSON) -> bool:
        return type(value) is list and all(map(item.fits, value)) and not (distinct and _repeats(value))

    return Shape(schema, "array", fits, load if needs else None, dump, texts=inside(item))


def _repeats(items: list[JSON]) -> bool:
    """Whether two items are one value in JSON, as uniqueItems means it: 1 and
    1.0 are, 1 and true are not."""
    seen = {
        (type(one) is bool, one) if type(one) not in (list, dict) else encode(one) for one in items
    }
    return len(seen) < len(items)


def _twice(items: list[Any], at: str) -> Mismatch:
    """About the first item that equals one before it."""
    seen: dict[Any, int] = {}
    for index, one in enumerate(items):
        if one in seen:
            break
        seen[one] = index
    return Mismatch(f"{at}/{index}", "a value that no other item of the set equals", describe(one),
                    f"{describe(one)} equals item {seen[one]} in Python, and a set holds one of them")


def tuple_of(draft: Draft, annotation: Any, args: Sequence[Any], where: str, namespace: Namespace) -> Shape:
    """The Shape of a tuple, of fixed length or not."""
    if not args and annotation in (tuple, typing.Tuple):  # noqa: UP006 - tuple[()] is another thing
        return array(draft, (), where, namespace, tuple)
    if args == ((),):  # Tuple[()] before 3.11
        args = ()
    if len(args) == 2 and args[1] is Ellipsis:
        return array(draft, args[:1], where, namespace, tuple)
    head: list[Shape] = []
    middle: Shape | None = None  # of any number of items
    tail: list[Shape] = []
    for arg, many in _parts(draft, args, where, namespace):
        shape = draft.shape(arg, where, namespace)
        if many and middle is not None:
            raise TypeError("it has two parts of any length")
        if many:
            middle = shape
        else:
            (head if middle is None else tail).append(shape)
    if middle is None:
        return records.positions(head, len(head), tuple)
    if tail:
        draft.warn(f"{where}: its schema cannot say what the last {len(tail)} of its items are; calls are held to it")
    return _open(head, middle, tail)


def _parts(draft: Draft, args: Sequence[Any], where: str, namespace: Namespace) -> Iterator[tuple[Any, bool]]:
    """(annotation, whether there may be any number of it) for each part of a
    tuple, with what is unpacked in it: tuple[int, *tuple[str, ...]]."""
    for arg in args:
        arg = draft.resolve(arg, namespace, where)
        inner = unpacked(arg)
        if inner is None:
            yield arg, False
            continue
        inner = draft.resolve(inner, namespace, where)
        own = typing.get_args(inner)
        if typing.get_origin(inner) is not tuple:  # a TypeVarTuple, or nothing that is known
            yield typing.Any, True
        elif len(own) == 2 and own[1] is Ellipsis:
            yield own[0], True
        else:
            yield from _parts(draft, () if own == ((),) else own, where, namespace)


def unpacked(annotation: Any) -> Any:
    """What stands unpacked in an annotation, *tuple[int, str] or Unpack[...]; None
    when nothing does."""
    if getattr(annotation, "__unpacked__", False):
        return typing.get_origin(annotation)[typing.get_args(annotation)]
    if getattr(typing.get_origin(annotation), "_name", None) == "Unpack":
        return typing.get_args(annotation)[0]
    return None


def _open(head: list[Shape], middle: Shape, tail: list[Shape]) -> Shape:
    """The Shape of a tuple with a part of any length. JSON Schema counts from the
    front alone: behind that part it can only say what may be there."""
    every = either([middle, *tail])
    least = len(head) + len(tail)
    schema: Schema = {"type": "array"}
    if head:
        schema["prefixItems"] = [one.schema for one in head]
    schema["items"] = every.schema
    if least:
        schema["minItems"] = least
    words = f"array of {least} items or more" if least else "array"

    def shapes(length: int) -> list[Shape]:
        return [*head, *[middle] * (length - least), *tail]

    def fits(value: JSON) -> bool:
        return (
            type(value) is list and len(value) >= least
            and all(shape.fits(one) for shape, one in zip(shapes(len(value)), value, strict=True))
        )

    def load(value: JSON, at: str) -> tuple[Any, ...]:
        if type(value) is not list or len(value) < least:
            got = describe(value) if type(value) is not list else f"array of {len(value)} items"
            raise Mismatch(at, words, got)
        pairs = zip(shapes(len(value)), value, strict=True)
        return tuple([records.placed(shape, one, f"{at}/{index}") for index, (shape, one) in enumerate(pairs)])

    dump: Dump | None = None
    if every.dump or any(shape.dump for shape in head):

        def dump(value: Any, path: str) -> Any:
            if isinstance(value, (list, tuple)) and len(value) >= least:
                pairs = zip(shapes(len(value)), value, strict=True)
                return [shape.dump(one, path) if shape.dump else one for shape, one in pairs]
            return value

    return Shape(schema, words, fits, load, dump, texts=inside(*head, middle, *tail))


_WHOLE = re.compile(r"(0|-?[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def mapping(draft: Draft, args: Sequence[Any], where: str, namespace: Namespace, base: type[Any]) -> Shape:
    """The Shape of an object with keys of one kind and values of one kind."""
    keys = draft.shape(args[0], where, namespace) if len(args) == 2 else SIMPLE[str]()
    value_shape = draft.shape(args[1], where, namespace) if len(args) == 2 else draft.anything()
    schema: Schema = {"type": "object", "additionalProperties": value_shape.schema or True}
    kind, listed = keys.schema.get("type"), keys.schema.get("enum")
    texts: dict[str, JSON] | None = None
    if listed is not None:
        texts = {encode(one).decode() if type(one) is not str else one: one for one in listed}
        schema["propertyNames"] = {"enum": list(texts)}
    elif kind == "boolean":
        texts = {"true": True, "false": False}
        schema["propertyNames"] = {"enum": list(texts)}
    elif kind == "integer":
        schema["propertyNames"] = {"pattern": "^(0|-?[1-9][0-9]*)$"}
    elif kind == "number":
        schema["propertyNames"] = {"pattern": f"^{_NUMBER.pattern}$"}
    elif kind in ("array", "object"):
        raise TypeError(f"a key of type {keys.expected} has no form in JSON")
    elif kind == "string" and len(keys.schema) > 1:
        schema["propertyNames"] = {key: one for key, one in keys.schema.items() if key != "type"}

    def load_key(text: str, at: str) -> Any:
        found: JSON = text
        if texts is not None:
            if text not in texts:
                raise Mismatch(at, "a key that is one of " + ", ".join(list(texts)[:20]), describe(text))
            found = texts[text]
        elif kind in ("integer", "number"):
            # As JSON writes them: Python would also read " 1_0 " and "nan".
            written = (_NUMBER if kind == "number" else _WHOLE).fullmatch(text) and len(text) <= 1000
            found = (float(text) if kind == "number" else int(text)) if written else None
            if found is None or found in (math.inf, -math.inf):
                raise Mismatch(at, f"a key that is {keys.expected}", describe(text))
        return keys.load(found, at) if keys.load else found

    plain_keys = keys.load is None and texts is None and kind not in ("integer", "number")

    def load(value: JSON, at: str) -> dict[Any, Any]:
        if type(value) is not dict:
            raise Mismatch(at, "object", describe(value))
        made: dict[Any, Any] = {}
        for name, one in value.items():
            key = name if plain_keys else load_key(name, pointer(at, name))
            if key in made:
                raise Mismatch(pointer(at, name), "each key once", describe(name),
                               f"{name} is a key that another one means too")
            made[key] = value_shape.load(one, pointer(at, name)) if value_shape.load else one
        return finish(made) if finish is not None else made

    finish: Callable[[dict[Any, Any]], Any] | None = None
    if base is collections.OrderedDict:
        finish = collections.OrderedDict
    elif base is collections.defaultdict:
        origin = typing.get_origin(args[1]) or args[1] if len(args) == 2 else None
        factory = origin if origin in (int, float, str, bool, list, dict, set, tuple) else None

        def finish(made: dict[Any, Any]) -> Any:
            return collections.defaultdict(factory, made)

    dump: Dump | None = None
    write, write_key = value_shape.dump, keys.dump
    if write is not None or write_key is not None:

        def dump(value: Any, path: str) -> Any:
            if not isinstance(value, abc.Mapping):
                return value
            if write_key is not None:
                found = [(write_key(key, path), one) for key, one in value.items()]
                value = dict(found)
                if len(value) < len(found):
                    raise ValueError("keys collide")
            return {key: write(one, path) for key, one in value.items()} if write is not None else value

    def fits(value: JSON) -> bool:
        return type(value) is dict and all(map(value_shape.fits, value.values()))

    needs = value_shape.load is not None or not plain_keys or finish is not None
    return Shape(
        schema, "object", fits, load if needs else None, dump, order=6, texts=inside(keys, value_shape)
    )
