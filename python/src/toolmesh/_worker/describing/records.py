"""Shapes of classes that are named fields: TypedDict, dataclass, NamedTuple,
and attrs classes.

Arguments have every field that can be given; results have every field that an
instance has, so the two schemas of one class differ.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections import abc

from .docstring import parse as parse_docstring
from .shapes import UNRESOLVED, Shape, dump_only, guard, inside
from .values import Mismatch, describe, pointer

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    from ..wire.frames import JSON
    from .draft import Draft, Namespace
    from .shapes import Dump, Fits, Load, Schema

    Field: TypeAlias = tuple[str, Shape, bool, Schema]  # name, shape, required, what its schema has on top


def _fields(
    fields: list[Field],
    title: str,
    make: Callable[[dict[str, Any]], Any],
    read: Callable[[Any], Iterable[tuple[str, Any]]],
) -> tuple[Schema, Fits, Load, Dump | None]:
    """An object with named fields, closed. make builds the Python value of a
    dict; read gives the fields of one."""
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for name, shape, needed, extra in fields:
        properties[name] = {**shape.schema, **extra} if extra else shape.schema
        if needed:
            required.append(name)
    schema: Schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if not required:
        del schema["required"]
    known = {name: shape for name, shape, _, _ in fields}
    least = frozenset(required)

    def fits(value: JSON) -> bool:
        return (
            type(value) is dict
            and least <= value.keys() <= known.keys()
            and all(known[name].fits(one) for name, one in value.items())
        )

    def load(value: JSON, at: str) -> Any:
        if type(value) is not dict:
            raise Mismatch(at, f"object {title}", describe(value))
        for name in required:
            if name not in value:
                raise Mismatch(pointer(at, name), known[name].expected, "nothing", f"{name} is required")
        made: dict[str, Any] = {}
        for name, one in value.items():
            shape = known.get(name)
            if shape is None:
                raise Mismatch(pointer(at, name), "no such field", describe(one), f"{title} has no field {name}")
            made[name] = shape.load(one, pointer(at, name)) if shape.load else one
        return make(made)

    dump: Dump | None = None
    if any(shape.dump for shape in known.values()):

        def dump(value: Any, path: str) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for name, one in read(value):
                shape = known.get(name)
                found[name] = shape.dump(one, path) if shape is not None and shape.dump else one
            return found

    return schema, fits, load, dump


def _inside(fields: list[Field]) -> int:
    return inside(*[shape for _, shape, _, _ in fields])


def typed_dict(draft: Draft, base: Any, where: str) -> Shape:
    """The Shape of a TypedDict, of this module's or of typing_extensions'."""
    texts = _texts(base)
    bindings = draft.bindings(base)
    annotations: dict[str, tuple[Any, Namespace, Namespace]] = {}
    for parent in reversed(_typed_dict_parents(base)):
        namespace, bound = draft.names_of(parent), bindings.get(parent, {})
        for name, annotation in _own_annotations(parent, inherit=True).items():
            if annotations.get(name, (None,))[0] is not annotation:
                annotations[name] = annotation, namespace, bound
    keys = getattr(base, "__required_keys__", None)
    fields: list[Field] = []
    for name, (annotation, namespace, bound) in annotations.items():
        resolved = draft.resolve(annotation, namespace, f"{where}.{name}")
        marker = getattr(typing.get_origin(resolved), "_name", None)
        inner = resolved
        while marker in ("ReadOnly",) or hasattr(inner, "__metadata__"):
            inner = typing.get_args(inner)[0]
            marker = getattr(typing.get_origin(inner), "_name", None)
        if marker == "Required":
            needed = True
        elif marker == "NotRequired":
            needed = False
        else:
            # __required_keys__ misses what a text annotation says, hence the two above.
            needed = name in keys if keys is not None else getattr(base, "__total__", True)
        shape = draft.anything()
        if resolved is not UNRESOLVED:
            shape = draft.field(resolved, f"{where}.{name}", namespace, bound)
        extra = {"description": texts[name]} if name in texts and "description" not in shape.schema else {}
        fields.append((name, shape, needed, extra))
    schema, fits, load, dump = _fields(
        fields, base.__name__, lambda made: made,
        lambda value: value.items() if isinstance(value, abc.Mapping) else (),
    )
    needs = any(shape.load for _, shape, _, _ in fields)
    return Shape(schema, f"object {base.__name__}", fits, load if needs else None, dump_only(abc.Mapping, dump),
                 texts=_inside(fields))


def data_class(draft: Draft, base: Any, where: str) -> Shape:
    """The Shape of a dataclass."""
    if not draft.results:
        made = _own_init(draft, base, where)
        if made is not None:
            return made
    texts = _texts(base)
    owners, bindings = _owners(base), draft.bindings(base)
    fields: list[Field] = []
    names: list[str] = []
    for field in base.__dataclass_fields__.values():
        kind = getattr(field._field_type, "name", "_FIELD")
        if kind == "_FIELD_CLASSVAR":
            continue
        if kind == "_FIELD":
            names.append(field.name)
        if kind == "_FIELD_INITVAR" if draft.results else not field.init:
            continue
        owner = owners.get(field.name, base)
        place = f"{where}.{field.name}"
        shape = draft.field(field.type, place, draft.names_of(owner), bindings.get(owner, {}))
        given = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        extra: Schema = {}
        text = field.metadata.get("description") if field.metadata else None
        text = text if isinstance(text, str) else texts.get(field.name)
        if text and "description" not in shape.schema:
            extra["description"] = text
        if not draft.results:
            if field.default is not dataclasses.MISSING:
                shape = draft.nullable_for(field.default, shape)
                draft.show(field.default, shape, extra, place)
            elif field.default_factory in (list, dict, set, tuple, frozenset):
                draft.show(field.default_factory(), shape, extra, place)
        fields.append((field.name, shape, given or draft.results, extra))
    schema, fits, load, dump = _fields(
        fields, base.__name__, lambda made: base(**made),
        lambda value: [(name, getattr(value, name)) for name in names],
    )
    return Shape(schema, f"object {base.__name__}", fits, guard(load, base), dump_only(base, dump),
                 texts=_inside(fields))


def _own_init(draft: Draft, base: Any, where: str) -> Shape | None:
    """The Shape of a dataclass that is not made by its fields, but by an __init__
    of its author's; None of one whose fields are the arguments."""
    owner = next(one for one in base.__mro__ if "__init__" in vars(one))
    init = inspect.unwrap(vars(owner)["__init__"])
    written = getattr(init, "__code__", None)
    if hasattr(base, "__pydantic_validator__"):
        return None
    # What dataclasses has made has no file.
    if written is not None and written.co_filename == "<string>":
        if getattr(owner, "__dataclass_fields__", None) is base.__dataclass_fields__:
            return None
    texts, bindings = _texts(base), draft.bindings(base)
    parameters = list(inspect.signature(init).parameters.values())[1:] if written is not None else []
    fields: list[Field] = []
    for one in parameters:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            if one.default is one.empty:
                draft.warn(f"{where}: {one} of {base.__name__}.__init__ cannot be given")
            continue
        place = f"{where}.{one.name}"
        extra: Schema = {}
        shape = draft.field(one.annotation, place, draft.names_of(owner), bindings.get(owner, {}))
        if one.name in texts and "description" not in shape.schema:
            extra["description"] = texts[one.name]
        if one.default is not one.empty:
            shape = draft.nullable_for(one.default, shape)
            draft.show(one.default, shape, extra, place)
        fields.append((one.name, shape, one.default is one.empty, extra))
    schema, fits, load, _ = _fields(fields, base.__name__, lambda made: base(**made), lambda value: ())
    return Shape(schema, f"object {base.__name__}", fits, guard(load, base), texts=_inside(fields))


def attrs_class(draft: Draft, base: Any, where: str) -> Shape:
    """The Shape of a class that the attrs library made."""
    texts = _texts(base)
    owners, bindings = _owners(base), draft.bindings(base)
    fields: list[Field] = []
    real: dict[str, str] = {}  # the name as an argument -> the attribute's
    for field in base.__attrs_attrs__:
        if not (field.init or draft.results):
            continue
        name = field.name if draft.results else getattr(field, "alias", None) or field.name.lstrip("_")
        annotation = field.type if field.type is not None else typing.Any
        owner = owners.get(field.name, base)
        shape = draft.field(annotation, f"{where}.{name}", draft.names_of(owner), bindings.get(owner, {}))
        given = type(field.default).__name__ in ("NothingType", "_Nothing")
        extra: Schema = {}
        text = field.metadata.get("description") if field.metadata else None
        text = text if isinstance(text, str) else texts.get(name)
        if text and "description" not in shape.schema:
            extra["description"] = text
        if not draft.results and not given and not hasattr(field.default, "factory"):
            shape = draft.nullable_for(field.default, shape)
            draft.show(field.default, shape, extra, f"{where}.{field.name}")
        fields.append((name, shape, given or draft.results, extra))
        real[name] = field.name
    schema, fits, load, dump = _fields(
        fields, base.__name__, lambda made: base(**made),
        lambda value: [(name, getattr(value, attribute)) for name, attribute in real.items()],
    )
    return Shape(schema, f"object {base.__name__}", fits, guard(load, base), dump_only(base, dump),
                 texts=_inside(fields))


def named_tuple(draft: Draft, base: Any, where: str) -> Shape:
    """The Shape of a NamedTuple: an array with a title per place."""
    owners, bindings = _owners(base), draft.bindings(base)
    annotations = {name: one for owner in reversed(base.__mro__) for name, one in _own_annotations(owner).items()}
    items = []
    for name in base._fields:
        owner = owners.get(name, base)
        annotation = annotations.get(name, typing.Any)
        shape = draft.field(annotation, f"{where}.{name}", draft.names_of(owner), bindings.get(owner, {}))
        items.append(shape.but(schema={"title": name, **shape.schema}))
    least = len(base._fields) - len(getattr(base, "_field_defaults", {}))
    if draft.results:
        least = len(base._fields)
    shape = positions(items, least, lambda values: base(*values))
    assert shape.load is not None
    shape.load = guard(shape.load, base)
    return shape


def placed(item: Shape, value: JSON, at: str) -> Any:
    """A value of an array with a Shape for each place. Its schema may not have
    told what belongs there, so what is not converted is checked."""
    made = item.load(value, at) if item.load is not None else value
    if not item.fits(value):
        raise Mismatch(at, item.expected, describe(value))
    return made


def positions(items: list[Shape], least: int, make: Callable[[Iterable[Any]], tuple[Any, ...]]) -> Shape:
    """The Shape of an array with a Shape for each place, of which the first least must be there."""
    schema: Schema = {
        "type": "array",
        "prefixItems": [item.schema for item in items],
        "items": False,
        "minItems": least,
        "maxItems": len(items),
    }
    if not items:
        schema = {"type": "array", "maxItems": 0}
    words = f"array of {len(items)} items" if least == len(items) else f"array of {least} to {len(items)} items"

    def fits(value: JSON) -> bool:
        return (
            type(value) is list
            and least <= len(value) <= len(items)
            and all(item.fits(one) for item, one in zip(items, value, strict=False))
        )

    def load(value: JSON, at: str) -> Any:
        if type(value) is not list or not least <= len(value) <= len(items):
            got = describe(value) if type(value) is not list else f"array of {len(value)} items"
            raise Mismatch(at, words, got)
        return make([
            placed(item, one, f"{at}/{index}")
            for index, (item, one) in enumerate(zip(items, value, strict=False))
        ])

    dump: Dump | None = None
    if any(item.dump for item in items):

        def dump(value: Any, path: str) -> Any:
            if isinstance(value, (list, tuple)) and len(value) <= len(items):
                pairs = zip(items, value, strict=False)
                return [item.dump(one, path) if item.dump else one for item, one in pairs]
            return value

    return Shape(schema, words, fits, load, dump, texts=inside(*items))


def _texts(base: Any) -> dict[str, str]:
    _, texts = parse_docstring(inspect.getdoc(base) if base.__doc__ else "", attributes=True)
    return texts


def _typed_dict_parents(base: type[Any]) -> list[type[Any]]:
    found = [base]
    for parent in getattr(base, "__orig_bases__", ()):
        parent = typing.get_origin(parent) or parent
        if isinstance(parent, type) and type(parent) is type(base):
            found.extend(_typed_dict_parents(parent))
    return found


def _own_annotations(base: Any, inherit: bool = False) -> dict[str, Any]:
    """The class's own annotations, unresolved names left as they are. A
    TypedDict's own are those of its parents too."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return dict(annotationlib.get_annotations(base, format=annotationlib.Format.FORWARDREF))
    return dict(base.__dict__.get("__annotations__") or inherit and getattr(base, "__annotations__", None) or {})


def _owners(base: type[Any]) -> dict[str, type[Any]]:
    """The class that annotates a field: names are looked up in its module."""
    return {name: owner for owner in reversed(base.__mro__) for name in _own_annotations(owner)}
