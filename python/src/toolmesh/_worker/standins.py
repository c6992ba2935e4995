"""Stand-ins for the classes that an index's source defines: the same names and
fields, made of the standard library's own parts, and none of their code.

A class that code could have given another form (a metaclass, a decorator that
is not known, a base that is not in the source, a method that says how it is
described) has no stand-in but an Unread.
"""

from __future__ import annotations

import abc
import ast
import collections
import dataclasses
import enum
import types
import typing

from .shapes import Unread
from .source import OPAQUE, FieldInfo, Marker, Missing, Note, Scope, union, unread

if typing.TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from .source import Reader

    Fields: TypeAlias = dict[Any, tuple[ast.expr, Any]]  # name -> (annotation, default or None)

# Methods by which a class says how it is made, described or carried.
_OWN_FORM = {
    "model_json_schema", "model_validate_json", "parse_obj", "schema", "__get_pydantic_core_schema__", "__fspath__",
    "__attrs_attrs__", "__init_subclass__", "__class_getitem__", "__supertype__", "__set_name__",
}
_ENUM_FORM = {"__new__", "__init__", "_generate_next_value_", "_ignore_", "_missing_value_", "__prepare__"}
_GENERIC = (typing.Generic, typing.Protocol)


class Maker:
    """Makes stand-ins, each once."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._made: dict[ast.AST, Any] = {}
        self.own: set[type[Any]] = set()
        self._records: set[type[Any]] = set()  # the TypedDicts and NamedTuples of own

    def make(self, scope: Scope, node: ast.ClassDef) -> Any:
        """The stand-in of a class, or an Unread."""
        if node not in self._made:
            self._made[node] = Unread(f"the class {node.name} is made of itself")
            try:
                found = self._class(scope, node)
            except Missing as failure:
                found = Unread(f"the class {node.name} cannot be read: {failure}")
            except Exception as failure:
                found = Unread(f"the class {node.name} cannot be read ({type(failure).__name__}: {failure})")
            self._made[node] = found
            if isinstance(found, type):
                found.__module__ = ""
                found.__qualname__ = found.__name__
                self.own.add(found)
        return self._made[node]

    def _class(self, scope: Scope, node: ast.ClassDef) -> Any:
        if getattr(node, "type_params", None):
            return Unread(f"the class {node.name} is generic")
        names = {one.name for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))}
        names |= {one.id for statement in node.body if isinstance(statement, (ast.Assign, ast.AnnAssign))
                  for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        bases = []
        for base in node.bases:
            found = self._reader._typed(base, scope)
            if isinstance(found, Unread):
                return Unread(f"the class {node.name} cannot be read: {found.why}")
            bases.append(found)
        if names & _OWN_FORM or any(isinstance(one, (ast.If, ast.For, ast.With, ast.Try)) for one in node.body):
            return Unread(f"the class {node.name} says by code what it is")
        keywords = {one.arg: one.value for one in node.keywords}
        if any(typing.get_origin(base) in _GENERIC or base in _GENERIC for base in bases):
            return Unread(f"the class {node.name} is generic")
        if typing.TypedDict in bases or any(isinstance(base, type) and typing.is_typeddict(base) for base in bases):
            if keywords.keys() <= {"total"} and not node.decorator_list:
                total = self._constant(keywords.get("total"), True)
                return self._typed_dict(scope, node.name, _doc(node), _annotated(node), total, bases)
        elif bases == [typing.NamedTuple] and not keywords and not node.decorator_list:
            return self._named_tuple(scope, node.name, _doc(node), _annotated(node))
        elif keywords:
            pass
        elif any(isinstance(base, type) and issubclass(base, enum.Enum) for base in bases):
            return self._enum(scope, node, bases, names)
        else:
            return self._plain(scope, node, bases)
        return Unread(f"the class {node.name} says by code what it is")

    def _constant(self, node: ast.expr | None, default: bool) -> bool:
        if node is None:
            return default
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return node.value
        raise TypeError(f"{ast.unparse(node)} is not read")

    # One kind of class each.

    def _typed_dict(
        self, scope: Scope, name: str, doc: str | None, fields: Fields, total: bool, bases: list[Any],
    ) -> Any:
        parents = [base for base in bases if base is not typing.TypedDict]
        if not all(base in self._records for base in parents):
            return Unread(f"the class {name} is made of more than the source says")
        make: Any = typing.TypedDict
        cls = make(name, {})  # filled below, it may refer to itself
        cls.__doc__ = doc
        self._records.add(cls)

        def fill() -> None:
            annotations: dict[str, Any] = {}
            required: set[str] = set()
            for parent in parents:
                annotations.update(parent.__annotations__)
                required |= parent.__required_keys__
            for key, (node, _) in fields.items():
                needed, inner = self._needed(node, scope, total)
                annotations[key] = inner
                required.discard(key)
                if needed:
                    required.add(key)
            cls.__annotations__ = annotations
            cls.__required_keys__ = frozenset(required)
            cls.__optional_keys__ = frozenset(annotations) - cls.__required_keys__

        self._reader.pending.append(fill)
        return cls

    def _needed(self, node: ast.expr, scope: Scope, needed: bool) -> tuple[bool, Any]:
        """Whether a key must be there, and its annotation without the words for that."""
        inner: ast.expr = node
        while True:
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                try:
                    inner = ast.parse(inner.value.strip(), mode="eval").body
                except (SyntaxError, ValueError):
                    break
                continue
            if not isinstance(inner, ast.Subscript):
                break
            try:
                base = self._reader.reference(inner.value, scope)
            except Missing:
                break
            word = base.name if isinstance(base, Marker) else getattr(base, "_name", None)
            if word not in ("Required", "NotRequired", "ReadOnly"):
                break
            needed = needed if word == "ReadOnly" else word == "Required"
            inner = inner.slice
        return needed, self._reader.annotation(inner, scope)

    def _named_tuple(self, scope: Scope, name: str, doc: str | None, fields: Fields) -> Any:
        defaults = [one for _, one in fields.values() if one is not None]
        make: Any = collections.namedtuple
        cls = make(name, list(fields), defaults=[OPAQUE] * len(defaults))
        if doc is not None:
            cls.__doc__ = doc
        self._records.add(cls)

        def fill() -> None:
            cls.__annotations__ = {key: self._reader.annotation(node, scope) for key, (node, _) in fields.items()}

        self._reader.pending.append(fill)
        return cls

    def _enum(self, scope: Scope, node: ast.ClassDef, bases: list[Any], names: set[str]) -> Any:
        if names & _ENUM_FORM or not _decorated_by(self._reader, scope, node, {enum.unique}):
            return Unread(f"the class {node.name} says by code what its values are")
        if any(base in self.own and not issubclass(base, enum.Enum) for base in bases):
            return Unread(f"the class {node.name} is made of more than the source says")
        metaclass: Any = types.prepare_class(node.name, tuple(bases))[0]
        namespace = metaclass.__prepare__(node.name, tuple(bases))
        near: dict[str, Any] = {}
        for one in node.body:
            if not isinstance(one, ast.Assign):
                continue
            value = self._member(one.value, Scope(scope.module, {**scope.near, **near}))
            if isinstance(value, Unread):
                return Unread(f"the values of {node.name} cannot be read from the source: {value.why}")
            for target in one.targets:
                if not isinstance(target, ast.Name):
                    return Unread(f"the class {node.name} says by code what its values are")
                namespace[target.id] = value
                near[target.id] = namespace[target.id]
        cls = metaclass(node.name, tuple(bases), namespace)
        if _doc(node) is not None:
            cls.__doc__ = _doc(node)
        return cls

    def _member(self, node: ast.expr, scope: Scope) -> Any:
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            if _is_auto(self._reader, node, scope):
                return enum.auto()
        found = self._reader.value(node, scope)
        known = isinstance(found, (bool, int, float, str, bytes, tuple, type(None))) and not isinstance(found, Note)
        return found if known else unread(node)

    def _plain(self, scope: Scope, node: ast.ClassDef, bases: list[Any]) -> Any:
        """A dataclass, or a class that is no more than its name."""
        if not all(isinstance(types.resolve_bases([base])[0], type) for base in bases):
            return Unread(f"the class {node.name} is made of more than the source says")
        real = types.resolve_bases(bases)
        if any(issubclass(base, tuple) and base in self._records for base in real):
            return Unread(f"the class {node.name} is made of more than the source says")
        made_by = _dataclass(self._reader, scope, node)
        if isinstance(made_by, Unread):
            return made_by
        namespace: dict[str, Any] = {"__doc__": _doc(node), "__annotations__": {}}
        if tuple(bases) != tuple(real):
            namespace["__orig_bases__"] = tuple(bases)
        metaclass = abc.ABCMeta if any(type(base) is abc.ABCMeta for base in real) else type
        cls = metaclass(node.name, tuple(real), namespace)
        if made_by is not None:
            self._reader.pending.append(lambda: self._fields(scope, node, cls, made_by))
        return cls

    def _fields(self, scope: Scope, node: ast.ClassDef, cls: Any, made_by: dict[str, bool]) -> None:
        annotations: dict[str, Any] = {}
        for name, (written, default) in _annotated(node).items():
            annotation = self._reader.annotation(written, scope)
            if default is not None:
                given = self._field(default, scope)
                if isinstance(given, Unread):
                    annotation, given = maybe(annotation, given), OPAQUE
                setattr(cls, name, given)
            annotations[name] = annotation
        cls.__annotations__ = annotations
        dataclasses.dataclass(**made_by)(cls)

    def _field(self, node: ast.expr, scope: Scope) -> Any:
        """The default of a dataclass's field, or the field() that stands there."""
        if not isinstance(node, ast.Call) or self._callee(node, scope) is not dataclasses.field:
            found = self._reader.value(node, scope)
            return OPAQUE if isinstance(found, (list, dict, set, FieldInfo)) else found
        given: dict[str, Any] = {}
        for one in node.keywords:
            value = self._reader.value(one.value, scope)
            if one.arg == "default":
                if isinstance(value, Unread):
                    return value
                given["default"] = value
            elif one.arg == "default_factory":
                given["default_factory"] = value if value in (list, dict, set, tuple, frozenset) else _made_by_code
            elif one.arg in ("init", "kw_only") and isinstance(value, bool):
                given[one.arg] = value
            elif one.arg == "metadata":
                given["metadata"] = value if isinstance(value, dict) else {}
            elif one.arg not in ("repr", "hash", "compare", "doc"):
                return unread(node)
        return dataclasses.field(**given)

    def _callee(self, node: ast.Call, scope: Scope) -> Any:
        try:
            return self._reader.reference(node.func, scope)
        except Missing:
            return None

    # What is called to make a type.

    def called(self, scope: Scope, name: str, node: ast.Call) -> Any:
        """The type that a call makes, which is assigned to name; or an Unread."""
        if node not in self._made:
            self._made[node] = Unread(f"{name} refers to itself")
            try:
                found = self._call(scope, node)
            except Exception as failure:
                found = unread(node, f"cannot be read from the source ({type(failure).__name__}: {failure})")
            self._made[node] = found
            if isinstance(found, type):
                found.__module__ = ""
                self.own.add(found)
        return self._made[node]

    def _call(self, scope: Scope, node: ast.Call) -> Any:
        callee: Any = self._reader.reference(node.func, scope)
        args, keywords = node.args, {one.arg: one.value for one in node.keywords}
        title = args[0].value if args and isinstance(args[0], ast.Constant) and isinstance(args[0].value, str) else None
        if title is None or None in keywords:
            return unread(node)
        if callee is typing.NewType and len(args) == 2:
            return callee(title, self._reader.annotation(args[1], scope))
        if callee is typing.TypeVar and keywords.keys() <= {"bound", "covariant", "contravariant"}:
            constraints = [self._reader.annotation(one, scope) for one in args[1:]]
            bound = self._reader.annotation(keywords["bound"], scope) if "bound" in keywords else None
            return callee(title, *constraints, bound=bound)
        pair = args[1] if len(args) == 2 else None
        if callee is typing.TypedDict and isinstance(pair, ast.Dict) and keywords.keys() <= {"total"}:
            fields: Fields = {one.value: (value, None) for one, value in zip(pair.keys, pair.values, strict=True)
                      if isinstance(one, ast.Constant)}
            if len(fields) == len(pair.keys):
                return self._typed_dict(scope, title, None, fields, self._constant(keywords.get("total"), True), [])
        if callee is typing.NamedTuple and isinstance(pair, (ast.List, ast.Tuple)) and not keywords:
            fields = {one.elts[0].value: (one.elts[1], None) for one in pair.elts
                      if isinstance(one, ast.Tuple) and len(one.elts) == 2 and isinstance(one.elts[0], ast.Constant)}
            if len(fields) == len(pair.elts):
                return self._named_tuple(scope, title, None, fields)
        if callee is collections.namedtuple and pair is not None and keywords.keys() <= {"defaults"}:
            values = [self._reader.value(one, scope) for one in [pair, *keywords.values()]]
            if isinstance(values[0], (str, list, tuple)) and all(isinstance(one, (list, tuple)) for one in values[1:]):
                return callee(title, values[0], defaults=values[1] if len(values) > 1 else None)
        if isinstance(callee, type) and issubclass(callee, enum.Enum) and pair is not None and not keywords:
            members: Any = self._reader.value(pair, scope)
            if isinstance(members, (str, list, tuple, dict)) and callee not in self.own:
                functional: Any = callee
                return functional(title, members)
        return unread(node)

    def alias(self, scope: Scope, node: Any) -> Any:
        """type X = ..."""
        if node.type_params:
            return Unread(f"{node.name.id} is generic")
        inner = self._reader.annotation(node.value, scope)
        made = getattr(typing, "TypeAliasType", None)
        return inner if made is None or isinstance(inner, Unread) else made(node.name.id, inner)


def maybe(annotation: Any, why: Unread) -> Any:
    """The annotation of what has a default that is not known: null it may take too."""
    if isinstance(annotation, Unread):
        return annotation
    form: Any = typing.Annotated
    return form[union(annotation, None), why]


def _made_by_code() -> Any:
    """In the place of a default_factory of the index's own; never called."""
    raise NotImplementedError


def _doc(node: ast.ClassDef) -> str | None:
    return ast.get_docstring(node, clean=False)


def _annotated(node: ast.ClassDef) -> dict[str, tuple[ast.expr, Any]]:
    """The annotated names of a class's body: (annotation, default or None)."""
    return {
        one.target.id: (one.annotation, one.value)
        for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }


def _decorated_by(reader: Reader, scope: Scope, node: ast.ClassDef, known: set[Callable[..., Any]]) -> bool:
    """Whether all decorators of a class are of those that are known."""
    for one in node.decorator_list:
        try:
            found = reader.reference(one, scope)
        except Missing:
            return False
        if not any(found is each for each in known):
            return False
    return True


def _dataclass(reader: Reader, scope: Scope, node: ast.ClassDef) -> dict[str, bool] | Unread | None:
    """What @dataclass is given above a class, None without one."""
    made: dict[str, bool] | None = None
    for one in node.decorator_list:
        called = isinstance(one, ast.Call)
        callee = reader.reference(one.func if isinstance(one, ast.Call) else one, scope)
        if callee is dataclasses.dataclass:
            made = {}
            for word in one.keywords if isinstance(one, ast.Call) else ():
                if not isinstance(word.value, ast.Constant) or not isinstance(word.value.value, bool):
                    return unread(one)
                if word.arg in ("kw_only", "init"):
                    made[word.arg] = word.value.value
        elif called or callee is not typing.final:
            return Unread(f"the class {node.name} is made by @{ast.unparse(one)}")
    return made


def _is_auto(reader: Reader, node: ast.Call, scope: Scope) -> bool:
    try:
        return reader.reference(node.func, scope) is enum.auto
    except Missing:
        return False
