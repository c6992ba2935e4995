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
import pathlib
import sys
import types
import typing

from .docstring import parse as parse_docstring
from .shapes import (
    JSON_TYPES,
    SIMPLE,
    Shape,
    choice,
    constraints,
    dump_only,
    from_text,
    guard,
    is_text,
    plain,
    rewrite,
    varargs,
)
from .values import Mismatch, describe, encode, pointer

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any, TypeAlias

    from .shapes import Dump, Fits, Load, Schema
    from .values import JSON

    Namespace: TypeAlias = dict[str, Any]
    Field: TypeAlias = tuple[str, Shape, bool, Schema]  # name, shape, required, what its schema has on top

_UNRESOLVED = object()
_EMPTY = inspect.Parameter.empty


@dataclasses.dataclass
class Parameter:
    """One parameter of a tool, and how its JSON value becomes what the tool expects."""

    name: str
    kind: str  # positional, normal, keyword, varargs, varkw, unpack
    required: bool
    load: Load | None
    default: Any = None


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
_LISTS = {list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection, abc.Reversible}
_SETS = {set: set, frozenset: frozenset, abc.Set: set, abc.MutableSet: set}
_DICTS = {dict, abc.Mapping, abc.MutableMapping, collections.OrderedDict, collections.defaultdict}
_UNIONS = {typing.Union, getattr(types, "UnionType", typing.Union)}
_ITERATORS = {
    abc.Iterator, abc.Generator, abc.AsyncIterator, abc.AsyncGenerator, abc.AsyncIterable, abc.Iterable,
}
# A marker by name, so that typing_extensions' own copies are known too.
_QUALIFIERS = {"Required", "NotRequired", "ReadOnly", "Final", "ClassVar", "Unpack"}


class Builder:
    """Makes Shapes for one tool. Holds its $defs and its warnings."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.warnings: list[str] = []
        self.defs: dict[str, Schema] = {}
        self._names: dict[Any, str] = {}  # class or alias -> name in $defs
        self._open: dict[Any, Shape] = {}  # class or alias under construction -> its late Shape
        self._recursive: set[Any] = set()

    def warn(self, text: str) -> None:
        """Notes, once, what people should know of this tool."""
        if text not in self.warnings:
            self.warnings.append(text)

    def resolve(self, annotation: Any, namespace: Namespace, where: str) -> Any:
        """Evaluates a text annotation; _UNRESOLVED when a name is missing."""
        if isinstance(annotation, typing.ForwardRef):
            module = getattr(annotation, "__forward_module__", None)
            if module is not None:
                module = sys.modules.get(module, module) if isinstance(module, str) else module
                namespace = {**namespace, **vars(module)}
            annotation = annotation.__forward_arg__
        if not isinstance(annotation, str):
            return annotation
        try:
            return eval(annotation, dict(namespace))
        except Exception as failure:
            self.warn(f"{where}: the annotation {annotation!r} cannot be resolved ({failure}); anything is accepted")
            return _UNRESOLVED

    def shape(self, annotation: Any, where: str, namespace: Namespace | None = None) -> Shape:
        """The Shape of an annotation. where names the place for warnings."""
        namespace = self.namespace if namespace is None else namespace
        annotation = self.resolve(annotation, namespace, where)
        if annotation is _UNRESOLVED:
            return self.anything()
        if annotation is None:
            annotation = type(None)
        if annotation in _OPEN if _hashable(annotation) else False:
            return self.anything()
        simple = SIMPLE.get(annotation) if _hashable(annotation) else None
        if simple is not None:
            return simple()
        try:
            found = self._compound(annotation, where, namespace)
        except RecursionError:
            raise
        except Exception as failure:
            self.warn(f"{where}: {_name(annotation)} cannot be described ({type(failure).__name__}: {failure}); "
                      "anything is accepted")
            return self.anything()
        if found is not None:
            return found
        self.warn(f"{where}: {_name(annotation)} has no form in JSON; anything is accepted")
        return self.anything()

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
        if getattr(origin, "_name", None) == "Literal" or origin is typing.Literal:
            return self._literal(args)
        if origin in _UNIONS:
            return self._union(args, where, namespace)
        if getattr(annotation, "_name", None) == "LiteralString":
            return SIMPLE[str]()
        if hasattr(annotation, "__supertype__"):
            return self.shape(annotation.__supertype__, where, namespace)
        if isinstance(annotation, typing.TypeVar):
            if annotation.__bound__ is not None:
                return self.shape(annotation.__bound__, where, namespace)
            if annotation.__constraints__:
                return self._union(annotation.__constraints__, where, namespace)
            return self.anything()
        if type(annotation).__name__ == "TypeAliasType":
            return self._named(annotation, where, lambda: self.shape(annotation.__value__, where, namespace))
        base = origin if origin is not None else annotation
        if base is tuple:
            return self._tuple(args, where, namespace)
        if base in _LISTS:
            return self._list(args, where, namespace, list)
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
        if issubclass(base, enum.Enum):
            return self._enum(base)
        if typing.is_typeddict(base) or type(base).__name__ == "_TypedDictMeta":
            return self._named(base, where, lambda: self._typed_dict(base, where))
        if hasattr(base, "model_json_schema") and hasattr(base, "model_validate"):
            return self._pydantic(base)
        if hasattr(base, "parse_obj") and hasattr(base, "schema"):
            return self._pydantic(base, old=True)
        if dataclasses.is_dataclass(base):
            return self._named(base, where, lambda: self._dataclass(base, where))
        if issubclass(base, tuple) and hasattr(base, "_fields"):
            return self._named(base, where, lambda: self._named_tuple(base, where))
        if issubclass(base, pathlib.PurePath):
            make = base if base not in (pathlib.PurePath, pathlib.Path) else pathlib.Path
            return Shape({"type": "string", "format": "path"}, "path", is_text, from_text(make, "path"), order=7)
        for parent in (bool, int, float, str, dict, list):
            if issubclass(base, parent) and base is not parent:
                inner = self.shape(parent, where, namespace)
                return Shape(inner.schema, inner.expected, inner.fits, lambda v, at: base(v), order=inner.order)
        return None

    def _annotated(self, annotation: Any, where: str, namespace: Namespace) -> Shape:
        inner = self.shape(annotation.__origin__, where, namespace)
        extra: Schema = {}
        for note in annotation.__metadata__:
            if isinstance(note, str):
                extra.setdefault("description", note)
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
        for value in args:
            if isinstance(value, enum.Enum):
                pairs.append((value.value, value))
            else:
                pairs.append((value, value))
        return choice(pairs, "one of the listed values")

    def _enum(self, base: type[enum.Enum]) -> Shape:
        members = list(base)
        if all(type(member.value) in JSON_TYPES for member in members):
            shape = choice([(member.value, member) for member in members], f"a value of {base.__name__}")
        else:
            # A str or int subclass as a value is fine, anything else goes by name.
            if all(isinstance(member.value, (str, int, float)) for member in members):
                kind = str if isinstance(members[0].value, str) else None
                pairs = [(str(m.value) if kind else plain(m.value), m) for m in members]
                shape = choice(pairs, f"a value of {base.__name__}")
            else:
                shape = choice([(member.name, member) for member in members], f"the name of a {base.__name__}")
                shape.dump = lambda value, path: value.name if isinstance(value, base) else value
        return shape

    def _union(self, args: Iterable[Any], where: str, namespace: Namespace) -> Shape:
        shapes: list[Shape] = []
        literals: list[Any] = []
        first_literal = 0
        for arg in args:
            arg = self.resolve(arg, namespace, where)
            if arg is _UNRESOLVED:
                return self.anything()
            if typing.get_origin(arg) is typing.Literal:
                if not literals:
                    first_literal = len(shapes)
                literals.extend(typing.get_args(arg))
                continue
            shapes.append(self.shape(arg, where, namespace))
        if literals:
            shapes.insert(first_literal, self._literal(literals))
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
                for type_ in (int, float)
                if any(shape.schema.get("type") == JSON_TYPES[type_] and "enum" not in shape.schema for shape in shapes)
            }

            def load(value: JSON, at: str) -> Any:
                if type(value) in exact:
                    return value
                deepest: Mismatch | None = None
                for shape in ordered:
                    if not shape.fits(value):
                        continue
                    if shape.load is None:
                        return value
                    try:
                        return shape.load(value, at)
                    except Mismatch as failure:
                        if deepest is None or len(failure.pointer) > len(deepest.pointer):
                            deepest = failure
                raise deepest or Mismatch(at, expected, describe(value))

        dump: Dump | None = None
        if any(shape.dump for shape in shapes):

            def dump(value: Any, path: str) -> Any:
                for shape in shapes:
                    if shape.dump is not None:
                        value = shape.dump(value, path)
                return value

        return Shape(schema, expected, fits, load, dump, order=min(shape.order for shape in shapes))

    def _list(
        self, args: Sequence[Any], where: str, namespace: Namespace, make: Callable[[list[Any]], Collection[Any]]
    ) -> Shape:
        item = self.shape(args[0], where, namespace) if args else self.anything()
        schema: Schema = {"type": "array", "items": item.schema}

        def load(value: JSON, at: str) -> Any:
            if type(value) is not list:
                raise Mismatch(at, "array", describe(value))
            if item.load is not None:
                step = item.load
                value = [step(one, f"{at}/{index}") for index, one in enumerate(value)]
            return value if make is list else make(value)

        dump: Dump | None = None
        write = item.dump
        if write is not None:

            def dump(value: Any, path: str) -> Any:
                if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
                    return [write(one, path) for one in value]
                return value

        needs = item.load is not None or make is not list
        return Shape(schema, "array", lambda v: type(v) is list, load if needs else None, dump)

    def _tuple(self, args: Sequence[Any], where: str, namespace: Namespace) -> Shape:
        if not args:
            return Shape({"type": "array", "items": {}}, "array", lambda v: type(v) is list, lambda v, at: tuple(v))
        if len(args) == 2 and args[1] is Ellipsis:
            return self._list(args[:1], where, namespace, tuple)
        items = [self.shape(arg, where, namespace) for arg in args]
        return self._positions(items, len(items), tuple)

    def _positions(self, items: list[Shape], least: int, make: Callable[[Iterable[Any]], tuple[Any, ...]]) -> Shape:
        schema: Schema = {
            "type": "array",
            "prefixItems": [item.schema for item in items],
            "items": False,
            "minItems": least,
            "maxItems": len(items),
        }
        words = f"array of {len(items)} items" if least == len(items) else f"array of {least} to {len(items)} items"

        def load(value: JSON, at: str) -> Any:
            if type(value) is not list or not least <= len(value) <= len(items):
                got = describe(value) if type(value) is not list else f"array of {len(value)} items"
                raise Mismatch(at, words, got)
            return make(
                item.load(one, f"{at}/{index}") if item.load is not None else one
                for index, (item, one) in enumerate(zip(items, value, strict=False))
            )

        dump: Dump | None = None
        if any(item.dump for item in items):

            def dump(value: Any, path: str) -> Any:
                if isinstance(value, (list, tuple)) and len(value) <= len(items):
                    pairs = zip(items, value, strict=False)
                    return [item.dump(one, path) if item.dump else one for item, one in pairs]
                return value

        return Shape(schema, words, lambda v: type(v) is list and least <= len(v) <= len(items), load, dump)

    def _dict(self, args: Sequence[Any], where: str, namespace: Namespace, base: type[Any]) -> Shape:
        keys = self.shape(args[0], where, namespace) if len(args) == 2 else SIMPLE[str]()
        value_shape = self.shape(args[1], where, namespace) if len(args) == 2 else self.anything()
        schema: Schema = {"type": "object", "additionalProperties": value_shape.schema or True}
        if "enum" in keys.schema and all(isinstance(one, str) for one in keys.schema["enum"]):
            schema["propertyNames"] = {"enum": keys.schema["enum"]}

        def load_key(text: str, at: str) -> Any:
            if keys.schema.get("type") in ("integer", "number", "boolean"):
                try:
                    number = {"true": True, "false": False}[text] if keys.schema["type"] == "boolean" else (
                        int(text) if keys.schema["type"] == "integer" else float(text)
                    )
                except (ValueError, KeyError):
                    raise Mismatch(at, f"a key that is {keys.expected}", describe(text)) from None
                return keys.load(number, at) if keys.load else number
            return keys.load(text, at) if keys.load else text

        plain_keys = keys.schema.get("type") not in ("integer", "number", "boolean") and keys.load is None

        def load(value: JSON, at: str) -> dict[Any, Any]:
            if type(value) is not dict:
                raise Mismatch(at, "object", describe(value))
            return {
                key if plain_keys else load_key(key, pointer(at, key)): value_shape.load(one, pointer(at, key))
                if value_shape.load
                else one
                for key, one in value.items()
            }

        dump: Dump | None = None
        write = value_shape.dump
        if write is not None:

            def dump(value: Any, path: str) -> Any:
                if isinstance(value, abc.Mapping):
                    return {key: write(one, path) for key, one in value.items()}
                return value

        needs = value_shape.load is not None or not plain_keys
        return Shape(schema, "object", lambda v: type(v) is dict, load if needs else None, dump, order=6)

    def _named(self, base: Any, where: str, build: Callable[[], Shape]) -> Shape:
        """Builds the Shape of something that may refer to itself: what does
        becomes a $ref, what does not stays inline."""
        if base in self._open:
            self._recursive.add(base)
            return self._open[base]
        name = self._names.get(base)
        if name is None:
            name = _name(base)
            taken = set(self._names.values())
            plain, count = name, 1
            while name in taken:
                count += 1
                name = f"{plain}_{count}"
            self._names[base] = name
        reference: Schema = {"$ref": f"#/$defs/{name}"}
        made: Shape  # nothing calls the late Shape before this is set
        late = Shape(
            reference,
            name,
            lambda value: made.fits(value),
            lambda value, at: made.load(value, at) if made.load else value,
            lambda value, path: made.dump(value, path) if made.dump else value,
        )
        self._open[base] = late
        try:
            made = build()
        finally:
            del self._open[base]
        if base not in self._recursive:
            return made
        self.defs[name] = made.schema
        return Shape(reference, made.expected, made.fits, made.load, made.dump, made.order)

    def _fields(
        self,
        fields: list[Field],
        title: str,
        make: Callable[[dict[str, Any]], Any],
        read: Callable[[Any], Iterable[tuple[str, Any]]],
    ) -> tuple[Schema, Fits, Load, Dump | None]:
        """An object with named fields: [(name, Shape, required, extra schema)].

        Closed. make builds the Python value of a dict; read gives a field of it.
        """
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for name, shape, needed, extra in fields:
            properties[name] = {**shape.schema, **extra} if extra else shape.schema
            if needed:
                required.append(name)
        schema: Schema = {
            "type": "object", "properties": properties, "required": required, "additionalProperties": False
        }
        if not required:
            del schema["required"]
        known = {name: shape for name, shape, _, _ in fields}
        least = frozenset(required)

        def fits(value: JSON) -> bool:
            return type(value) is dict and least <= value.keys() and value.keys() <= known.keys()

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

    def _typed_dict(self, base: Any, where: str) -> Shape:
        namespace = {**self.namespace, **_module_names(base)}
        _, texts = parse_docstring(inspect.getdoc(base) if base.__doc__ else "")
        annotations: dict[str, Any] = {}
        for parent in reversed(_typed_dict_parents(base)):
            annotations.update(_annotations(parent))
        keys = getattr(base, "__required_keys__", None)
        fields: list[Field] = []
        for name, annotation in annotations.items():
            resolved = self.resolve(annotation, namespace, f"{where}.{name}")
            marker = getattr(typing.get_origin(resolved), "_name", None)
            if marker == "Required":
                needed = True
            elif marker == "NotRequired":
                needed = False
            else:
                # __required_keys__ misses what a text annotation says, hence the two above.
                needed = name in keys if keys is not None else getattr(base, "__total__", True)
            shape = self.anything() if resolved is _UNRESOLVED else self.shape(resolved, f"{where}.{name}", namespace)
            extra = {"description": texts[name]} if name in texts and "description" not in shape.schema else {}
            fields.append((name, shape, needed, extra))
        schema, fits, load, dump = self._fields(
            fields, base.__name__, lambda made: made,
            lambda value: value.items() if isinstance(value, abc.Mapping) else (),
        )
        needs = any(shape.load for _, shape, _, _ in fields)
        return Shape(
            schema, f"object {base.__name__}", fits, load if needs else None, dump_only(abc.Mapping, dump)
        )

    def _dataclass(self, base: Any, where: str) -> Shape:
        namespace = {**self.namespace, **_module_names(base)}
        _, texts = parse_docstring(inspect.getdoc(base) if base.__doc__ else "")
        fields: list[Field] = []
        for field in dataclasses.fields(base):
            if not field.init:
                continue
            shape = self.shape(field.type, f"{where}.{field.name}", namespace)
            needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            extra: Schema = {}
            text = field.metadata.get("description") if field.metadata else None
            text = text if isinstance(text, str) else texts.get(field.name)
            if text and "description" not in shape.schema:
                extra["description"] = text
            if field.default is not dataclasses.MISSING:
                _show_default(field.default, shape, extra)
            fields.append((field.name, shape, needed, extra))

        def make(made: dict[str, Any]) -> Any:
            return base(**made)

        names = [field.name for field in dataclasses.fields(base)]
        schema, fits, load, dump = self._fields(
            fields, base.__name__, make,
            lambda value: [(name, getattr(value, name)) for name in names],
        )
        return Shape(schema, f"object {base.__name__}", fits, guard(load, base), dump_only(base, dump))

    def _named_tuple(self, base: Any, where: str) -> Shape:
        namespace = {**self.namespace, **_module_names(base)}
        annotations = _annotations(base)
        items = []
        for name in base._fields:
            shape = self.shape(annotations.get(name, typing.Any), f"{where}.{name}", namespace)
            items.append(Shape({**shape.schema, "title": name}, shape.expected, shape.fits, shape.load, shape.dump))
        least = len(base._fields) - len(getattr(base, "_field_defaults", {}))
        return self._positions(items, least, lambda values: base(*values))

    def _pydantic(self, base: Any, old: bool = False) -> Shape:
        schema: Schema = dict(base.schema() if old else base.model_json_schema())
        rename: dict[str, str] = {}
        for name, inner in (schema.pop("definitions" if old else "$defs", None) or {}).items():
            target = name
            while target in self.defs and self.defs[target] != inner:
                target += "_"
            rename[name] = target
            self.defs[target] = inner
        prefix = "#/definitions/" if old else "#/$defs/"
        schema = rewrite(schema, prefix, rename)
        for target in rename.values():
            self.defs[target] = rewrite(self.defs[target], prefix, rename)
        validate = base.parse_obj if old else base.model_validate

        def load(value: JSON, at: str) -> Any:
            try:
                return validate(value)
            except Exception as failure:
                problems = failure.errors() if hasattr(failure, "errors") else []
                if not problems:
                    raise
                first = problems[0]
                place = at
                for step in first.get("loc", ()):
                    place = pointer(place, step)
                raise Mismatch(
                    place, str(first.get("type", base.__name__)), describe(first.get("input", value)), first.get("msg")
                ) from None

        required = frozenset(schema.get("required", ()))

        def fits(value: JSON) -> bool:
            return type(value) is dict and required <= value.keys()

        return Shape(schema, f"object {base.__name__}", fits, load)


def _hashable(value: object) -> bool:
    try:
        hash(value)
        return True
    except TypeError:
        return False


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


def _module_names(base: type[Any]) -> Namespace:
    module = sys.modules.get(base.__module__)
    names = dict(vars(module)) if module is not None else {}
    names.setdefault(base.__name__, base)
    return names


def _typed_dict_parents(base: type[Any]) -> list[type[Any]]:
    found = [base]
    for parent in getattr(base, "__orig_bases__", ()):
        if isinstance(parent, type) and type(parent) is type(base):
            found.extend(_typed_dict_parents(parent))
    return found


def _annotations(base: Any) -> dict[str, Any]:
    """The class's own annotations, unresolved names left as they are."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return dict(annotationlib.get_annotations(base, format=annotationlib.Format.FORWARDREF))
    return dict(base.__dict__.get("__annotations__") or getattr(base, "__annotations__", None) or {})


def _show_default(value: Any, shape: Shape, extra: Schema) -> None:
    """Puts a default into the schema when JSON can carry it unchanged."""
    import json

    try:
        if isinstance(value, enum.Enum) and "enum" in shape.schema:
            value = value.value if value.value in shape.schema["enum"] else value.name
        elif shape.dump is not None:
            value = shape.dump(value, "default")
        shown = json.loads(encode(value))
    except Exception:
        return
    if len(str(shown)) <= 2000:
        extra["default"] = shown


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
    documented = function
    if not (function.__doc__ or inspect.isfunction(function) or inspect.isclass(function)):
        documented = inner
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
                fields = shape.schema.get("properties", {})
                properties.update(fields)
                required.extend(shape.schema.get("required", ()))
                load = shape.load
                parameters.append(Parameter(name, "unpack", False, load))
                continue
            open_ended = shape.schema or True
            parameters.append(Parameter(name, kind, False, shape.load))
            continue
        if kind == "varargs":
            item = shape
            shape = Shape({"type": "array", "items": item.schema}, "array", load=None)
            shape.load = varargs(item)
        needed = parameter.default is _EMPTY and kind != "varargs"
        extra: Schema = {}
        if "description" not in shape.schema and texts.get(name):
            extra["description"] = texts[name]
        elif texts.get(name) and shape.schema.get("description") == "seconds":
            extra["description"] = f"{texts[name]} (seconds)"
        if parameter.default is not _EMPTY:
            _show_default(parameter.default, shape, extra)
        properties[name] = {**shape.schema, **extra} if extra else shape.schema
        if needed:
            required.append(name)
        parameters.append(Parameter(name, kind, needed, shape.load, parameter.default))
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = open_ended
    input_defs = dict(builder.defs)
    if input_defs:
        schema["$defs"] = input_defs

    output: Schema | None = None
    dump: Dump | None = None
    returns = found.return_annotation
    if returns is not inspect.Signature.empty:
        returns = builder.resolve(returns, namespace, "the return value")
        if typing.get_origin(returns) in _ITERATORS and kind_of(function) in ("generator", "async_generator"):
            arguments = typing.get_args(returns)
            returns = arguments[0] if arguments else _UNRESOLVED
        elif _is_stream(returns) and kind_of(function) in ("generator", "async_generator"):
            returns = _UNRESOLVED
        if returns is not _UNRESOLVED:
            builder.defs = {}
            builder._names = {}
            builder._recursive = set()
            shape = builder.shape(returns, "the return value")
            dump = shape.dump
            if shape.schema:
                output = dict(shape.schema)
                if builder.defs:
                    output["$defs"] = dict(builder.defs)
    return Signature(description, schema, output, parameters, dump, builder.warnings)


def _is_stream(annotation: Any) -> bool:
    return _hashable(annotation) and annotation in _ITERATORS


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
        return "async"
    if inspect.isgeneratorfunction(function):
        return "generator"
    return "sync"
