"""What an expression in an index's source means, without running it.

Names are followed through the index's modules to classes of the standard
library, which are taken as they are, and to the index's own, for which
stand-ins are made: classes that have the same fields and no code. Whatever is
not understood becomes an Unread with its reason, never a guess.
"""

from __future__ import annotations

import ast
import builtins
import collections
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import math
import os
import pathlib
import re
import sys
import types
import typing
import uuid

from .modules import Binding, Library, Module
from .shapes import Unread

if typing.TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Missing(Exception):
    """A name that an annotation uses and that nothing binds when it is run."""


class Scope:
    """Where an expression stands: its module, and what is bound nearer than that."""

    def __init__(self, module: Module, near: dict[str, Any] | None = None) -> None:
        self.module = module
        self.near = near or {}


class FunctionRef:
    """A def of the index."""

    def __init__(self, scope: Scope, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.scope = scope
        self.node = node


class Note:
    """A note of an annotation, by the attributes that matter: what Field(ge=1),
    Ge(1) or Len(1, 2) would be."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class FieldInfo(Note):
    """Pydantic's Field(...): in a default's place it holds the default."""

    default: Any = ...
    default_factory: Any = None


FieldInfo.__module__ = "pydantic.fields"  # what models.field_default knows it by


class Marker:
    """A word of typing_extensions that this Python's typing does not have."""

    def __init__(self, name: str) -> None:
        self.name = name


class Foreign:
    """A module, or something of one, that is not here to be read; name is its
    full name."""

    def __init__(self, name: str) -> None:
        self.name = name


OPAQUE: Any = Note()  # a default that is neither None nor anything that JSON carries

# Modules whose names mean what they mean here: nothing of an index changes them.
_KNOWN: dict[str, Any] = {
    "collections": collections, "collections.abc": collections.abc, "dataclasses": dataclasses, "datetime": datetime,
    "decimal": decimal, "enum": enum, "ipaddress": ipaddress, "math": math, "os": os, "pathlib": pathlib, "re": re,
    "sys": sys, "types": types, "typing": typing, "uuid": uuid, "builtins": builtins,
}
# What may be called with values that are in the source: they make values.
_MAKERS: set[Any] = {
    datetime.timedelta, datetime.date, datetime.datetime, datetime.time, decimal.Decimal, uuid.UUID, pathlib.Path,
    pathlib.PurePath, set, frozenset, dict, list, tuple, float, int, bool, ipaddress.IPv4Address, ipaddress.IPv6Address,
}
_NOTES: dict[str, tuple[str, ...]] = {
    "Ge": ("ge",), "Gt": ("gt",), "Le": ("le",), "Lt": ("lt",), "MultipleOf": ("multiple_of",),
    "MinLen": ("min_length",), "MaxLen": ("max_length",),
    "Len": ("min_length", "max_length"), "Interval": (), "doc": ("documentation",),
}
_PLAIN = (bool, int, float, str, bytes, type(None), enum.Enum)
_LIMIT = 1 << 64


def unread(node: ast.AST, why: str = "cannot be read from the source") -> Unread:
    """An Unread of a piece of source."""
    text = ast.unparse(node)
    return Unread(f"{text if len(text) < 80 else text[:77] + '...'} {why}")


class Reader:
    """Evaluates expressions of the modules of a library."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._found: dict[tuple[str, str, bool], Any] = {}
        self._under: set[tuple[str, str, bool]] = set()
        self.pending: list[Callable[[], None]] = []  # fields of classes, which may refer to classes
        from . import standins

        self._classes = standins.Maker(self)

    def settle(self) -> None:
        """Gives the classes that were made their fields."""
        while self.pending:
            fill = self.pending.pop(0)
            try:
                fill()
            except Exception:
                pass  # its import fails too; without fields it is a class of no form, which is open

    # Names.

    def lookup(self, module: Module, name: str, annotation: bool) -> Any:
        """What a name of a module is, as an annotation or as a value."""
        key = (module.name, name, annotation)
        if key in self._found:
            return self._found[key]
        if key in self._under:
            return Unread(f"{name} refers to itself")
        self._under.add(key)
        try:
            found = self._look(module, name, annotation)
        except Missing as failure:
            found = Unread(f"{name} cannot be read: {failure}")
        except RecursionError:
            found = Unread(f"{name} is nested too deep")
        finally:
            self._under.discard(key)
        return self._found.setdefault(key, found)

    def _look(self, module: Module, name: str, annotation: bool) -> Any:
        bindings = module.bindings.get(name)
        if not bindings:
            return self._elsewhere(module, name, annotation)
        if any(one.rebound and one.sure for one in bindings) and bindings[0].kind != "def":
            return Unread(f"{name} has more than one meaning in {module.name}")
        found = [self._meaning(module, name, one, annotation) for one in bindings]
        first = bindings[0]
        if first.tried and first.level == 0 and first.target in _KNOWN and not isinstance(found[0], Unread):
            return found[0]  # an import of what is there does not fail
        if all(_same(one, found[0]) for one in found):
            return found[0]
        return Unread(f"which {name} of {module.name} holds is decided by its import")

    def _elsewhere(self, module: Module, name: str, annotation: bool) -> Any:
        """What a module does not bind itself."""
        foreign = False
        for target, level in reversed(module.stars):
            full = self.library.absolute(module, target, level)
            inner = self.library.module(full) if full else None
            if inner is None:
                known = _KNOWN.get(full or "")
                if known is not None and not name.startswith("_") and hasattr(known, name):
                    return getattr(known, name)
                foreign = foreign or known is None
            elif inner is not module and not name.startswith("_"):
                try:
                    return self.lookup_strictly(inner, name, annotation)
                except Missing:
                    continue
        inner = self.library.module(f"{module.name}.{name}") if module.package else None
        if inner is not None:
            return inner
        if hasattr(builtins, name) and name not in module.hidden:
            return getattr(builtins, name)
        if foreign and name not in module.hidden:
            return Unread(f"where {name} comes from is not in the source")
        raise Missing(f"name {name!r} is not defined")

    def lookup_strictly(self, module: Module, name: str, annotation: bool) -> Any:
        """lookup, which raises Missing for what the module does not have: no builtins."""
        if name in module.bindings:
            return self.lookup(module, name, annotation)
        if name in module.hidden or hasattr(builtins, name) and not module.stars:
            raise Missing(f"name {name!r} is not defined")
        return self._elsewhere(module, name, annotation)

    def _meaning(self, module: Module, name: str, one: Binding, annotation: bool) -> Any:
        scope = Scope(module)
        if one.kind == "def":
            return FunctionRef(scope, one.node)
        if one.kind == "class":
            return self._classes.make(scope, one.node)
        if one.kind == "alias":
            return self._classes.alias(scope, one.node)
        if one.kind == "assign" and annotation:
            return self.assigned(scope, name, one.node)
        if one.kind == "assign":
            made = self._classes.called(scope, name, one.node) if isinstance(one.node, ast.Call) else None
            return made if isinstance(made, type) else self.value(one.node, scope, True)
        if one.kind == "module":
            return self._module(one.target)
        if one.kind == "import":
            return self._imported(module, one, annotation)
        return Unread(f"{name} is set by code")

    def _module(self, name: str) -> Any:
        if name in _KNOWN:
            return _KNOWN[name]
        return self.library.module(name) or Foreign(name)

    def _imported(self, module: Module, one: Binding, annotation: bool) -> Any:
        full = self.library.absolute(module, one.target, one.level)
        if full is None:
            return Unread(f"{one.node} is imported from beyond the index")
        if full == module.name:  # a package that imports a module of its own
            inner = self.library.module(f"{full}.{one.node}")
            return inner if inner is not None else Unread(f"{full} has no {one.node}")
        return self.member(self._module(full), one.node, annotation)

    def member(self, owner: Any, name: str, annotation: bool) -> Any:
        """owner.name, of what this module knows how to look into."""
        if isinstance(owner, Unread):
            return owner
        if isinstance(owner, Module):
            try:
                return self.lookup_strictly(owner, name, annotation)
            except Missing:
                inner = self.library.module(f"{owner.name}.{name}")
                return inner if inner is not None else Unread(f"{owner.name} has no {name}")
        if isinstance(owner, Foreign):
            full = f"{owner.name}.{name}"
            if owner.name == "typing_extensions":
                return getattr(typing, name, Marker(name))
            if owner.name in _KNOWN:
                return self.member(_KNOWN[owner.name], name, annotation)
            inner = self.library.module(full)
            return inner if inner is not None else Foreign(full)
        if any(owner is known for known in _KNOWN.values()):
            full = f"{owner.__name__}.{name}"
            return _KNOWN[full] if full in _KNOWN else getattr(owner, name, Unread(f"this Python has no {full}"))
        if isinstance(owner, type) and issubclass(owner, enum.Enum):
            member = owner.__members__.get(name)
            return member if member is not None else Unread(f"{owner.__name__} has no {name}")
        return Unread(f"what {name} is cannot be read from the source")

    def reference(self, node: ast.expr, scope: Scope, annotation: bool = True) -> Any:
        """What a dotted name means. Raises Missing for a name that nothing binds."""
        if isinstance(node, ast.Name):
            if node.id in scope.near:
                return scope.near[node.id]
            if node.id in scope.module.bindings:
                return self.lookup(scope.module, node.id, annotation)
            return self._elsewhere(scope.module, node.id, annotation)
        if isinstance(node, ast.Attribute):
            return self.member(self.reference(node.value, scope, annotation), node.attr, annotation)
        return unread(node)

    # Annotations.

    def annotation(self, node: ast.expr | None, scope: Scope) -> Any:
        """What an annotation means: something of typing, a class, a stand-in, or
        an Unread. Never a text, which somebody might evaluate."""
        if node is None:
            return Unread("nothing")
        try:
            return self._typed(node, scope)
        except Missing as failure:
            text = node.value if isinstance(node, ast.Constant) else ast.unparse(node)
            return Unread(f"the annotation {text!r} cannot be resolved ({failure})")
        except RecursionError:
            return Unread("the annotation is nested too deep")

    def _typed(self, node: ast.expr, scope: Scope) -> Any:
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self.quoted(node.value, scope)
            return node.value if node.value is None or node.value is ... else unread(node, "is no type")
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._as_type(self.reference(node, scope), node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return union(self._typed(node.left, scope), self._typed(node.right, scope))
        if isinstance(node, ast.Subscript):
            return self._subscript(node, scope)
        return unread(node)

    def quoted(self, text: str, scope: Scope) -> Any:
        """An annotation that is written as a text: its names are its own affair."""
        try:
            inner = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError) as failure:
            return Unread(f"the annotation {text!r} cannot be resolved ({failure})")
        try:
            return self._typed(inner, scope)
        except Missing as failure:
            return Unread(f"the annotation {text!r} cannot be resolved ({failure})")

    @staticmethod
    def _as_type(found: Any, node: ast.expr) -> Any:
        if isinstance(found, Foreign):
            return unread(node, f"comes from {found.name.rpartition('.')[0] or found.name}, which is not in the source")
        if isinstance(found, (str, Marker, FunctionRef, Module, Note, Binding)):
            return unread(node, "is no type that can be read from the source")
        return found

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        base = self._as_type(self.reference(node.value, scope), node.value)
        if isinstance(base, Unread):
            return base
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if base is typing.Literal:
            values = [self._literal(part, scope) for part in parts]
            literal: Any = typing.Literal
            return next((one for one in values if isinstance(one, Unread)), None) or literal[tuple(values)]
        if base is typing.Annotated and len(parts) > 1:
            inner = self._typed(parts[0], scope)
            notes = [self._note(part, scope) for part in parts[1:]]
            form: Any = typing.Annotated
            return form[tuple([inner, *notes])]
        # A type and nothing else: base may be any object of the standard library.
        generic = base is type or isinstance(base, type) and hasattr(base, "__class_getitem__")
        generic = generic or type(base).__module__ == "typing"
        if not generic or isinstance(base, type) and base in self._classes.own:
            return unread(node)
        args = [
            [self._typed(one, scope) for one in part.elts] if isinstance(part, ast.List) else self._typed(part, scope)
            for part in parts
        ]
        if isinstance(node.slice, ast.Tuple) and not parts:
            args = []
        try:
            return base[tuple(args) if len(args) != 1 else args[0]]
        except Exception as failure:
            return unread(node, f"cannot be read from the source ({failure})")

    def _literal(self, node: ast.expr, scope: Scope) -> Any:
        if isinstance(node, ast.Subscript):
            return self._typed(node, scope)
        found = self.value(node, scope)
        return found if isinstance(found, (*_PLAIN, Unread)) else unread(node)

    def _note(self, node: ast.expr, scope: Scope) -> Any:
        found = self.value(node, scope)
        if isinstance(found, (str, Note, dict)) and found is not OPAQUE:
            return found
        return unread(node, "is not read from the source: what it says of the value is not in the schema")

    def assigned(self, scope: Scope, name: str, node: ast.expr) -> Any:
        """What a name is as a type, which is assigned an expression."""
        if isinstance(node, ast.Call):
            return self._classes.called(scope, name, node)
        if isinstance(node, ast.Constant) and not isinstance(node.value, str) and node.value is not None:
            return unread(node, "is no type")
        return self._typed(node, scope)

    # Values.

    def value(self, node: ast.expr, scope: Scope, named: bool = False) -> Any:
        """The value of an expression; OPAQUE for one that is surely not None and
        that no schema shows. named: it is bound to a name, so what can be
        changed afterwards is not known."""
        try:
            found = self._value(node, scope)
        except (Missing, RecursionError, TypeError):  # the last of an unhashable in a set
            return unread(node)
        if named and isinstance(found, (list, dict, set)):
            return OPAQUE
        return found

    def _value(self, node: ast.expr, scope: Scope) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Name, ast.Attribute)):
            found = self.reference(node, scope, annotation=False)
            if isinstance(found, Foreign):
                return unread(node)
            plain = isinstance(found, (*_PLAIN, tuple, Unread, Note, FunctionRef)) or found is ...
            return found if plain or found in (dict, list, set, frozenset, tuple) else OPAQUE
        if isinstance(node, (ast.Lambda, ast.JoinedStr)):
            return OPAQUE
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            parts = [self._value(one, scope) for one in node.elts]
            if any(isinstance(one, (Unread, Note)) for one in parts):
                return OPAQUE  # whatever is in it, it is one
            return {ast.Tuple: tuple, ast.List: list, ast.Set: set}[type(node)](parts)
        if isinstance(node, ast.Dict):
            keys = [self._value(one, scope) if one is not None else OPAQUE for one in node.keys]
            values = [self._value(one, scope) for one in node.values]
            if any(isinstance(one, (Unread, Note)) for one in [*keys, *values]):
                return OPAQUE
            return dict(zip(keys, values, strict=True))
        if isinstance(node, ast.UnaryOp):
            return _unary(node, self._value(node.operand, scope))
        if isinstance(node, ast.BinOp):
            return _binary(node, self._value(node.left, scope), self._value(node.right, scope))
        if isinstance(node, ast.Call):
            return self._call(node, scope)
        return unread(node)

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        callee = self.reference(node.func, scope, annotation=False)
        args = [self._value(one, scope) for one in node.args]
        named = {one.arg: self._value(one.value, scope) for one in node.keywords if one.arg is not None}
        if isinstance(callee, Foreign):
            home, _, name = callee.name.rpartition(".")
            if len(named) < len(node.keywords) or any(isinstance(one, ast.Starred) for one in node.args):
                return unread(node)
            if name == "Field" and home.partition(".")[0] == "pydantic":
                return _field(node, args, named)
            if home == "annotated_types" and name in _NOTES and len(args) <= len(_NOTES[name]):
                given = {**dict(zip(_NOTES[name], args, strict=False)), **named}
                return unread(node) if any(isinstance(one, (Unread, Note)) for one in given.values()) else Note(**given)
            return unread(node)
        if isinstance(callee, type) and callee in _MAKERS and len(named) == len(node.keywords):
            if any(isinstance(one, (Unread, Note)) for one in [*args, *named.values()]):
                return OPAQUE  # one of these is made of whatever it is
            try:
                return callee(*args, **named)
            except Exception:
                return unread(node)
        return unread(node)


def _field(node: ast.Call, args: list[Any], named: dict[str, Any]) -> Any:
    made = FieldInfo()
    if args:
        made.default = args[0]
    factory = named.pop("default_factory", None)
    if factory is not None:
        made.default = factory() if factory in (list, dict, set, tuple, frozenset) else OPAQUE
    for name, one in named.items():
        if not isinstance(one, Unread) and one is not OPAQUE:
            setattr(made, name, one)
        elif name not in ("default_factory", "json_schema_extra"):
            return unread(node)
    return unread(node) if isinstance(made.default, Unread) else made


def union(one: Any, other: Any) -> Any:
    """one | other, of what need not be types."""
    form: Any = typing.Union
    return form[one, other]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (Unread, FunctionRef)):
        return one is other
    if isinstance(one, Foreign):
        return isinstance(other, Foreign) and one.name == other.name
    if isinstance(one, Marker):
        return isinstance(other, Marker) and one.name == other.name
    try:
        return one is other or type(one) is type(other) and bool(one == other)
    except Exception:
        return False


def _number(value: Any) -> bool:
    return type(value) in (int, float, bool) and -_LIMIT < value < _LIMIT


def _unary(node: ast.UnaryOp, value: Any) -> Any:
    if isinstance(value, (Unread, Note)):
        return OPAQUE  # whatever it is, None it is not
    if isinstance(node.op, ast.Not):
        return not value
    if not _number(value) or isinstance(node.op, ast.Invert):
        return OPAQUE
    return -value if isinstance(node.op, ast.USub) else +value


def _binary(node: ast.BinOp, left: Any, right: Any) -> Any:
    if _number(left) and _number(right):
        try:
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Sub):
                return left - right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.Div):
                return left / right
            if isinstance(node.op, ast.FloorDiv):
                return left // right
            if isinstance(node.op, ast.Pow) and 0 <= right <= 64 and abs(left) <= 1024:
                return left**right
            if isinstance(node.op, ast.LShift) and type(right) is int and 0 <= right <= 64 and type(left) is int:
                return left << right
        except ArithmeticError:
            return unread(node)
    if isinstance(node.op, ast.Add) and type(left) is str and type(right) is str:
        return left + right
    # What the operator of somebody's class gives may be anything.
    return OPAQUE if _number(left) and _number(right) else unread(node)
