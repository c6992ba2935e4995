"""The state of one tool while its schemas are made: its names, its warnings, its $defs, and the values of type
variables. The modules for kinds of annotations describe inner types through it."""

from __future__ import annotations

import enum
import json
import sys
import typing
from collections.abc import Sequence
from typing import Any, TypeAlias

from . import redaction
from .shapes import ANY, SIMPLE, UNRESOLVED, Schema, Shape, either
from .values import Mismatch, encode

Namespace: TypeAlias = dict[str, Any]


class Draft:
    """A tool's schemas in the making."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.warnings: list[str] = []
        self.results = False  # whether the described value is a result, not an argument
        self.exact = False  # whether the described type contains a Decimal
        self.defs: dict[str, Schema] = {}
        self._bound: dict[Any, Any] = {}  # type variable -> its type at this point

    def shape(self, annotation: Any, where: str, namespace: Namespace | None = None) -> Shape:
        """The Shape of an annotation. where is the place for warnings."""
        raise NotImplementedError

    def names_of(self, base: type[Any]) -> Namespace:
        """The names that annotations of a class may use."""
        module = sys.modules.get(base.__module__)
        names = {**self.namespace, **(vars(module) if module is not None else {})}
        names.setdefault(base.__name__, base)
        for parameter in getattr(base, "__type_params__", ()):
            names.setdefault(parameter.__name__, parameter)
        return names

    def nullable_for(self, default: Any, shape: Shape) -> Shape:
        """shape, but null is allowed, too, if it is the default: `x: int = None`."""
        return either([shape, SIMPLE[type(None)]()]) if default is None and not shape.takes(None) else shape

    def show(self, default: Any, shape: Shape, extra: Schema, where: str) -> None:
        """Adds a default to the schema of a parameter or a field, if JSON can represent it unchanged."""
        try:
            if isinstance(default, enum.Enum) and "enum" in shape.schema:
                default = default.value if default.value in shape.schema["enum"] else default.name
            elif shape.dump is not None:
                default = shape.dump(default)
            shown = json.loads(encode(default))
            shape.load(shown)
        except Mismatch:
            self.warn(f"{where}: its default is not what its annotation takes, and is not shown")
        except Exception:
            pass  # JSON has no form of it
        else:
            if len(str(shown)) <= 2000 and redaction.tree(shown) == shown:
                extra["default"] = shown

    def warn(self, text: str) -> None:
        """Adds a warning for people about this tool, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def resolve(self, annotation: Any, namespace: Namespace, where: str) -> Any:
        """Evaluates a text annotation; UNRESOLVED if a name is missing."""
        if isinstance(annotation, typing.ForwardRef):
            module = getattr(annotation, "__forward_module__", None)
            if module is not None:
                module = sys.modules.get(module) if isinstance(module, str) else module
                namespace = {**namespace, **getattr(module, "__dict__", {})}
            annotation = annotation.__forward_arg__
        if not isinstance(annotation, str):
            return annotation
        try:
            found = eval(annotation, dict(namespace))
            return self.resolve(found, namespace, where) if isinstance(found, str) else found
        except Exception as failure:
            self.warn(f"{where}: the annotation {annotation!r} cannot be resolved ({failure}); anything is accepted")
            return UNRESOLVED

    @staticmethod
    def anything() -> Shape:
        """The Shape of an unknown type."""
        return Shape({}, "anything", lambda value: value, same=True, order=ANY)

    def substitute(self, annotation: Any, bound: Namespace | None = None) -> Any:
        """annotation with its type variables replaced."""
        bound = self._bound if bound is None else bound
        if not hashable(annotation):
            return annotation
        if annotation in bound:
            return bound[annotation]
        if typing.get_origin(annotation) is not None:
            free = getattr(annotation, "__parameters__", ())
            if any(one in bound for one in free):
                return annotation[tuple(bound.get(one, one) for one in free)]
        return annotation

    def given(self, parameters: Sequence[Any], args: Sequence[Any]) -> Namespace:
        """The types of type variables for args: the last ones may have defaults, which may use those before them."""
        if len(args) != len(parameters) and (
            len(args) > len(parameters) or args and not all(map(has_default, parameters[len(args):]))
        ):
            return {}
        given = dict(zip(parameters, args, strict=False))
        for one in parameters[len(args):]:
            if has_default(one):
                given[one] = self.substitute(one.__default__, given)
        return given

    def bindings(self, base: Any) -> dict[Any, Namespace]:
        """The types of the type variables of a class and of its bases: class Names(Box[str])."""
        found = {base: self._bound}

        def above(cls: Any) -> None:
            # getattr would return the bases of another class.
            for one in vars(cls).get("__orig_bases__", cls.__bases__):
                parent = typing.get_origin(one) or one
                if parent in found or not isinstance(parent, type):
                    continue
                parameters, args = parameters_of(parent), typing.get_args(one)
                found[parent] = {
                    name: self.substitute(arg, found[cls]) for name, arg in self.given(parameters, args).items()
                }
                above(parent)

        above(base)
        return found

    def field(self, annotation: Any, where: str, namespace: Namespace, bound: Namespace) -> Shape:
        """The Shape of a field of a class, with its type variables in bound."""
        outside = self._bound
        self._bound = bound
        try:
            return self.shape(annotation, where, namespace)
        finally:
            self._bound = outside


def has_default(parameter: Any) -> bool:
    return isinstance(parameter, typing.TypeVar) and bool(getattr(parameter, "has_default", bool)())


def parameters_of(base: type[Any]) -> Sequence[Any]:
    """The type variables of a class; below list[T] the class does not know them itself."""
    found = [one for parent in vars(base).get("__orig_bases__", ()) for one in getattr(parent, "__parameters__", ())]
    return getattr(base, "__parameters__", None) or list(dict.fromkeys(found))


def hashable(value: object) -> bool:
    try:
        hash(value)
        return True
    except TypeError:
        return False
