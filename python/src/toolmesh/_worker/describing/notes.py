"""What Annotated says of a value beside its type: descriptions, bounds, lengths,
predicates, and the validators of pydantic.

What the schema says is checked before a call comes here. The rest is checked on
the value that was made: that a date is not before another has no word in JSON
Schema. What nobody checks is warned of.
"""

from __future__ import annotations

import decimal
import functools
import math
import operator
import re
import typing

from . import models
from .shapes import Unread, is_json
from .values import Mismatch, describe

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeAlias

    from ..wire.frames import JSON
    from .draft import Draft
    from .shapes import Load, Schema, Shape

    Check: TypeAlias = tuple[Callable[[Any], bool], str]  # whether a value holds to it, and its words


# A keyword may stand in a dict of Annotated, beside the names of constraints.
_KEYWORDS = frozenset((
    "title", "description", "examples", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems",
    "minProperties", "maxProperties", "enum", "deprecated", "contentMediaType",
))


def _kinds(schema: Schema) -> set[str]:
    """The types that a schema allows, as far as it names them."""
    kind = schema.get("type")
    found = set(kind) if isinstance(kind, list) else {kind} if isinstance(kind, str) else set()
    for member in schema.get("anyOf", ()):
        found |= _kinds(member)
    return found


def _encoded(schema: Schema) -> bool:
    return "contentEncoding" in schema or any(map(_encoded, schema.get("anyOf", ())))


def _bound(value: Any) -> JSON:
    """A bound as JSON writes it, None when it has no form there."""
    if isinstance(value, decimal.Decimal) and value == (exact := float(value)):
        value = int(exact) if exact.is_integer() else exact
    return value if type(value) in (int, float) and math.isfinite(value) else None


def constraints(note: Any, schema: Schema, extra: Schema) -> None:
    """Reads a description and bounds off an Annotated object of any library, or
    off a dict with such names or with the schema's own keywords."""
    names: dict[str, Any] = {}
    if isinstance(note, dict):
        names = {key: value for key, value in note.items() if isinstance(key, str)}
        for key in _KEYWORDS & names.keys():
            if is_json(names[key]):
                extra.setdefault(key, names[key])

    def get(name: str) -> Any:
        return names.get(name) if isinstance(note, dict) else getattr(note, name, None)

    for attribute in ("description", "documentation"):
        text = get(attribute)
        if isinstance(text, str) and text:
            extra.setdefault("description", text)
    kinds = _kinds(schema)
    sized = ("minItems", "maxItems") if "array" in kinds else (
        ("minProperties", "maxProperties") if "object" in kinds else ("minLength", "maxLength")
    )
    for attribute, keyword in (
        ("ge", "minimum"), ("gt", "exclusiveMinimum"), ("le", "maximum"), ("lt", "exclusiveMaximum"),
        ("multiple_of", "multipleOf"), ("min_length", sized[0]), ("max_length", sized[1]),
    ):
        value = _bound(get(attribute))
        if value is None:
            continue
        if keyword in ("minLength", "maxLength") and _written(schema):
            if not _encoded(schema):
                continue  # the length of a date
            value = -(-value // 3) * 4  # what so many bytes take as base64
        extra[keyword] = value
    pattern = get("pattern")
    pattern = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if isinstance(pattern, str) and "string" in kinds:
        extra["pattern"] = pattern
    examples = get("examples")
    if isinstance(examples, (list, tuple)) and examples and is_json(list(examples)):
        extra["examples"] = list(examples)


def read(
    draft: Draft, inner: Shape, notes: Iterable[Any], annotation: Any, where: str
) -> tuple[Shape, Schema]:
    """(inner with what the notes say of the value, what they add to its schema).
    annotation is the whole, for pydantic."""
    extra: Schema = {}
    told: list[Check] = []  # by the schema
    untold: list[Check] = []
    foreign: list[Any] = []
    for note in _flat(notes):
        if isinstance(note, str):
            extra.setdefault("description", note)
        elif isinstance(note, Unread):
            draft.warn(f"{where}: {note.why}")
        elif _foreign(note):
            constraints(note, inner.schema, extra)
            foreign.append(note)
        else:
            constraints(note, inner.schema, extra)
            for check, known in _checks(note, inner.schema):
                (told if known else untold).append(check)
            if _is(note, "annotated_types", "Timezone", "Unit"):
                draft.warn(f"{where}: the constraint {_short(note)} is not checked")
    if draft.results:
        return inner, extra
    if foreign:
        if any(map(_before, foreign)):
            whole = models.annotated(draft, annotation)
            if whole is not None:
                return whole, {key: one for key, one in extra.items() if key == "description"}
            asked = None
        else:
            asked = models.checker(annotation)
        if asked is not None:
            inner = inner.but(load=_then(inner, asked))
        else:
            for note in foreign:
                draft.warn(f"{where}: the constraint {_short(note)} is not checked")
    if untold:
        loose = typing.get_origin(annotation.__origin__) in models.UNIONS or not _kinds(inner.schema)
        inner = inner.but(load=_held(inner, untold, loose))
    if told:
        fits = inner.fits
        # Which member of a union has a value depends on what its schema says.
        inner = inner.but(fits=lambda value: fits(value) and all(_holds(check, value, True) for check, _ in told))
    return inner, extra


def _flat(notes: Iterable[Any]) -> Iterator[Any]:
    """The notes, and those in them: Interval is two, and Field(...) has a list."""
    for note in notes:
        if getattr(note, "__is_annotated_types_grouped_metadata__", False) is True:
            yield from _flat(note)
            continue
        yield note
        inner = getattr(note, "metadata", None)
        if isinstance(inner, (list, tuple)):
            yield from _flat(inner)


def _is(note: Any, package: str, *names: str) -> bool:
    kind = type(note)
    return kind.__module__.partition(".")[0] == package and (not names or kind.__name__ in names)


def _short(note: Any) -> str:
    text = re.sub(" at 0x[0-9a-f]+", "", repr(note))  # no two processes agree on that
    return text if len(text) <= 80 else text[:77] + "..."


# What version 1 of pydantic has in a Field and no one else reads.
_OLD = ("max_digits", "decimal_places", "regex", "const", "unique_items", "min_items", "max_items")


def _foreign(note: Any) -> bool:
    """Whether only pydantic knows what a note means."""
    if hasattr(note, "__get_pydantic_core_schema__") or hasattr(note, "__get_pydantic_json_schema__"):
        return True
    if not _is(note, "pydantic"):
        return False
    if type(note).__name__ == "FieldInfo":
        return any(getattr(note, name, None) is not None for name in _OLD)
    if type(note).__name__.endswith("GeneralMetadata"):
        return any(value is not None for name, value in vars(note).items() if name != "pattern")
    return True


def _before(note: Any) -> bool:
    """Whether a note means JSON's value, not the one that is made of it."""
    return not _is(note, "pydantic") or type(note).__name__ in (
        "BeforeValidator", "PlainValidator", "WrapValidator", "WithJsonSchema", "FieldInfo", "Json", "EncodedBytes",
        "EncodedStr", "Discriminator",
    )


def _then(inner: Shape, check: Load) -> Load:
    load = inner.load
    return lambda value, at: check(load(value, at) if load is not None else value, at)


def _holds(holds: Callable[[Any], bool], value: Any, loose: bool) -> bool:
    try:
        return bool(holds(value))
    except (TypeError, ValueError):
        return loose  # of a union some members have such a bound


def _held(inner: Shape, checks: list[Check], loose: bool) -> Load:
    """The loader of inner, and then the checks on what it has made."""
    load = inner.load

    def held(value: JSON, at: str) -> Any:
        made = load(value, at) if load is not None else value
        for holds, words in checks:
            if not _holds(holds, made, loose):
                raise Mismatch(at, f"{inner.expected} {words}", describe(value))
        return made

    return held


def _scaled(number: Any) -> tuple[int, int]:
    """(coefficient, exponent) of a number as it is written: 0.3 is three times 0.1."""
    _, digits, exponent = decimal.Decimal(str(number) if isinstance(number, float) else number).as_tuple()
    return int("".join(map(str, digits))), int(exponent)


def _multiple(value: Any, of: Any) -> bool:
    if not (isinstance(value, (int, float, decimal.Decimal)) and isinstance(of, (int, float, decimal.Decimal))):
        return not value % of
    # Never written out: a text of a few characters may mean a billion digits.
    whole, exponent = _scaled(value)
    step, scale = _scaled(of)
    if exponent >= scale:
        return whole * pow(10, exponent - scale, step) % step == 0
    while exponent < scale and whole and whole % 10 == 0:
        whole, exponent = whole // 10, exponent + 1
    return not whole or exponent == scale and whole % step == 0


_TESTS: tuple[tuple[str, str, Callable[[Any, Any], Any]], ...] = (
    ("ge", "of at least", operator.ge),
    ("gt", "above", operator.gt),
    ("le", "of at most", operator.le),
    ("lt", "below", operator.lt),
    ("multiple_of", "that is a multiple of", _multiple),
)


def _against(test: Callable[[Any, Any], Any], limit: Any, value: Any) -> bool:
    return bool(test(value, limit))


def _sized(test: Callable[[Any, Any], Any], limit: int, value: Any) -> bool:
    return bool(test(len(value), limit))


def _checks(note: Any, schema: Schema) -> Iterator[tuple[Check, bool]]:
    """What a note demands of a value, and whether the schema says it in full."""
    given = note if isinstance(note, dict) else None

    def get(name: str) -> Any:
        return given.get(name) if given is not None else getattr(note, name, None)

    kinds = _kinds(schema) - {"null"}
    for name, words, test in _TESTS:
        limit = get(name)
        if limit is None or limit != limit:
            continue
        known = _bound(limit) is not None and bool(kinds) and kinds <= {"integer", "number"}
        yield (functools.partial(_against, test, limit), f"{words} {limit}"), known
    known = kinds in ({"string"}, {"array"}, {"object"}) and not _written(schema)
    for name, words, compare in (
        ("min_length", "of a length of at least", operator.ge), ("max_length", "of a length of at most", operator.le),
    ):
        limit = get(name)
        if type(limit) is int:
            yield (functools.partial(_sized, compare, limit), f"{words} {limit}"), known
    pattern = get("pattern")
    if isinstance(pattern, (str, re.Pattern)) and "string" in kinds:
        yield (lambda value: re.search(pattern, value) is not None, "that matches its pattern"), True
    if _is(note, "annotated_types", "Predicate"):
        name = getattr(note.func, "__name__", "") or repr(note.func)
        yield (note.func, f"for which {name} holds"), False


def _written(schema: Schema) -> bool:
    """Whether a text stands for something of another length."""
    return bool({"contentEncoding", "format"} & schema.keys()) or any(map(_written, schema.get("anyOf", ())))
