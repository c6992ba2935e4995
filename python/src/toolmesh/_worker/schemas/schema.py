"""From a signature to a JSON Schema, and to its conversions.

Every annotation becomes a Shape: the schema for callers, the conversion of a JSON value to the Python value that the
function expects, and the writing of a result. An unknown annotation becomes an open schema and a warning: the tool is
still served.
"""

from __future__ import annotations

import collections
import collections.abc as abc
import dataclasses
import decimal
import enum
import inspect
import os
import pathlib
import re
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..wire.frames import JSON
from . import containers, models, notes, records, redaction
from .binding import Parameter, Signature, shown
from .docstring import parse as parse_docstring
from .draft import Draft, Namespace, hashable
from .shapes import (
    SIMPLE,
    UNRESOLVED,
    Dump,
    Schema,
    Shape,
    carried,
    choice,
    dump_bytes,
    either,
    from_text,
    guard,
    is_json,
    no_text,
    plain,
)
from .values import Mismatch, describe, encode

_EMPTY = inspect.Parameter.empty
_KINDS = "positional", "normal", "varargs", "keyword", "varkw"  # in the order of inspect
_INLINE = 1000  # max characters of a schema that is repeated where it is used again


_OPEN = (typing.Any, object, inspect.Signature.empty)
_NOTHING = (getattr(typing, "Never", typing.NoReturn), typing.NoReturn)
_ITERATORS = {abc.Iterator, abc.Generator}
_ARRAYS: dict[Any, Callable[[list[Any]], Any]] = {
    **dict.fromkeys(
        (list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection, abc.Reversible), list
    ),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set), frozenset: frozenset, collections.deque: collections.deque,
    **dict.fromkeys(_ITERATORS, iter),
}
_DICTS = {dict, abc.Mapping, abc.MutableMapping, collections.OrderedDict, collections.defaultdict}
_STREAMS = _ITERATORS | {abc.AsyncIterator, abc.AsyncGenerator, abc.AsyncIterable, abc.Iterable}
# A marker by name, so that the copies of typing_extensions are known, too.
_QUALIFIERS = {"Required", "NotRequired", "ReadOnly", "Final", "ClassVar"}


class Builder(Draft):
    """Makes Shapes for one tool."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace)
        self._names: dict[Any, str] = {}  # class or alias -> name in $defs
        self._open: dict[Any, Shape] = {}  # class or alias under construction -> its late Shape
        self._recursive: set[Any] = set()
        self._made: dict[Any, Shape] = {}  # class or alias -> its Shape, once made
        self._moved: dict[int, Schema] = {}  # id of a schema in $defs -> the reference to it
        self._texts: list[Any] = []  # the resolved texts and forward references around the current type
        self._own: Any = None  # the class that Self means at this point

    def turn(self) -> None:
        """From now on, the described types are results."""
        self.results = True
        self.defs, self._names, self._recursive, self._made, self._moved = {}, {}, set(), {}, {}

    def shape(self, annotation: Any, where: str, namespace: Namespace | None = None) -> Shape:
        """The Shape of an annotation. where is the place for warnings."""
        namespace = self.namespace if namespace is None else namespace
        text = getattr(annotation, "__forward_arg__", annotation)
        annotation = self.resolve(annotation, namespace, where)
        if annotation is UNRESOLVED:
            return self.anything()
        annotation = type(None) if annotation is None else annotation
        if annotation in _OPEN if hashable(annotation) else False:
            return self.anything()
        simple = SIMPLE.get(annotation) if hashable(annotation) else None
        if simple is not None:
            self.exact = self.exact or annotation is decimal.Decimal
            return simple()
        try:
            if isinstance(text, str) and typing.get_origin(annotation) is not None and hashable(annotation):
                found = self._forward(text, annotation, where, namespace)
            else:
                found = self._compound(annotation, where, namespace)
        except Exception as failure:
            self.warn(f"{where}: {_name(annotation)} cannot be described ({type(failure).__name__}: {failure}); "
                      "anything is accepted")
            return self.anything()
        if found is None:
            self.warn(f"{where}: {_name(annotation)} has no form in JSON; anything is accepted")
            return self.anything()
        if not is_json(found.schema):  # of a class of the index or a library
            self.warn(f"{where}: the schema of {_name(annotation)} is not JSON; anything is accepted")
            return found.but(schema={})
        return found

    def _forward(self, text: str, annotation: Any, where: str, namespace: Namespace) -> Shape | None:
        """The Shape of a text annotation. Inside itself, as in a recursive alias, it gets a name."""
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

    def _compound(self, annotation: Any, where: str, namespace: Namespace) -> Shape | None:
        origin = typing.get_origin(annotation)
        args = typing.get_args(annotation)
        if hasattr(annotation, "__metadata__") and origin is not None:
            inner = self.shape(annotation.__origin__, where, namespace)
            inner, extra = notes.read(self, inner, annotation.__metadata__, annotation, where)
            return inner.but(schema={**inner.schema, **extra}) if extra else inner
        marker = getattr(origin, "_name", None) or getattr(annotation, "_name", None)
        if marker in _QUALIFIERS:
            return self.shape(args[0], where, namespace) if args else self.anything()
        if isinstance(annotation, dataclasses.InitVar):
            return self.shape(annotation.type, where, namespace)
        if getattr(origin, "_name", None) == "Literal" or origin is typing.Literal:
            return self._literal(args)
        if origin in models.UNIONS:
            return self._union(args, where, namespace)
        if getattr(annotation, "_name", None) == "LiteralString":
            return SIMPLE[str]()
        if getattr(annotation, "_name", None) == "Self" and self._own is not None:
            return self.shape(self._own, where, namespace)
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
            alias = self.substitute(annotation)
            return self._named(alias, where, lambda: self._inside(
                base.__type_params__, alias, lambda: self.shape(base.__value__, where, namespace)
            ))
        if base in SIMPLE:
            return SIMPLE[base]()
        if hasattr(base, "__get_validators__") or hasattr(base, "__modify_schema__"):
            found = models.old_adapted(self, annotation) if not hasattr(base, "parse_obj") else None
            if found is not None:
                return found
        if base is tuple:
            return containers.tuple_of(self, annotation, args, where, namespace)
        if base in _ARRAYS:
            item = self.shape(args[0], where, namespace) if args else self.anything()
            return containers.array(item, _ARRAYS[base])
        if base in _DICTS:
            return containers.mapping_of(self, base, args, where, namespace)
        if not isinstance(base, type):
            return None
        if issubclass(base, enum.Flag):
            return self._flag(base)
        if issubclass(base, enum.Enum):
            return self._enum(base)
        if issubclass(base, os.PathLike):
            make: Any = base if issubclass(base, pathlib.PurePath) and base is not pathlib.PurePath else pathlib.Path
            return Shape({"type": "string", "format": "path"}, "path", from_text(make, "path"), order=7)
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
            key = self.substitute(annotation)
            return self._named(key, where, lambda: self._inside(
                getattr(base, "__parameters__", ()), key, lambda: record(self, base, where), key
            ))
        for parent in (bool, int, float, str, dict, list):
            if issubclass(base, parent) and base is not parent:
                return self._subclass(base, parent, where, namespace)
        return models.adapted(self, annotation) if hasattr(annotation, "__get_pydantic_core_schema__") else None

    def _inside(self, parameters: Sequence[Any], alias: Any, build: Callable[[], Shape], own: Any = None) -> Shape:
        """build(), with the arguments of alias for its type variables; own is the class that Self means in it."""
        outside, outer = self._bound, self._own
        self._bound = self.given(parameters, typing.get_args(alias))
        self._own = own
        try:
            return build()
        finally:
            self._bound, self._own = outside, outer

    def _subclass(self, base: type[Any], parent: type[Any], where: str, namespace: Namespace) -> Shape:
        """A class of the index derived from a basic one: built from the basic value."""
        basic: Any = parent
        bindings = self.bindings(base)
        for owner, bound in bindings.items():
            for one in vars(owner).get("__orig_bases__", ()):
                if typing.get_origin(one) is parent:
                    basic = self.substitute(one, bound)
        inner = self.shape(basic, where, namespace)

        def load(value: JSON) -> Any:
            no_text(value, inner.expected)
            return base(inner.load(value))

        # Each text makes one of a class of texts, so that a union asks this last.
        return inner.but(load=guard(load, base), same=False, order=8 if parent is str else inner.order)

    def _literal(self, args: Iterable[Any]) -> Shape:
        pairs: list[tuple[JSON, Any]] = []
        names: set[str] = set()
        for value in args:
            raw: Any = dump_bytes(value)
            if isinstance(value, enum.Enum):
                raw = value.value if carried(value.value) else value.name
                names.update([] if carried(value.value) else [value.name])
            pairs.append((raw, value))

        def dump(value: Any) -> Any:
            if isinstance(value, enum.Enum):
                return value.name if value.name in names else value
            return dump_bytes(value)

        written = any(isinstance(value, bytes) for value in args) or names
        return choice(pairs, "one of the listed values", dump if written else None)

    def _flag(self, base: type[enum.Flag]) -> Shape:
        """A set of flags is transferred as its sum."""
        every = 0
        for member in base:
            every |= member.value
        words = ", ".join(f"{member.name} = {member.value}" for member in base)
        schema: Schema = {
            "type": "integer", "minimum": 0, "maximum": every, "description": f"the sum of some of {words}",
        }
        whole = SIMPLE[int]().load

        def load(value: JSON) -> Any:
            number = whole(value)
            if number & ~every or number < 0:
                raise Mismatch(f"a sum of flags of {base.__name__}", describe(value))
            return base(number)

        return Shape(schema, f"a sum of flags of {base.__name__}", load, order=4)

    def _enum(self, base: type[enum.Enum]) -> Shape:
        members = list(base)
        if not members:
            raise TypeError("it has no members")
        # Scalars, and subclasses of theirs, are transferred by value, others by name.
        plains = [plain(member.value) for member in members]
        if all(map(carried, plains)):
            return choice(zip(plains, members, strict=True), f"a value of {base.__name__}")
        return choice(
            [(member.name, member) for member in members], f"the name of a {base.__name__}",
            lambda value: value.name if isinstance(value, base) else value,
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
        return either(shapes)

    def settled(self, schema: Schema) -> Schema:
        """schema with its $defs. A type that moved there at its second use is a reference at its first use, too."""
        made: Schema = {key: self._refer(one) for key, one in schema.items()}
        if self.defs:
            made["$defs"] = {
                name: {key: self._refer(one) for key, one in inner.items()} for name, inner in self.defs.items()
            }
        if not is_json(made):  # it would break the whole index
            raise TypeError("its schema is not JSON")
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
        """Builds the Shape of a type that may refer to itself. A recursive type becomes a $ref. Any other stays inline,
        unless it is long and used again: a schema must not grow with each use of an inner type."""
        if base in self._open:
            self._recursive.add(base)
            return self._open[base]
        made: Shape  # set below; Draft.show does not show a default that needs it earlier
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
            self._open[base] = Shape(reference, name, lambda value: made.load(value),
                                     lambda value: made.dump(value) if made.dump else value)
            try:
                made = build()
            finally:
                del self._open[base]
        if base in self._recursive:
            self.defs[name] = made.schema
            if id(made.schema) in self._moved:
                self._moved[id(made.schema)] = reference
            made = made.but(schema=reference)
        self._made[base] = made
        return made


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


def _plain_name(annotation: Any) -> str:
    """A name for $defs: that of a class with its arguments."""
    args = "".join(f"_{_plain_name(one)}" for one in typing.get_args(annotation))
    return re.sub(r"\W+", "_", f"{_name(typing.get_origin(annotation) or annotation)}{args}")


def signature(function: Callable[..., Any], kind: str = "") -> Signature:
    """The Signature of a tool of the given kind, or of kind_of's. Raises ValueError if the tool has none (some
    builtins)."""
    if sys.version_info >= (3, 14):
        import annotationlib

        found = inspect.signature(shown(function), annotation_format=annotationlib.Format.FORWARDREF)
    else:
        found = inspect.signature(shown(function))
    found = _taken(function, found)
    inner = inspect.unwrap(function)
    while hasattr(inner, "func") and not inspect.isfunction(inner):  # functools.partial
        inner = inspect.unwrap(inner.func)
    if inspect.ismethod(inner):
        inner = inner.__func__
    built = inner if inspect.isclass(inner) else None
    if inspect.isclass(inner):
        inner = inner.__init__
    elif not hasattr(inner, "__globals__") and callable(inner) and hasattr(type(inner).__call__, "__globals__"):
        inner = type(inner).__call__
    namespace = {**getattr(function, "__globals__", {}), **getattr(inner, "__globals__", {})}
    for parameter in getattr(inner, "__type_params__", ()):
        namespace.setdefault(parameter.__name__, parameter)

    builder = Builder(namespace)
    bare = [(one.kind, one.annotation) for one in found.parameters.values()]
    if bare == [(inspect.Parameter.VAR_POSITIONAL, _EMPTY), (inspect.Parameter.VAR_KEYWORD, _EMPTY)]:
        builder.warn("its signature is (*args, **kwargs): callers see none of its arguments; a decorator keeps them "
                     "with functools.wraps")
    running = kind or kind_of(function)
    own = vars(function).get("__doc__") if type(function).__name__ == "partial" else function.__doc__
    documented = function if own or inspect.isfunction(function) or inspect.isclass(function) else inner
    doc = inspect.getdoc(documented) or ""
    description, texts, about = parse_docstring(doc)
    properties: dict[str, Schema] = {}
    required: list[str] = []
    parameters: list[Parameter] = []
    open_ended: Schema | bool = False
    names = set(found.parameters)
    for parameter in found.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            further = containers.unpacked(builder.resolve(parameter.annotation, namespace, parameter.name))
            names.update(*(getattr(typing.get_origin(further) or further, f"__{which}_keys__", ())
                           for which in ("required", "optional")))
    for parameter in found.parameters.values():
        kind, name = _KINDS[parameter.kind], parameter.name
        annotation = builder.resolve(parameter.annotation, namespace, name)
        whole_of = containers.unpacked(annotation) if kind in ("varargs", "varkw") else None
        shape = builder.shape(parameter.annotation if whole_of is None else whole_of, name)
        if kind == "varkw":
            if whole_of is not None:
                fields, kind = shape.schema, "unpack"
                if "$ref" in fields:
                    fields = builder.defs[fields["$ref"].rpartition("/")[2]]
                properties.update(fields.get("properties", {}))
                required.extend(fields.get("required", ()))
            elif texts.get(name) and "description" not in shape.schema:
                open_ended = {**shape.schema, "description": texts[name]}
            else:
                open_ended = shape.schema or True
            parameters.append(Parameter(name, kind, False, None if shape.same else shape.load))
            continue
        if kind == "varargs" and whole_of is None:
            shape = containers.array(shape)
        default, fill, own = parameter.default, None, name
        alias = models.alias((*getattr(annotation, "__metadata__", ()), default))
        if isinstance(alias, str) and kind in ("normal", "keyword") and alias not in {*names, *properties}:
            name = alias
        elif alias is not None and alias != name:
            builder.warn(f"{name}: the alias {alias!r} of its Field is not used; callers give {name}")
        extra: Schema = {}
        if default is not _EMPTY:
            is_field, inner_default, filler = models.field_default(default)
            if is_field:
                # Field(...) as a default: its constraints apply, and its value is the default, as the function itself
                # would not accept it.
                whole: Any = typing.Annotated[annotation if annotation is not _EMPTY else typing.Any, default]
                shape, extra = notes.read(builder, shape, (default,), whole, name)
                default, fill = inner_default, filler
        needed = default is _EMPTY and kind != "varargs"
        shape = shape if default is _EMPTY else builder.nullable_for(default, shape)
        if "description" not in shape.schema and texts.get(own):
            extra.setdefault("description", texts[own])
        elif texts.get(own) and shape.schema.get("description") == "seconds":
            extra["description"] = f"{texts[own]} (seconds)"
        if default is not _EMPTY:
            builder.show(default, shape, extra, name)
        properties[name] = {**shape.schema, **extra} if extra else shape.schema
        if needed:
            required.append(name)
        parameters.append(Parameter(
            name, kind, needed, None if shape.same else shape.load, default, fill, own if own != name else ""))
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = open_ended
    schema, exact = builder.settled(schema), builder.exact
    output: Schema | None = None
    dump: Dump | None = None
    # A class returns an instance of itself: its __init__ returns None.
    returns = found.return_annotation if built is None else built
    if returns is not inspect.Signature.empty:
        returns = _item(builder.resolve(returns, namespace, "the return value"), running)
        if returns is not UNRESOLVED:
            builder.turn()
            shape = builder.shape(returns, "the return value")
            dump = shape.dump
            if shape.schema:
                output = builder.settled(dict(shape.schema))
                said = redaction.text(about)
                if said and "description" not in output:
                    output["description"] = said
    description, builder.warnings = redaction.text(description), [redaction.text(one) for one in builder.warnings]
    return Signature(description, schema, output, parameters, dump, builder.warnings, exact)


def _taken(function: Callable[..., Any], found: inspect.Signature) -> inspect.Signature:
    """The signature of a wrapper: that of the function in it, unless the wrapper's own, without *args and **kwargs, has
    another number of parameters. The inner one may still have their annotations."""
    if not hasattr(function, "__wrapped__") or not inspect.isfunction(function) or hasattr(function, "__signature__"):
        return found
    own, known = inspect.signature(function, follow_wrapped=False), found.parameters
    open_ended = any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in own.parameters.values())
    if open_ended or len(own.parameters) == len(known):
        return found
    returns = own.return_annotation if own.return_annotation is not _EMPTY else found.return_annotation
    return own.replace(return_annotation=returns, parameters=[
        one.replace(annotation=known[one.name].annotation) if one.annotation is _EMPTY and one.name in known else one
        for one in own.parameters.values()
    ])


def _item(returns: Any, kind: str) -> Any:
    """The type of a call's result, or of each item of a stream, from the annotation of the return value; UNRESOLVED if
    unknown."""
    origin, arguments = typing.get_origin(returns), typing.get_args(returns)
    if kind in ("generator", "async_generator"):
        if origin in _STREAMS:
            return arguments[0] if arguments else UNRESOLVED
        if hashable(returns) and returns in _STREAMS:
            return UNRESOLVED
    elif origin in (abc.Awaitable, abc.Coroutine) and arguments:
        return arguments[-1]
    return UNRESOLVED if returns in _NOTHING else returns


def kind_of(function: Callable[..., Any]) -> str:
    """The kind of a function: sync, async, generator or async_generator."""
    while hasattr(function, "func") and not inspect.isfunction(function) and type(function).__name__ == "partial":
        function = function.func
    if not (inspect.isfunction(function) or inspect.ismethod(function) or inspect.isclass(function)):
        call = type(function).__call__
        if inspect.isfunction(call):
            function = call
    if inspect.isasyncgenfunction(function):
        return "async_generator"
    if inspect.iscoroutinefunction(function):
        return "async_generator" if _wraps_generator(function) else "async"
    return "generator" if inspect.isgeneratorfunction(function) or _wraps_generator(function) else "sync"


def _wraps_generator(function: Callable[..., Any]) -> bool:
    """Whether a decorated function passes on the items of a generator, as far as that is visible."""
    try:
        inner = inspect.unwrap(function)
    except ValueError:  # it wraps itself
        return False
    return inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner)
