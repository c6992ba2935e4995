"""From a signature to a JSON Schema, and to the conversions that belong to it.

Every annotation becomes a Shape: the schema that callers see, how a JSON value
that fits it becomes the Python value the function expects, and how a result is
written. What is not understood becomes an open schema and a warning: a tool is
never lost to an annotation.
"""

from __future__ import annotations

import collections
import collections.abc as abc
import dataclasses
import enum
import inspect
import os
import pathlib
import re
import sys
import types
import typing

from . import models, records, redaction
from .binding import wraps_generator
from .docstring import parse as parse_docstring
from .shapes import (
    SIMPLE,
    UNRESOLVED,
    Shape,
    Unread,
    carried,
    choice,
    constraints,
    from_text,
    guard,
    is_text,
    keep_json,
    load_float,
    load_int,
    plain,
    show_default,
    varargs,
)
from .values import Mismatch, describe, encode, pointer

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import Any, TypeAlias

    from .shapes import Dump, Load, Schema
    from .values import JSON

    Namespace: TypeAlias = dict[str, Any]

_EMPTY = inspect.Parameter.empty
_INLINE = 1000  # characters of a schema that is written again where it is used again


@dataclasses.dataclass
class Parameter:
    """One parameter of a tool, and how its JSON value becomes what the tool expects."""

    name: str
    kind: str  # positional, normal, keyword, varargs, varkw, unpack
    required: bool
    load: Load | None
    default: Any = None
    fill: Callable[[], Any] | None = None  # gives the value when none was sent, where the function's default does not


@dataclasses.dataclass
class Signature:
    """What is known of one tool: its schemas, and how a call is made."""

    description: str
    input_schema: Schema
    output_schema: Schema | None
    parameters: list[Parameter]
    dump: Dump | None
    warnings: list[str]


_OPEN = (typing.Any, object, inspect.Signature.empty)
_NOTHING = (getattr(typing, "Never", typing.NoReturn), typing.NoReturn)
_LISTS = {list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection, abc.Reversible}
_SETS = {set: set, frozenset: frozenset, abc.Set: set, abc.MutableSet: set}
_DICTS = {dict, abc.Mapping, abc.MutableMapping, collections.OrderedDict, collections.defaultdict}
_UNIONS = {typing.Union, getattr(types, "UnionType", typing.Union)}
_ITERATORS = {abc.Iterator, abc.Generator}
_STREAMS = _ITERATORS | {abc.AsyncIterator, abc.AsyncGenerator, abc.AsyncIterable, abc.Iterable}
# A marker by name, so that typing_extensions' own copies are known too.
_QUALIFIERS = {"Required", "NotRequired", "ReadOnly", "Final", "ClassVar", "Unpack"}


class Builder:
    """Makes Shapes for one tool. Holds its $defs and its warnings."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.warnings: list[str] = []
        self.results = False  # whether what is described comes back, instead of going in
        self.defs: dict[str, Schema] = {}
        self._names: dict[Any, str] = {}  # class or alias -> name in $defs
        self._open: dict[Any, Shape] = {}  # class or alias under construction -> its late Shape
        self._recursive: set[Any] = set()
        self._made: dict[Any, Shape] = {}  # class or alias -> its Shape, once made
        self._moved: dict[int, Schema] = {}  # id of a schema that stands in $defs -> the reference to it
        self._texts: list[Any] = []  # what texts and forward references around where we are stand for
        self._bound: dict[Any, Any] = {}  # type variable -> what it stands for where we are

    def turn(self) -> None:
        """From here on, what is described is a result."""
        self.results = True
        self.defs, self._names, self._recursive, self._made, self._moved = {}, {}, set(), {}, {}

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
        return self.either([shape, SIMPLE[type(None)]()]) if default is None and not shape.fits(None) else shape

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
        if isinstance(annotation, Unread):
            self.warn(f"{where}: {annotation.why}; anything is accepted")
            return UNRESOLVED
        if not isinstance(annotation, str):
            return annotation
        try:
            found = eval(annotation, dict(namespace))
            return self.resolve(found, namespace, where) if isinstance(found, str) else found
        except Exception as failure:
            self.warn(f"{where}: the annotation {annotation!r} cannot be resolved ({failure}); anything is accepted")
            return UNRESOLVED

    def shape(self, annotation: Any, where: str, namespace: Namespace | None = None) -> Shape:
        """The Shape of an annotation. where names the place for warnings."""
        namespace = self.namespace if namespace is None else namespace
        text = getattr(annotation, "__forward_arg__", annotation)
        annotation = self.resolve(annotation, namespace, where)
        if annotation is UNRESOLVED:
            return self.anything()
        annotation = type(None) if annotation is None else annotation
        if annotation in _OPEN if _hashable(annotation) else False:
            return self.anything()
        simple = SIMPLE.get(annotation) if _hashable(annotation) else None
        if simple is not None:
            return simple()
        try:
            if isinstance(text, str) and typing.get_origin(annotation) is not None and _hashable(annotation):
                found = self._forward(text, annotation, where, namespace)
            else:
                found = self._compound(annotation, where, namespace)
        except Exception as failure:
            self.warn(f"{where}: {_name(annotation)} cannot be described ({type(failure).__name__}: {failure}); "
                      "anything is accepted")
            return self.anything()
        if found is not None:
            return found
        self.warn(f"{where}: {_name(annotation)} has no form in JSON; anything is accepted")
        return self.anything()

    def _forward(self, text: str, annotation: Any, where: str, namespace: Namespace) -> Shape | None:
        """What a text stands for. Inside itself, as in an alias of JSON, it has a name."""
        if annotation in self._texts:
            if text.isidentifier() and text not in {*self._names.values(), *self.defs}:
                self._names.setdefault(annotation, text)
            whole = lambda: self._compound(annotation, where, namespace) or self.anything()  # noqa: E731
            return self._named(annotation, where, whole)
        self._texts.append(annotation)
        try:
            return self._compound(annotation, where, namespace)
        finally:
            self._texts.pop()

    @staticmethod
    def anything() -> Shape:
        """The Shape of what nothing is known of."""
        return Shape({}, "anything", order=9)

    def _compound(self, annotation: Any, where: str, namespace: Namespace) -> Shape | None:
        origin = typing.get_origin(annotation)
        args = typing.get_args(annotation)
        if hasattr(annotation, "__metadata__") and origin is not None:
            return self._annotated(annotation, where, namespace)
        marker = getattr(origin, "_name", None) or getattr(annotation, "_name", None)
        if marker in _QUALIFIERS:
            return self.shape(args[0], where, namespace) if args else self.anything()
        if isinstance(annotation, dataclasses.InitVar):
            return self.shape(annotation.type, where, namespace)
        if getattr(origin, "_name", None) == "Literal" or origin is typing.Literal:
            return self._literal(args)
        if origin in _UNIONS:
            return self._union(args, where, namespace)
        if getattr(annotation, "_name", None) == "LiteralString":
            return SIMPLE[str]()
        if hasattr(annotation, "__supertype__"):
            return self.shape(annotation.__supertype__, where, namespace)
        if isinstance(annotation, typing.TypeVar):
            if annotation in self._bound:
                return self.shape(self._bound[annotation], where, namespace)
            if annotation.__bound__ is not None:
                return self.shape(annotation.__bound__, where, namespace)
            if annotation.__constraints__:
                return self._union(annotation.__constraints__, where, namespace)
            return self.anything()
        base = origin if origin is not None else annotation
        if type(base).__name__ == "TypeAliasType":
            alias = self._substitute(annotation)
            return self._named(alias, where, lambda: self._inside(
                base.__type_params__, alias, lambda: self.shape(base.__value__, where, namespace)
            ))
        if base in SIMPLE:
            return SIMPLE[base]()
        if base is tuple:
            return self._tuple(annotation, args, where, namespace)
        if base in _LISTS:
            return self._list(args, where, namespace, list)
        if base in _ITERATORS:
            return self._list(args[:1], where, namespace, iter)
        if base is collections.deque:
            return self._list(args, where, namespace, collections.deque)
        if base in _SETS:
            shape = self._list(args, where, namespace, _SETS[base])
            shape.schema["uniqueItems"] = True
            return shape
        if base in _DICTS:
            return self._dict(args, where, namespace, base)
        if not isinstance(base, type):
            return None
        if issubclass(base, enum.Flag):
            return self._flag(base)
        if issubclass(base, enum.Enum):
            return self._enum(base)
        if issubclass(base, os.PathLike):
            make: Any = base if issubclass(base, pathlib.PurePath) and base is not pathlib.PurePath else pathlib.Path
            return Shape({"type": "string", "format": "path"}, "path", is_text, from_text(make, "path"), order=7)
        if hasattr(base, "model_json_schema") and hasattr(base, "model_validate_json"):
            return models.model(self, annotation if isinstance(annotation, type) else base)
        if hasattr(base, "parse_obj") and hasattr(base, "schema"):
            return models.old_model(self, base)
        record = None
        if typing.is_typeddict(base) or type(base).__name__ == "_TypedDictMeta":
            record = records.typed_dict
        elif dataclasses.is_dataclass(base):
            record = records.data_class
        elif hasattr(base, "__attrs_attrs__"):
            record = records.attrs_class
        elif issubclass(base, tuple) and hasattr(base, "_fields"):
            record = records.named_tuple
        if record is not None:
            key = self._substitute(annotation)
            return self._named(key, where, lambda: self._inside(
                getattr(base, "__parameters__", ()), key, lambda: record(self, base, where)
            ))
        for parent in (bool, int, float, str, dict, list):
            if issubclass(base, parent) and base is not parent:
                return self._subclass(base, parent, where, namespace)
        return models.adapted(self, annotation)

    def _substitute(self, annotation: Any) -> Any:
        """annotation with what its type variables stand for."""
        if annotation in self._bound:
            return self._bound[annotation]
        if typing.get_origin(annotation) is not None:
            free = getattr(annotation, "__parameters__", ())
            if any(one in self._bound for one in free):
                return annotation[tuple(self._bound.get(one, one) for one in free)]
        return annotation

    def _inside(self, parameters: Sequence[Any], alias: Any, build: Callable[[], Shape]) -> Shape:
        """build(), with the arguments of alias in the place of type variables."""
        outside = self._bound
        args = typing.get_args(alias)
        self._bound = dict(zip(parameters, args, strict=False)) if len(args) == len(parameters) else {}
        try:
            return build()
        finally:
            self._bound = outside

    def _subclass(self, base: type[Any], parent: type[Any], where: str, namespace: Namespace) -> Shape:
        """A class of the index's own below a basic one: made of what that would be."""
        basic: Any = parent
        for one in getattr(base, "__orig_bases__", ()):
            if typing.get_origin(one) is parent:
                basic = one
        inner = self.shape(basic, where, namespace)

        def load(value: JSON, at: str) -> Any:
            return base(inner.load(value, at) if inner.load else value)

        return Shape(inner.schema, inner.expected, inner.fits, guard(load, base), inner.dump, inner.order)

    def _annotated(self, annotation: Any, where: str, namespace: Namespace) -> Shape:
        inner = self.shape(annotation.__origin__, where, namespace)
        extra: Schema = {}
        for note in annotation.__metadata__:
            if isinstance(note, str):
                extra.setdefault("description", note)
                continue
            if isinstance(note, Unread):
                self.warn(f"{where}: {note.why}")
                continue
            constraints(note, inner.schema, extra)
            for more in getattr(note, "metadata", None) or ():
                constraints(more, inner.schema, extra)
        if not extra:
            return inner
        schema = {**inner.schema, **extra}
        return Shape(schema, inner.expected, inner.fits, inner.load, inner.dump, inner.order)

    def _literal(self, args: Iterable[Any]) -> Shape:
        pairs: list[tuple[JSON, Any]] = []
        names: set[str] = set()
        for value in args:
            raw: Any = value
            if isinstance(value, enum.Enum):
                raw = value.value if carried(value.value) else value.name
                names.update([] if carried(value.value) else [value.name])
            elif isinstance(value, bytes):
                raw = SIMPLE[bytes]().dump(value, "")  # type: ignore[misc]  # it has one
            pairs.append((raw, value))

        def dump(value: Any, path: str) -> Any:
            if isinstance(value, enum.Enum):
                return value.name if value.name in names else value
            return SIMPLE[bytes]().dump(value, path)  # type: ignore[misc]  # it has one

        written = any(isinstance(value, bytes) for value in args) or names
        return choice(pairs, "one of the listed values", dump if written else None)

    def _flag(self, base: type[enum.Flag]) -> Shape:
        """A set of flags travels as their sum."""
        every = 0
        for member in base:
            every |= member.value
        words = ", ".join(f"{member.name} = {member.value}" for member in base)
        schema: Schema = {
            "type": "integer", "minimum": 0, "maximum": every, "description": f"the sum of some of {words}",
        }
        whole = SIMPLE[int]()

        def load(value: JSON, at: str) -> Any:
            assert whole.load is not None
            number = whole.load(value, at)
            if number & ~every or number < 0:
                raise Mismatch(at, f"a sum of flags of {base.__name__}", describe(value))
            return base(number)

        return Shape(schema, f"a sum of flags of {base.__name__}", whole.fits, load, order=4)

    def _enum(self, base: type[enum.Enum]) -> Shape:
        members = list(base)
        if not members:
            raise TypeError("it has no members")
        if all(carried(member.value) for member in members):
            return choice([(member.value, member) for member in members], f"a value of {base.__name__}")
        # A subclass of str or int as a value is fine, anything else goes by name.
        plains = [plain(member.value) for member in members]
        if all(map(carried, plains)):
            return choice(zip(plains, members, strict=True), f"a value of {base.__name__}")
        return choice(
            [(member.name, member) for member in members], f"the name of a {base.__name__}",
            lambda value, path: value.name if isinstance(value, base) else value,
        )

    def _union(self, args: Iterable[Any], where: str, namespace: Namespace) -> Shape:
        shapes: list[Shape] = []
        literals: list[Any] = []
        first_literal = 0
        for arg in args:
            arg = self.resolve(arg, namespace, where)
            if arg is UNRESOLVED:
                return self.anything()
            if typing.get_origin(arg) is typing.Literal:
                if not literals:
                    first_literal = len(shapes)
                literals.extend(typing.get_args(arg))
                continue
            shapes.append(self.shape(arg, where, namespace))
        if literals:
            shapes.insert(first_literal, self._literal(literals))
        return self.either(shapes)

    @staticmethod
    def either(shapes: list[Shape]) -> Shape:
        """The Shape of a value that has one of several."""
        if len(shapes) == 1:
            return shapes[0]
        members: list[Schema] = []
        for shape in shapes:
            for member in shape.schema["anyOf"] if set(shape.schema) == {"anyOf"} else [shape.schema]:
                if member not in members:
                    members.append(member)
        schema: Schema = {} if {} in members else {"anyOf": members}
        expected = " or ".join(dict.fromkeys(shape.expected for shape in shapes))
        ordered = sorted(shapes, key=lambda shape: shape.order)

        def fits(value: JSON) -> bool:
            return any(shape.fits(value) for shape in ordered)

        load: Load | None = None
        if any(shape.load for shape in shapes):
            # A number keeps the type it came with when both are allowed.
            exact = {
                type_: True
                for type_, number in ((int, load_int), (float, load_float))
                if any(shape.load is number for shape in shapes)
            }

            def load(value: JSON, at: str) -> Any:
                if type(value) in exact:
                    return value
                deepest: Mismatch | None = None
                # Of what fits the first; of what does not, the words of who came furthest.
                for sure in (True, False):
                    for shape in ordered:
                        if shape.fits(value) is not sure or shape.load is None and not sure:
                            continue
                        if shape.load is None:
                            return value
                        try:
                            return shape.load(value, at)
                        except Mismatch as failure:
                            if deepest is None or len(failure.pointer) > len(deepest.pointer):
                                deepest = failure
                if deepest is not None and deepest.pointer != at:
                    raise deepest
                raise Mismatch(at, expected, describe(value))

        dump: Dump | None = None
        if any(shape.dump for shape in shapes):

            def dump(value: Any, path: str) -> Any:
                for shape in shapes:
                    if shape.dump is not None:
                        value = shape.dump(value, path)
                return value

        return Shape(schema, expected, fits, load, dump, order=min(shape.order for shape in shapes))

    def _list(
        self,
        args: Sequence[Any],
        where: str,
        namespace: Namespace,
        make: Callable[[list[Any]], Collection[Any] | Iterator[Any]],
    ) -> Shape:
        item = self.shape(args[0], where, namespace) if args else self.anything()
        schema: Schema = {"type": "array", "items": item.schema}

        def load(value: JSON, at: str) -> Any:
            if type(value) is not list:
                raise Mismatch(at, "array", describe(value))
            if item.load is not None:
                step = item.load
                value = [step(one, f"{at}/{index}") for index, one in enumerate(value)]
            if make is list:
                return value
            try:
                return make(value)
            except TypeError as failure:  # what is in a set must be hashable
                raise Mismatch(at, "array of values that a set can hold", describe(value), str(failure)) from None

        dump: Dump | None = None
        write = item.dump
        if write is not None:

            def dump(value: Any, path: str) -> Any:
                if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
                    return [write(one, path) for one in value]
                return value

        needs = item.load is not None or make is not list

        def fits(value: JSON) -> bool:
            return type(value) is list and all(map(item.fits, value))

        return Shape(schema, "array", fits, load if needs else None, dump)

    def _tuple(self, annotation: Any, args: Sequence[Any], where: str, namespace: Namespace) -> Shape:
        if not args and annotation in (tuple, typing.Tuple):  # noqa: UP006 - tuple[()] is another thing
            return self._list((), where, namespace, tuple)
        if args == ((),):  # Tuple[()] before 3.11
            args = ()
        if len(args) == 2 and args[1] is Ellipsis:
            return self._list(args[:1], where, namespace, tuple)
        items = [self.shape(arg, where, namespace) for arg in args]
        return records.positions(items, len(items), tuple)

    def _dict(self, args: Sequence[Any], where: str, namespace: Namespace, base: type[Any]) -> Shape:
        keys = self.shape(args[0], where, namespace) if len(args) == 2 else SIMPLE[str]()
        value_shape = self.shape(args[1], where, namespace) if len(args) == 2 else self.anything()
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
                try:
                    found = int(text) if kind == "integer" else float(text)
                except ValueError:
                    found = None
                if found is None or kind == "integer" and str(found) != text:
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
        return Shape(schema, "object", fits, load if needs else None, dump, order=6)

    def settled(self, schema: Schema) -> Schema:
        """schema with its $defs; what went there only when it was used again is
        referred to where it was used first, too."""
        made: Schema = {key: self._refer(one) for key, one in schema.items()} if self._moved else schema
        if self.defs:
            made["$defs"] = {
                name: {key: self._refer(one) for key, one in inner.items()} if self._moved else inner
                for name, inner in self.defs.items()
            }
        return made

    def _refer(self, schema: JSON) -> JSON:
        if id(schema) in self._moved:
            return self._moved[id(schema)]
        if isinstance(schema, dict):
            return {key: self._refer(one) for key, one in schema.items()}
        if isinstance(schema, list):
            return [self._refer(one) for one in schema]
        return schema

    def _named(self, base: Any, where: str, build: Callable[[], Shape]) -> Shape:
        """Builds the Shape of something that may refer to itself: what does
        becomes a $ref, what does not stays inline, unless it is long and used
        again: a schema must not grow with each use of what is in it."""
        if base in self._open:
            self._recursive.add(base)
            return self._open[base]
        made: Shape  # set below; a default that needs it before is not shown, see show_default
        if base in self._made:
            made = self._made[base]
            if "$ref" in made.schema or len(encode(made.schema)) <= _INLINE:
                return made
            self._recursive.add(base)
            self._moved[id(made.schema)] = made.schema
        name = self._names.get(base)
        if name is None:
            name = _plain_name(base)
            taken = set(self._names.values()) | self.defs.keys()
            first, count = name, 1
            while name in taken:
                count += 1
                name = f"{first}_{count}"
            self._names[base] = name
        reference: Schema = {"$ref": f"#/$defs/{name}"}
        if base not in self._made:
            self._open[base] = Shape(
                reference,
                name,
                lambda value: made.fits(value),
                lambda value, at: made.load(value, at) if made.load else value,
                lambda value, path: made.dump(value, path) if made.dump else value,
            )
            try:
                made = build()
            finally:
                del self._open[base]
        if base in self._recursive:
            self.defs[name] = made.schema
            if id(made.schema) in self._moved:
                self._moved[id(made.schema)] = reference
            made = Shape(reference, made.expected, made.fits, made.load, made.dump, made.order)
        self._made[base] = made
        return made


def _hashable(value: object) -> bool:
    try:
        hash(value)
        return True
    except TypeError:
        return False


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


def _plain_name(annotation: Any) -> str:
    """A name for $defs: of a class, with its arguments'."""
    args = "".join(f"_{_plain_name(one)}" for one in typing.get_args(annotation))
    return re.sub(r"\W+", "_", f"{_name(typing.get_origin(annotation) or annotation)}{args}")


def signature(function: Callable[..., Any]) -> Signature:
    """The Signature of a tool. Raises ValueError when it has none (some builtins)."""
    if sys.version_info >= (3, 14):
        import annotationlib

        found = inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    else:
        found = inspect.signature(function)
    inner = inspect.unwrap(function)
    while hasattr(inner, "func") and not inspect.isfunction(inner):  # functools.partial
        inner = inspect.unwrap(inner.func)
    if inspect.ismethod(inner):
        inner = inner.__func__
    if inspect.isclass(inner):
        inner = inner.__init__
    elif not hasattr(inner, "__globals__") and callable(inner) and hasattr(type(inner).__call__, "__globals__"):
        inner = type(inner).__call__
    namespace = dict(getattr(inner, "__globals__", {}))
    for parameter in getattr(inner, "__type_params__", ()):
        namespace.setdefault(parameter.__name__, parameter)

    builder = Builder(namespace)
    own = vars(function).get("__doc__") if type(function).__name__ == "partial" else function.__doc__
    documented = function if own or inspect.isfunction(function) or inspect.isclass(function) else inner
    description, texts = parse_docstring(inspect.getdoc(documented) or "")
    properties: dict[str, Schema] = {}
    required: list[str] = []
    parameters: list[Parameter] = []
    open_ended: Schema | bool = False
    for parameter in found.parameters.values():
        kind = {
            parameter.POSITIONAL_ONLY: "positional",
            parameter.POSITIONAL_OR_KEYWORD: "normal",
            parameter.KEYWORD_ONLY: "keyword",
            parameter.VAR_POSITIONAL: "varargs",
            parameter.VAR_KEYWORD: "varkw",
        }[parameter.kind]
        shape = builder.shape(parameter.annotation, parameter.name)
        name = parameter.name
        if kind == "varkw":
            marker = getattr(typing.get_origin(parameter.annotation), "_name", None)
            if marker == "Unpack":
                whole = shape.schema
                if "$ref" in whole:
                    whole = builder.defs[whole["$ref"].rpartition("/")[2]]
                properties.update(whole.get("properties", {}))
                required.extend(whole.get("required", ()))
                parameters.append(Parameter(name, "unpack", False, shape.load))
                continue
            open_ended = shape.schema or True
            parameters.append(Parameter(name, kind, False, shape.load))
            continue
        if kind == "varargs":
            shape = Shape({"type": "array", "items": shape.schema}, "array", load=varargs(shape))
        default, fill = parameter.default, None
        extra: Schema = {}
        if kind != "varargs" and default is not _EMPTY:
            is_field, inner_default = models.field_default(default)
            if is_field:
                # Field(...) in a default's place: what it says holds, and what
                # it holds is the default, which the function itself would not take.
                constraints(default, shape.schema, extra)
                for note in getattr(default, "metadata", None) or ():
                    constraints(note, shape.schema, extra)
                default, fill = inner_default, models.filler(default, inner_default)
        needed = default is _EMPTY and kind != "varargs"
        shape = shape if default is _EMPTY else builder.nullable_for(default, shape)
        if "description" not in shape.schema and texts.get(name):
            extra.setdefault("description", texts[name])
        elif texts.get(name) and shape.schema.get("description") == "seconds":
            extra["description"] = f"{texts[name]} (seconds)"
        if default is not _EMPTY:
            show_default(default, shape, extra)
        properties[name] = {**shape.schema, **extra} if extra else shape.schema
        if needed:
            required.append(name)
        parameters.append(Parameter(name, kind, needed, shape.load, default, fill))
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = open_ended
    schema = builder.settled(schema)

    output: Schema | None = None
    dump: Dump | None = None
    returns = found.return_annotation
    if returns is not inspect.Signature.empty:
        returns = _item(builder.resolve(returns, namespace, "the return value"), kind_of(function))
        if returns is not UNRESOLVED:
            builder.turn()
            shape = builder.shape(returns, "the return value")
            dump = shape.dump
            if shape.schema:
                output = builder.settled(dict(shape.schema))
    description, builder.warnings = redaction.text(description), [redaction.text(one) for one in builder.warnings]
    made = Signature(description, schema, output, parameters, dump, builder.warnings)
    keep_json(made)
    return made


def _item(returns: Any, kind: str) -> Any:
    """What a call gives, or each item of a stream, of the annotation of the
    return value; UNRESOLVED when nothing is known of it."""
    origin, arguments = typing.get_origin(returns), typing.get_args(returns)
    if kind in ("generator", "async_generator"):
        if origin in _STREAMS:
            return arguments[0] if arguments else UNRESOLVED
        if _hashable(returns) and returns in _STREAMS:
            return UNRESOLVED
    elif origin in (abc.Awaitable, abc.Coroutine) and arguments:
        return arguments[-1]
    return UNRESOLVED if returns in _NOTHING else returns


def kind_of(function: Callable[..., Any]) -> str:
    """How a function is run: sync, async, generator or async_generator."""
    while hasattr(function, "func") and not inspect.isfunction(function) and type(function).__name__ == "partial":
        function = function.func
    if not (inspect.isfunction(function) or inspect.ismethod(function) or inspect.isclass(function)):
        call = type(function).__call__
        if inspect.isfunction(call):
            function = call
    if inspect.isasyncgenfunction(function):
        return "async_generator"
    if inspect.iscoroutinefunction(function):
        return "async_generator" if wraps_generator(function) else "async"
    if inspect.isgeneratorfunction(function):
        return "generator"
    if wraps_generator(function):
        return "generator"
    return "sync"
