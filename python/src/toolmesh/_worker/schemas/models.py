"""Classes with their own schema and validation: models of pydantic 1 and 2, and other types that pydantic can adapt.

Nothing here imports pydantic unless the index has: it uses the index's own copy and version.
"""

from __future__ import annotations

import copy
import decimal
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ..wire.frames import JSON
from .draft import Draft
from .shapes import Load, Schema, Shape, is_json, no_text, sure
from .values import Mismatch, describe, encode, member, pointer, sent

UNIONS = {typing.Union, getattr(types, "UnionType", typing.Union)}
_DEFS = "#/$defs/"
_OLD_REFERENCE = re.compile("^#/definitions/")


def model(draft: Draft, base: Any) -> Shape:
    return _shape(draft, lambda: base.model_json_schema(mode=_mode(draft)), "$defs",
                  base.__name__, base, _by_json(base.model_validate_json))


def adapted(draft: Draft, annotation: Any) -> Shape | None:
    """The Shape that pydantic, of either version, gives a type of its own or an annotation with its notes; None if it
    is not loaded. It raises what version 2 says of types that it does not know."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not hasattr(pydantic, "TypeAdapter"):
        return old_adapted(draft, annotation)
    adapter = pydantic.TypeAdapter(annotation)
    return _shape(draft, lambda: adapter.json_schema(mode=_mode(draft)), "$defs",
                  _called(annotation), annotation, _by_json(adapter.validate_json))


def _mode(draft: Draft) -> str:
    return "serialization" if draft.results else "validation"


def checker(annotation: Any) -> Load | None:
    """A function that validates an existing value with pydantic 2."""
    pydantic = sys.modules.get("pydantic")
    try:
        adapter = pydantic.TypeAdapter(annotation)  # type: ignore[union-attr]  # caught below
    except Exception:
        return None
    name = _called(annotation)
    return lambda value: _validated(lambda: adapter.validate_python(value), value, name)


def _called(annotation: Any) -> str:
    origin = getattr(annotation, "__origin__", None)
    return str(getattr(annotation, "__name__", None) or getattr(origin, "__name__", "value"))


def old_adapted(draft: Draft, annotation: Any) -> Shape | None:
    """The Shape of a type that only pydantic 1 knows, such as conint(ge=3); None if it does not."""
    bases = getattr(annotation, "__mro__", ())
    home = next((one.__module__ for one in bases if one.__module__.startswith("pydantic.")), "pydantic.types")
    pydantic = sys.modules.get(home.rpartition(".")[0])
    if pydantic is None or hasattr(pydantic, "TypeAdapter"):
        return None
    name = getattr(annotation, "__name__", "value")
    try:
        plain, field = annotation, ...
        for note in getattr(annotation, "__metadata__", ()):
            if type(note).__name__ == "FieldInfo":  # with a default, which Annotated refuses
                plain, field = annotation.__origin__, copy.copy(note)
                field.default, field.default_factory = ..., None
        holder = pydantic.create_model(name, value=(plain, field))

        def describe() -> Schema:
            found = _modern(holder.schema())
            schema: Schema = {key: one for key, one in found["properties"]["value"].items() if key != "title"}
            return {**schema, "definitions": found.get("definitions", {})}

        return _shape(draft, describe, "definitions", name, annotation,
                      lambda value: holder.parse_obj({"value": _whole(value)}).value, "value")
    except Exception:
        return None


def _shape(
    draft: Draft, describe: Callable[[], Schema], key: str, name: str, annotation: Any, make: Load,
    holder: str = "__root__",
) -> Shape:
    """The Shape of a class that describes itself, with definitions below key. make builds the value."""
    schema = dict(describe())
    own = {one: _json(draft, one, inner) for one, inner in (schema.pop(key, None) or {}).items()}
    more, defs = "", own
    while any(draft.defs.get(one, inner) != inner for one, inner in defs.items()):
        more += "_"  # another class of the same name has its definition already
        defs = {one + more: _renamed(inner, own, more) for one, inner in own.items()}
    draft.defs.update(defs)
    schema = _renamed(schema, own, more) if more else schema
    kind, as_sent = schema.get("type"), _decimals(draft, annotation)

    def load(value: JSON) -> Any:
        if kind == "string":
            no_text(value, name)
        return _validated(lambda: make(as_sent(value)), value, name, holder)

    return Shape(schema, f"object {name}" if kind == "object" else name, load)


def _renamed(schema: JSON, names: Collection[str], more: str) -> Any:
    """A copy of a schema in which more follows the names of these definitions, also in references of an author."""
    if isinstance(schema, dict):
        return {key: _renamed(one, names, more) for key, one in schema.items()}
    if isinstance(schema, list):
        return [_renamed(one, names, more) for one in schema]
    if not isinstance(schema, str) or not schema.startswith(_DEFS):
        return schema
    name, slash, rest = schema.removeprefix(_DEFS).partition("/")
    return f"{_DEFS}{name}{more}{slash}{rest}" if name in names else schema


def _json(draft: Draft, name: str, schema: Schema) -> Schema:
    """A definition, open if JSON has no form of it."""
    if is_json(schema):
        return schema
    draft.warn(f"the schema of {name} is not JSON; anything is accepted")
    return {}


def _by_json(validate: Callable[[bytes], Any]) -> Load:
    """Builds a value from JSON, so that strict models accept text for a date and an array for a set, too."""

    def make(value: JSON) -> Any:
        body = encode(value)
        return validate(encode(_whole(value)) if _LARGE.search(body) else body)

    return make


def old_model(draft: Draft, base: Any) -> Shape:
    def describe() -> Schema:
        found: Schema = _modern(base.schema())
        definitions = found.get("definitions", {})
        for name, inner in _old_models(base).items():
            if inner is base or name in definitions:
                _correct_old(found if inner is base and name not in definitions else definitions[name], inner)
        return found

    return _shape(draft, describe, "definitions", base.__name__, base, lambda value: base.parse_obj(_whole(value)))


def _old_models(base: Any) -> dict[str, Any]:
    """All models in a model's schema, by their names there."""
    home = next((one.__module__ for one in base.__mro__ if one.__name__ == "BaseModel"), "pydantic.main")
    module = sys.modules.get(home.rpartition(".")[0] + ".schema")
    try:
        flat = module.get_flat_models_from_model(base)  # type: ignore[union-attr]  # caught below
        return {name: one for one, name in module.get_model_name_map(flat).items()}  # type: ignore[union-attr]
    except Exception:
        return {base.__name__: base}


def _correct_old(schema: Schema, base: Any) -> None:
    """Adds null for optional fields, which version 1 accepts without saying so."""
    properties = schema.get("properties")
    for field in getattr(base, "__fields__", {}).values():
        name = getattr(field, "alias", None)
        if isinstance(properties, dict) and name in properties and getattr(field, "allow_none", False):
            found = dict(properties[name])
            kept = {key: found.pop(key) for key in ("title", "description", "default") if key in found}
            if found:
                properties[name] = {"anyOf": [found, {"type": "null"}], **kept}


def _modern(schema: JSON) -> JSON:
    """A copy of a schema of draft 7, in the keywords of 2020-12: pydantic keeps its own, and returns it again."""
    if isinstance(schema, list):
        return [_modern(one) for one in schema]
    if isinstance(schema, str):
        return _OLD_REFERENCE.sub(_DEFS, schema)
    if not isinstance(schema, dict):
        return schema
    made = {key: _modern(one) for key, one in schema.items()}
    if isinstance(made.get("items"), list):
        made["prefixItems"] = made.pop("items")
        made["items"] = made.pop("additionalItems", False if made.get("maxItems") == len(made["prefixItems"]) else {})
    return made


def _decimals(draft: Draft, annotation: Any) -> Callable[[JSON], JSON]:
    """A function that replaces numbers for Decimals in a model by their texts: pydantic makes Decimals of JSON's
    numbers through floats."""
    if draft.results or not _has_decimal(annotation, set()):
        return lambda value: value
    draft.exact = True
    return lambda value: _as_sent(annotation, value)


def _parts(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """(origin, arguments) of an annotation, without notes and None."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if hasattr(annotation, "__metadata__") and origin is not None:
        return _parts(annotation.__origin__)
    if origin in UNIONS:
        members = [one for one in args if one is not type(None)]
        # With several types, a text might become another one than the number would.
        return _parts(members[0]) if len(members) == 1 else (None, ())
    return (annotation, ()) if origin is None else (origin, args)


def _named_fields(base: Any) -> dict[str, Any]:
    """The annotations of a model's fields, by all their names."""
    found: dict[str, Any] = {}
    fields = getattr(base, "__pydantic_fields__", None) or getattr(base, "__fields__", None)
    for name, field in (fields if isinstance(fields, dict) else {}).items():
        annotation = getattr(field, "annotation", None) if hasattr(field, "validation_alias") else field.outer_type_
        for known in (name, getattr(field, "validation_alias", None), getattr(field, "alias", None)):
            if isinstance(known, str):
                found[known] = annotation
    return found


def _has_decimal(annotation: Any, seen: set[Any]) -> bool:
    base, args = _parts(annotation)
    if not isinstance(base, type) or base in seen and not args:
        return False
    if not args:
        seen.add(base)
    if issubclass(base, decimal.Decimal):
        return True
    return any(_has_decimal(one, seen) for one in (*args, *_named_fields(base).values()))


def _as_sent(annotation: Any, value: JSON) -> JSON:
    """value with texts for the numbers of Decimals, where the types are unambiguous."""
    base, args = _parts(annotation)
    kind = type(value)
    if not isinstance(base, type):
        return value
    if kind is float:
        return sent(value) or value if issubclass(base, decimal.Decimal) else value
    if kind is list and args:
        if issubclass(base, tuple) and args[-1] is not Ellipsis:
            return [_as_sent(one, item) for one, item in zip(args, value, strict=False)] + value[len(args):]
        return [_as_sent(args[0], item) for item in value]
    if kind is dict:
        if len(args) == 2:
            return {key: _as_sent(args[1], item) for key, item in value.items()}
        fields = _named_fields(base)
        return {key: _as_sent(fields.get(key), item) for key, item in value.items()}
    return value


_LARGE = re.compile(rb"\d{16}\.0|e\+")  # in JSON with a float of 2^53 or more, and rarely in other


def _whole(value: JSON) -> JSON:
    """value with the integers that were sent, where pydantic would make another integer of a float."""
    kind = type(value)
    if kind is list:
        return [member(_whole, one, index) for index, one in enumerate(value)]
    if kind is dict:
        return {key: member(_whole, one, key) for key, one in value.items()}
    if kind is not float or not value.is_integer() or sure(value) is not None:
        return value
    text = sent(value)
    if text is None:
        raise Mismatch("a number that a double can hold", describe(value))
    number = decimal.Decimal(text)
    return int(number) if number == number.to_integral_value() else value


def _validated(run: Callable[[], Any], value: JSON, name: str, holder: str = "__root__") -> Any:
    """run(), with its refusal as a Mismatch that names the place."""
    try:
        return run()
    except Exception as failure:
        problems = failure.errors() if hasattr(failure, "errors") else []
        if not problems:
            raise
        first = problems[0]
        steps = [one for one in first.get("loc", ()) if one != "__root__"]
        steps = steps[1:] if steps[:1] == [holder] else steps
        place, got = "", describe(value)
        for index, step in enumerate(steps):
            try:
                value = value[step]
                got = describe(value)
            except (KeyError, IndexError, TypeError):
                if index + 1 < len(steps) or type(value) is not dict or not str(first.get("type")).endswith("missing"):
                    continue  # the name of a union's member, not of a place in the value
                got = "nothing"
            place += pointer("", step)
        text = str(first.get("msg") or "refused")
        # Input should be a valid URL, because ...
        expected = text.partition(" should ")[2].removeprefix("be ").partition(", ")[0] or text
        expected = "a value" if got == "nothing" else expected
        raise Mismatch(expected, got, f"{name}: {text}", place) from None


def field_default(value: Any) -> tuple[bool, Any, Callable[[], Any] | None]:
    """(whether the default is pydantic's Field(...), the default in it, inspect's empty without one, a function that
    returns it)."""
    kind = type(value)
    if kind.__name__ != "FieldInfo" or not kind.__module__.startswith("pydantic"):
        return False, value, None
    factory = getattr(value, "default_factory", None)
    if factory is not None:
        return True, factory(), factory
    default = getattr(value, "default", ...)
    if default is ... or type(default).__name__ in ("PydanticUndefinedType", "UndefinedType"):
        return True, inspect.Parameter.empty, None
    return True, default, lambda: default


def alias(notes: Iterable[Any]) -> Any:
    """The alias of a parameter in a Field among these notes; None without one."""
    named = [getattr(one, "validation_alias", None) or getattr(one, "alias", None)
             for one in notes if field_default(one)[0]]
    return next((one for one in named if one is not None), None)
