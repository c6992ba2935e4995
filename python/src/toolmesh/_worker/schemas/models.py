"""Classes that describe and check themselves: models of pydantic, version 1 and 2, and whatever else pydantic can make
an adapter for.

Nothing here imports pydantic unless the index has: it is the index's own copy, of the index's own version.
"""

from __future__ import annotations

import copy
import inspect
import sys
import types
import typing

from .shapes import MADE, Shape
from .values import Mismatch, describe, encode, pointer

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..wire.frames import JSON
    from .draft import Draft
    from .shapes import Load, Schema

UNIONS = {typing.Union, getattr(types, "UnionType", typing.Union)}


def model(draft: Draft, base: Any) -> Shape:
    """The Shape of a BaseModel of pydantic 2."""
    mode = "serialization" if draft.results else "validation"
    return _shape(draft, base.model_json_schema(mode=mode), base.__name__, base.model_validate_json)


def adapted(draft: Draft, annotation: Any) -> Shape | None:
    """The Shape of a type that only pydantic 2 understands, such as HttpUrl; None when it does not either."""
    known = hasattr(annotation, "__get_pydantic_core_schema__")
    if not known or not hasattr(sys.modules.get("pydantic"), "TypeAdapter"):
        return None
    return _by_adapter(draft, annotation, getattr(annotation, "__name__", str(annotation)))


def _by_adapter(draft: Draft, annotation: Any, name: str) -> Shape:
    adapter = sys.modules["pydantic"].TypeAdapter(annotation)
    schema = adapter.json_schema(mode="serialization" if draft.results else "validation")
    return _shape(draft, schema, name, adapter.validate_json)


def annotated(draft: Draft, annotation: Any) -> Shape | None:
    """The Shape that pydantic, of either version, gives an annotation with notes
    of its own; None when it is not there or does not know the type."""
    if not hasattr(sys.modules.get("pydantic"), "TypeAdapter"):
        return old_adapted(draft, annotation)
    try:
        return _by_adapter(draft, annotation, _called(annotation))
    except Exception:
        return None


def checker(annotation: Any) -> Load | None:
    """What lets pydantic 2 have its say on a value that was made already."""
    pydantic = sys.modules.get("pydantic")
    try:
        adapter = pydantic.TypeAdapter(annotation)  # type: ignore[union-attr]  # caught below
    except Exception:
        return None
    name = _called(annotation)
    return lambda value: _validated(lambda: adapter.validate_python(value), value, name)


def _called(annotation: Any) -> str:
    return str(getattr(annotation, "__name__", None) or getattr(annotation.__origin__, "__name__", "value"))


def old_adapted(draft: Draft, annotation: Any) -> Shape | None:
    """The Shape of a type that only pydantic 1 understands, such as conint(ge=3); None when it does not either."""
    bases = getattr(annotation, "__mro__", ())
    home = next((one.__module__ for one in bases if one.__module__.startswith("pydantic.")), "pydantic.types")
    pydantic = sys.modules.get(home.rpartition(".")[0])
    if pydantic is None or hasattr(pydantic, "TypeAdapter"):
        return None
    name = getattr(annotation, "__name__", "value")
    try:
        plain, field = annotation, ...
        for note in getattr(annotation, "__metadata__", ()):
            if type(note).__name__ == "FieldInfo":  # with a default, it may not stand in Annotated
                plain, field = annotation.__origin__, copy.copy(note)
                field.default, field.default_factory = ..., None
        holder = pydantic.create_model(name, value=(plain, field))
        found = copy.deepcopy(holder.schema())
    except Exception:
        return None
    schema: Schema = found["properties"]["value"]
    schema.pop("title", None)
    schema["definitions"] = found.get("definitions", {})
    schema = _hoist(draft, _modern(schema), "definitions")

    def load(value: JSON) -> Any:
        return _validated(lambda: holder.parse_obj({"value": value}), value, name, "value").value

    return Shape(schema, name, load, texts=MADE if schema.get("type") == "string" else 0)


def _shape(draft: Draft, found: Schema, name: str, validate: Callable[[bytes], Any]) -> Shape:
    schema, kind = _hoist(draft, dict(found), "$defs"), found.get("type")

    def load(value: JSON) -> Any:
        # As JSON, so that strict models too take text for a date and an array for a set.
        return _validated(lambda: validate(encode(value)), value, name)

    return Shape(schema, f"object {name}" if kind == "object" else name, load, texts=MADE if kind == "string" else 0)


def old_model(draft: Draft, base: Any) -> Shape:
    """The Shape of a BaseModel of pydantic 1."""
    # A copy: pydantic hands out its own again.
    found = copy.deepcopy(base.schema())
    definitions = found.get("definitions", {})
    for name, inner in _old_models(base).items():
        if inner is base or name in definitions:
            _correct_old(found if inner is base and name not in definitions else definitions[name], inner)
    schema = _hoist(draft, _modern(found), "definitions")
    return Shape(schema, f"object {base.__name__}",
                 lambda value: _validated(lambda: base.parse_obj(value), value, base.__name__))


def _old_models(base: Any) -> dict[str, Any]:
    """All models that a model's schema speaks of, by their name there."""
    home = next((one.__module__ for one in base.__mro__ if one.__name__ == "BaseModel"), "pydantic.main")
    module = sys.modules.get(home.rpartition(".")[0] + ".schema")
    try:
        flat = module.get_flat_models_from_model(base)  # type: ignore[union-attr]  # caught below
        return {name: one for one, name in module.get_model_name_map(flat).items()}  # type: ignore[union-attr]
    except Exception:
        return {base.__name__: base}


def _correct_old(schema: Schema, base: Any) -> None:
    """Version 1 says nothing of the null that its optional fields take."""
    properties = schema.get("properties")
    for field in getattr(base, "__fields__", {}).values():
        name = getattr(field, "alias", None)
        if isinstance(properties, dict) and name in properties and getattr(field, "allow_none", False):
            found = dict(properties[name])
            kept = {key: found.pop(key) for key in ("title", "description", "default") if key in found}
            if found:
                properties[name] = {"anyOf": [found, {"type": "null"}], **kept}


def _modern(schema: JSON) -> JSON:
    """A schema of draft 7 in the words of 2020-12."""
    if isinstance(schema, list):
        return [_modern(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _modern(one) for key, one in schema.items()}
    if isinstance(made.get("items"), list):
        made["prefixItems"] = made.pop("items")
        made["items"] = made.pop("additionalItems", False if made.get("maxItems") == len(made["prefixItems"]) else {})
    return made


def _hoist(draft: Draft, schema: Schema, key: str) -> Schema:
    """schema with its definitions among the draft's."""
    rename: dict[str, str] = {}
    inner: dict[str, Schema] = schema.pop(key, None) or {}
    prefix = f"#/{key}/"
    for name, one in inner.items():
        target = name
        while target in draft.defs and draft.defs[target] != _rewrite(one, prefix, {}):
            target += "_"
        rename[name] = target
    for name, one in inner.items():
        draft.defs[rename[name]] = _rewrite(one, prefix, rename)
    made: Schema = _rewrite(schema, prefix, rename)
    return made


def _rewrite(schema: JSON, prefix: str, rename: dict[str, str]) -> JSON:
    """schema with its references below prefix, of discriminators too, pointing into $defs, renamed."""
    if isinstance(schema, str) and schema.startswith(prefix):
        name = schema[len(prefix):]
        return "#/$defs/" + rename.get(name, name)
    if isinstance(schema, dict):
        return {key: _rewrite(value, prefix, rename) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_rewrite(value, prefix, rename) for value in schema]
    return schema


def _validated(run: Callable[[], Any], value: JSON, name: str, holder: str = "__root__") -> Any:
    """run(), its refusal as a Mismatch that names the place."""
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
                    continue  # it names a member of a union, which has no place in the value
                got = "nothing"
            place += pointer("", step)
        text = str(first.get("msg") or "refused")
        # Input should be a valid URL, because ...
        expected = text.partition(" should ")[2].removeprefix("be ").partition(", ")[0] or text
        expected = "a value" if got == "nothing" else expected
        raise Mismatch(expected, got, f"{name}: {text}", place) from None


def field_default(value: Any) -> tuple[bool, Any]:
    """(is it pydantic's Field(...) in a default's place, the default in it, inspect's empty without one)."""
    kind = type(value)
    if kind.__name__ != "FieldInfo" or not kind.__module__.startswith("pydantic"):
        return False, value
    factory = getattr(value, "default_factory", None)
    if factory is not None:
        return True, factory()
    default = getattr(value, "default", ...)
    missing = default is ... or type(default).__name__ in ("PydanticUndefinedType", "UndefinedType")
    return True, inspect.Parameter.empty if missing else default


def alias(notes: Iterable[Any]) -> Any:
    """What a parameter is called by its callers, as its Field among these notes says; None where none does."""
    named = [getattr(one, "validation_alias", None) or getattr(one, "alias", None)
             for one in notes if field_default(one)[0]]
    return next((one for one in named if one is not None), None)


def filler(field: Any, default: Any) -> Callable[[], Any] | None:
    """What gives a parameter its default when Field(...) stands in its place."""
    if default is inspect.Parameter.empty:
        return None
    return getattr(field, "default_factory", None) or (lambda: default)
