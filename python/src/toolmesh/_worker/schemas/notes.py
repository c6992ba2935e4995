"""Notes of Annotated next to the type of a value: descriptions, bounds, lengths, predicates, and the validators of
pydantic.

What the schema says is checked before a call comes here. The rest is checked on the value that was made: that a date is
not before another has no word in JSON Schema. A constraint that is not checked is a warning.
"""

from __future__ import annotations

import contextlib
import decimal
import functools
import operator
import re
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from ..wire.frames import JSON
from . import models
from .draft import Draft
from .shapes import Load, Schema, Shape, is_json
from .values import Mismatch, describe

# Whether a value holds to it, its words, and whether the schema says it in full.
Check: TypeAlias = tuple[Callable[[Any], bool], str, bool]


# A keyword may stand in a dict of Annotated, beside the names of constraints.
_KEYWORDS = frozenset((
    "title", "description", "examples", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems",
    "minProperties", "maxProperties", "enum", "deprecated", "contentMediaType",
))


def _members(schema: Schema) -> Iterator[Schema]:
    """The schema, and those that it is a union of."""
    yield schema
    for member in schema.get("anyOf", ()):
        yield from _members(member)


def _kinds(schema: Schema) -> set[str]:
    """The types that a schema allows, as far as it names them."""
    found = [member.get("type", ()) for member in _members(schema)]
    return {one for kind in found for one in ((kind,) if isinstance(kind, str) else kind)}


def _bound(value: Any) -> JSON:
    """A bound as JSON writes it, None when it has no form there."""
    if isinstance(value, decimal.Decimal) and value == (exact := float(value)):
        value = int(exact) if exact.is_integer() else exact
    return value if type(value) in (int, float) and is_json(value) else None


_TESTS: tuple[tuple[str, str, Callable[[Any, Any], Any], str], ...] = (
    ("ge", "minimum", operator.ge, "of at least"),
    ("gt", "exclusiveMinimum", operator.gt, "above"),
    ("le", "maximum", operator.le, "of at most"),
    ("lt", "exclusiveMaximum", operator.lt, "below"),
    ("multiple_of", "multipleOf", lambda value, of: _multiple(value, of), "that is a multiple of"),
)


def _constraints(note: Any, schema: Schema, extra: Schema) -> Iterator[Check]:
    """Reads a description and bounds off an Annotated object of any library, or off a dict with such names or with the
    schema's own keywords. Gives what it demands of a value."""
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
    for attribute, keyword, test, words in _TESTS:
        limit = get(attribute)
        if limit is None or limit != limit:
            continue
        bound = _bound(limit)
        if bound is not None:
            extra[keyword] = bound
        known = bound is not None and bool(kinds - {"null"}) and kinds <= {"integer", "number", "null"}
        yield functools.partial(_against, test, limit, None), f"{words} {limit}", known
    # Texts may stand for values of another length.
    written = any({"contentEncoding", "format"} & member.keys() for member in _members(schema))
    sized = next((one for one in ("array", "object") if one in kinds), "string")
    known = kinds - {"null"} == {sized} and not written
    for attribute, test, words in (
        ("min_length", operator.ge, "of a length of at least"), ("max_length", operator.le, "of a length of at most"),
    ):
        limit = get(attribute)
        if type(limit) is not int:
            continue
        keyword = attribute[:3] + {"array": "Items", "object": "Properties", "string": "Length"}[sized]
        if sized != "string" or not written:
            extra[keyword] = limit
        elif any("contentEncoding" in member for member in _members(schema)):
            extra[keyword] = -(-limit // 3) * 4  # what so many bytes take as base64
        yield functools.partial(_against, test, limit, len), f"{words} {limit}", known
    pattern = get("pattern")
    if isinstance(pattern, (str, re.Pattern)) and "string" in kinds:
        extra["pattern"] = pattern if isinstance(pattern, str) else pattern.pattern
        yield lambda value: re.search(pattern, value) is not None, "that matches its pattern", True
    examples = get("examples")
    if isinstance(examples, (list, tuple)) and examples and is_json(list(examples)):
        extra["examples"] = list(examples)
    if _is(note, "annotated_types", "Predicate"):
        name = getattr(note.func, "__name__", "") or repr(note.func)
        yield note.func, f"for which {name} holds", False


def read(
    draft: Draft, inner: Shape, notes: Iterable[Any], annotation: Any, where: str
) -> tuple[Shape, Schema]:
    """(inner with what the notes say of the value, what they add to its schema).
    annotation is the whole, for pydantic."""
    extra: Schema = {}
    checks: list[Check] = []
    foreign: list[Any] = []
    for note in _flat(notes):
        if isinstance(note, str):
            extra.setdefault("description", note)
            continue
        found = list(_constraints(note, inner.schema, extra))
        if _foreign(note):
            foreign.append(note)
            continue
        checks += found
        if _is(note, "annotated_types", "Timezone", "Unit"):
            draft.warn(f"{where}: the constraint {_short(note)} is not checked")
    if draft.results:
        return inner, extra
    if foreign:
        asked: Load | None = None
        if any(map(_before, foreign)):
            whole = None
            with contextlib.suppress(Exception):
                whole = models.adapted(draft, annotation)
            if whole is not None:
                return whole, {key: one for key, one in extra.items() if key == "description"}
        else:
            asked = models.checker(annotation)
        if asked is not None:
            load, ask = inner.load, asked
            inner = inner.but(load=lambda value: ask(load(value)), same=False)
        else:
            for note in foreign:
                draft.warn(f"{where}: the constraint {_short(note)} is not checked")
    if checks:  # also those of the schema: which member of a union has a value depends on them
        loose = typing.get_origin(annotation.__origin__) in models.UNIONS or not _kinds(inner.schema)
        told = all(known for _, _, known in checks)
        inner = inner.but(load=_held(inner, checks, loose), same=inner.same and told)
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


# Attributes of a Field of pydantic 1 that only pydantic reads.
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


def _held(inner: Shape, checks: list[Check], loose: bool) -> Load:
    """The loader of inner, and then the checks on what it has made. With loose, and of what the schema says, a value
    that cannot be compared holds: of a union some members have such a bound."""
    load = inner.load

    def held(value: JSON) -> Any:
        made = load(value)
        for holds, words, known in checks:
            try:
                fits = bool(holds(made))
            except (TypeError, ValueError):
                fits = loose or known
            if not fits:
                raise Mismatch(f"{inner.expected} {words}", describe(value))
        return made

    return held


_WIDE = decimal.Context(prec=3000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)  # digits of any two numbers of JSON


def _multiple(value: Any, of: Any) -> bool:
    if not (isinstance(value, (int, float, decimal.Decimal)) and isinstance(of, (int, float, decimal.Decimal))):
        return not value % of
    # As they are written: 0.3 is three times 0.1.
    whole, step = (decimal.Decimal(str(one) if isinstance(one, float) else one) for one in (value, of))
    try:
        return not _WIDE.remainder(whole, step)
    except decimal.InvalidOperation:  # a text of a few characters may mean a billion digits
        return False


def _against(test: Callable[[Any, Any], Any], limit: Any, of: Callable[[Any], int] | None, value: Any) -> bool:
    return bool(test(of(value) if of else value, limit))
