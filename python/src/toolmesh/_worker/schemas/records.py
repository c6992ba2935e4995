"""Shapes of classes with named fields: TypedDict, dataclass, NamedTuple, and attrs classes.

Arguments have every field that can be given; results have every field that an instance has, so the two schemas of one
class differ.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections import abc
from typing import Any

from ..wire.frames import JSON
from .containers import places
from .docstring import parse as parse_docstring
from .draft import Draft, Namespace
from .shapes import UNRESOLVED, Dump, Schema, Shape, guard
from .values import Mismatch, describe, member, needed, pointer

_NONE: Any = inspect.Parameter.empty  # in place of a default


class _Record:
    """The collected fields of one class."""

    def __init__(self, draft: Draft, base: Any, where: str) -> None:
        self._draft = draft
        self._base = base
        self._where = where
        _, self._texts, _ = parse_docstring(inspect.getdoc(base) if base.__doc__ else "", attributes=True)
        # The class that annotates a field: its module has the names.
        self._owners = {name: owner for owner in reversed(base.__mro__) for name in _own_annotations(owner)}
        self._bindings = draft.bindings(base)
        self._fields: dict[str, Shape] = {}
        self._properties: dict[str, Schema] = {}
        self._required: list[str] = []
        self._attributes: dict[str, str] = {}  # of an instance, by the fields' names

    def shape(self, name: str, annotation: Any, owner: type[Any] | None = None) -> Shape:
        """The Shape of a field of this class or of a base class."""
        owner = owner or self._owners.get(name, self._base)
        draft, names = self._draft, self._draft.names_of(owner)
        return draft.field(annotation, f"{self._where}.{name}", names, self._bindings.get(owner, {}))

    def add(
        self, name: str, shape: Shape, required: bool, default: Any = _NONE, text: Any = None, attribute: str = ""
    ) -> None:
        """Adds a field, of an attribute of this or another name. text describes it, if it has a text besides the
        class's documentation."""
        extra: Schema = {}
        text = text if isinstance(text, str) else self._texts.get(name)
        if text and "description" not in shape.schema:
            extra["description"] = text
        if default is not _NONE and not self._draft.results:
            shape = self._draft.nullable_for(default, shape)
            self._draft.show(default, shape, extra, f"{self._where}.{name}")
        self._fields[name] = shape
        self._attributes[name] = attribute or name
        self._properties[name] = {**shape.schema, **extra} if extra else shape.schema
        if required:
            self._required.append(name)

    def done(self, plain: bool = False) -> Shape:
        """The Shape of a closed object with these fields. plain says that the value is a dict, not an instance."""
        base, fields, required, attributes = self._base, self._fields, self._required, self._attributes
        title = base.__name__
        schema: Schema = {"type": "object", "properties": self._properties}
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False

        def load(value: JSON) -> Any:
            if type(value) is not dict:
                raise Mismatch(f"object {title}", describe(value))
            for name in required:
                if name not in value:
                    raise needed(name, fields[name].expected)
            made: dict[str, Any] = {}
            for name, one in value.items():
                if name not in fields:
                    raise Mismatch("no such field", describe(one), f"{title} has no field {name}", pointer("", name))
                made[name] = member(fields[name].load, one, name)
            return made if plain else base(**made)

        dump: Dump | None = None
        dumps = {name: shape.dump for name, shape in fields.items() if shape.dump is not None}
        if dumps:

            def dump(value: Any) -> Any:
                if not isinstance(value, abc.Mapping if plain else base):
                    return value
                own = value if plain else {name: getattr(value, of) for name, of in attributes.items()}
                return {name: dumps[name](one) if name in dumps else one for name, one in own.items()}

        same = plain and all(shape.same for shape in fields.values())
        return Shape(schema, f"object {title}", load if plain else guard(load, base), dump, same=same)


def typed_dict(draft: Draft, base: Any, where: str) -> Shape:
    """The Shape of a TypedDict of this module or of typing_extensions."""
    record, bindings = _Record(draft, base, where), draft.bindings(base)
    annotations: dict[str, tuple[Any, Namespace, Namespace]] = {}
    for parent in (one for one in reversed(bindings) if type(one) is type(base)):
        namespace, bound = draft.names_of(parent), bindings.get(parent, {})
        for name, annotation in _own_annotations(parent, inherit=True).items():
            if annotations.get(name, (None,))[0] is not annotation:
                annotations[name] = annotation, namespace, bound
    keys = getattr(base, "__required_keys__", None)
    for name, (annotation, namespace, bound) in annotations.items():
        resolved = draft.resolve(annotation, namespace, f"{where}.{name}")
        marker = getattr(typing.get_origin(resolved), "_name", None)
        inner = resolved
        while marker == "ReadOnly" or hasattr(inner, "__metadata__"):
            inner = typing.get_args(inner)[0]
            marker = getattr(typing.get_origin(inner), "_name", None)
        # __required_keys__ ignores text annotations.
        needed = name in keys if keys is not None else getattr(base, "__total__", True)
        needed = marker == "Required" if marker in ("Required", "NotRequired") else needed
        shape = draft.anything()
        if resolved is not UNRESOLVED:
            shape = draft.field(resolved, f"{where}.{name}", namespace, bound)
        record.add(name, shape, needed)
    return record.done(plain=True)


def data_class(draft: Draft, base: Any, where: str) -> Shape:
    record = _Record(draft, base, where)
    owner = next(one for one in base.__mro__ if "__init__" in vars(one))
    if not draft.results and not _made_by_dataclass(owner, base):
        _parameters_of(owner, draft, record, where)
        return record.done()
    for field in base.__dataclass_fields__.values():
        kind = getattr(field._field_type, "name", "_FIELD")
        if kind == "_FIELD_CLASSVAR" or (kind == "_FIELD_INITVAR" if draft.results else not field.init):
            continue
        default = field.default
        if default is dataclasses.MISSING:
            usual = field.default_factory in (list, dict, set, tuple, frozenset)
            default = field.default_factory() if usual else _NONE
        given = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        record.add(field.name, record.shape(field.name, field.type), given or draft.results, default,
                   field.metadata.get("description"))
    return record.done()


def _made_by_dataclass(owner: Any, base: Any) -> bool:
    """Whether the fields of a dataclass are the arguments of its __init__, which owner defines."""
    written = getattr(inspect.unwrap(vars(owner)["__init__"]), "__code__", None)
    # A function made by dataclasses has no file.
    own = written is not None and written.co_filename == "<string>"
    return hasattr(base, "__pydantic_validator__") or own and (
        getattr(owner, "__dataclass_fields__", None) is base.__dataclass_fields__
    )


def _parameters_of(owner: Any, draft: Draft, record: _Record, where: str) -> None:
    """The fields of a dataclass with its author's own __init__."""
    init = inspect.unwrap(vars(owner)["__init__"])
    for one in list(inspect.signature(init).parameters.values())[1:] if hasattr(init, "__code__") else ():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            if one.default is one.empty:
                draft.warn(f"{where}: {one} of {owner.__name__}.__init__ cannot be given")
        else:
            record.add(one.name, record.shape(one.name, one.annotation, owner), one.default is one.empty, one.default)


def attrs_class(draft: Draft, base: Any, where: str) -> Shape:
    record = _Record(draft, base, where)
    for field in base.__attrs_attrs__:
        if not (field.init or draft.results):
            continue
        name = field.name if draft.results else getattr(field, "alias", None) or field.name.lstrip("_")
        shape = record.shape(field.name, field.type if field.type is not None else typing.Any)
        given = type(field.default).__name__ in ("NothingType", "_Nothing")
        default = _NONE if given or hasattr(field.default, "factory") else field.default
        record.add(name, shape, given or draft.results, default, field.metadata.get("description"), field.name)
    return record.done()


def named_tuple(draft: Draft, base: Any, where: str) -> Shape:
    """The Shape of a NamedTuple: an array with a title per position."""
    record = _Record(draft, base, where)
    annotations = {name: one for owner in reversed(base.__mro__) for name, one in _own_annotations(owner).items()}
    items = []
    for name in base._fields:
        shape = record.shape(name, annotations.get(name, typing.Any))
        items.append(shape.but(schema={"title": name, **shape.schema}))
    optional = 0 if draft.results else len(getattr(base, "_field_defaults", {}))
    made = places(items, least=len(items) - optional, make=lambda values: base(*values))
    return made.but(load=guard(made.load, base))


def _own_annotations(base: Any, inherit: bool = False) -> dict[str, Any]:
    """The class's own annotations, with unresolved names. Those of a TypedDict include its parents'."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return dict(annotationlib.get_annotations(base, format=annotationlib.Format.FORWARDREF))
    return dict(base.__dict__.get("__annotations__") or inherit and getattr(base, "__annotations__", None) or {})
