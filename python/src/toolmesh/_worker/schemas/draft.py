"""The state of one tool while its schemas are made: its names, its warnings, its $defs, and what type variables
stand for. The kinds of annotation describe what they hold through it."""

from __future__ import annotations

import sys
import typing

from .shapes import SIMPLE, UNRESOLVED, Shape, either, show_default

if typing.TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeAlias

    from .shapes import Schema

    Namespace: TypeAlias = dict[str, Any]


class Draft:
    """A tool's schemas, half made."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.warnings: list[str] = []
        self.results = False  # whether what is described comes back, instead of going in
        self.exact = False  # whether what was described has a Decimal in it
        self.defs: dict[str, Schema] = {}
        self._bound: dict[Any, Any] = {}  # type variable -> what it stands for where we are

    def shape(self, annotation: Any, where: str, namespace: Namespace | None = None) -> Shape:
        """The Shape of an annotation. where names the place for warnings."""
        raise NotImplementedError

    def names_of(self, base: type[Any]) -> Namespace:
        """The names that the annotations of a class mean."""
        module = sys.modules.get(base.__module__)
        names = {**self.namespace, **(vars(module) if module is not None else {})}
        names.setdefault(base.__name__, base)
        for parameter in getattr(base, "__type_params__", ()):
            names.setdefault(parameter.__name__, parameter)
        return names

    def nullable_for(self, default: Any, shape: Shape) -> Shape:
        """shape, which takes null too when that is the default: `x: int = None`."""
        return either([shape, SIMPLE[type(None)]()]) if default is None and not shape.takes(None) else shape

    def show(self, default: Any, shape: Shape, extra: Schema, where: str) -> None:
        """Puts a default into the schema of a parameter or a field."""
        if not show_default(default, shape, extra):
            self.warn(f"{where}: its default is not what its annotation takes, and is not shown")

    def warn(self, text: str) -> None:
        """Notes, once, what people should know of this tool."""
        if text not in self.warnings:
            self.warnings.append(text)

    def resolve(self, annotation: Any, namespace: Namespace, where: str) -> Any:
        """Evaluates a text annotation; UNRESOLVED when a name is missing."""
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
        """The Shape of what nothing is known of."""
        return Shape({}, "anything", lambda value: value, same=True, order=9)

    def substitute(self, annotation: Any, bound: Namespace | None = None) -> Any:
        """annotation with what its type variables stand for."""
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
        """The types of type variables where args are given: the last ones may
        have defaults, which may be made of those before them."""
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
        """Of a class that is being described and of those it inherits from, what
        their type variables stand for: class Names(Box[str])."""
        found = {base: self._bound}

        def above(cls: Any) -> None:
            # Not with getattr: what is inherited there are the bases of another class.
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
        """The Shape of a field of a class, whose type variables stand for bound."""
        outside = self._bound
        self._bound = bound
        try:
            return self.shape(annotation, where, namespace)
        finally:
            self._bound = outside


def has_default(parameter: Any) -> bool:
    return isinstance(parameter, typing.TypeVar) and bool(getattr(parameter, "has_default", bool)())


def parameters_of(base: type[Any]) -> Sequence[Any]:
    """The type variables of a class; below list[T] it does not know them itself."""
    found = [one for parent in vars(base).get("__orig_bases__", ()) for one in getattr(parent, "__parameters__", ())]
    return getattr(base, "__parameters__", None) or list(dict.fromkeys(found))


def hashable(value: object) -> bool:
    try:
        hash(value)
        return True
    except TypeError:
        return False
