"""Descriptions of tools read from an index's source, for those that cannot be imported.

Files are parsed; no code of the index, and none of its dependencies, runs here. What is read of a function is its
name, its docstring and its parameters, with the types that are plain: those of the standard library, and what is put
together of them. Everything else is open, with a warning: a schema made here takes all that the import's would take.

Run as `python -I -S`, so that nothing but the standard library is on the path.
"""

from __future__ import annotations

import ast
import builtins
import collections
import collections.abc
import datetime
import decimal
import inspect
import os
import pathlib
import sys
import types
import typing
import uuid
import warnings

from . import binding, schema
from .docstring import parse as parse_docstring
from .shapes import Unread
from .values import encode

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, TypeAlias

    from ..wire.frames import JSON

    Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

LARGEST_FILE = 2 << 20  # bytes
LARGEST = 1 << 20  # bytes of one description
_REEXPORTS = 10  # imports that are followed to a function
# Modules whose classes and special forms mean what they mean here, and the builtins that annotations are made of.
_KNOWN: dict[str, Any] = {one.__name__: one for one in (
    typing, collections, collections.abc, datetime, decimal, pathlib, uuid)} | {"typing_extensions": typing}
_BUILTINS = {"str", "int", "float", "bool", "bytes", "list", "dict", "tuple", "set", "frozenset", "object"}
_OPAQUE: Any = object()  # a default that JSON does not carry


def main(root: str, names: Sequence[str]) -> None:
    """Writes the descriptions of the tools that the source has, as JSON, to stdout."""
    warnings.simplefilter("ignore")
    catalogue = Catalogue([root, os.path.join(root, "src")])
    described = [encode(one) for one in map(catalogue.describe, names) if one is not None]
    sys.stdout.buffer.write(b'{"tools":[' + b",".join(one for one in described if len(one) <= LARGEST) + b"]}")
    sys.stdout.buffer.flush()


class Module:
    """One file, parsed: what it binds to its names."""

    def __init__(self, name: str, package: bool, tree: ast.Module) -> None:
        self.name = name
        self.package = package
        self.functions: dict[str, Function] = {}
        self.imports: dict[str, str] = {}  # name -> the full name of what it stands for
        self.modules: set[str] = set()  # those of imports that stand for a module, whatever it is
        self.others: set[str] = set()  # bound by anything else
        for statement in _flat(tree.body):
            self._bind(statement)

    def _bind(self, statement: ast.stmt) -> None:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name = statement.name
            if statement.col_offset and (name in self.functions or name in self.imports):
                self._other(name)  # which of them it is, the import decides
                return
            self._forget(name)
            self.functions[name] = statement
        elif isinstance(statement, ast.ImportFrom):
            package = self.name if self.package else self.name.rpartition(".")[0]
            for _ in range(statement.level - 1):
                package = package.rpartition(".")[0]
            home = ".".join(filter(None, (package, statement.module))) if statement.level else statement.module or ""
            for one in statement.names:
                for name in getattr(_KNOWN.get(home), "__all__", ()) if one.name == "*" else (one.name,):
                    self._import(one.asname or name, f"{home}.{name}")
        elif isinstance(statement, ast.Import):
            for one in statement.names:
                first = one.name.partition(".")[0]
                self._import(one.asname or first, one.name if one.asname else first)
                self.modules.add(one.asname or first)
        else:
            for node in [statement] if isinstance(statement, ast.ClassDef) else ast.walk(statement):
                if isinstance(node, ast.ClassDef):
                    self._other(node.name)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    self._other(node.id)

    def _forget(self, name: str) -> None:
        self.functions.pop(name, None)
        self.imports.pop(name, None)

    def _import(self, name: str, full: str) -> None:
        if self.imports.get(name, "").partition(".")[0] in _KNOWN:
            return  # what `except ImportError` has in its place
        self._forget(name)
        self.imports[name] = full

    def _other(self, name: str) -> None:
        self._forget(name)
        self.others.add(name)


def _flat(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that an import meets, whatever conditions hold but TYPE_CHECKING."""
    for one in statements:
        if isinstance(one, ast.If) and ast.unparse(one.test).endswith("TYPE_CHECKING"):
            yield from _flat(one.orelse)
        elif isinstance(one, (ast.If, ast.Try, ast.With)):
            for inner in (one.body, getattr(one, "orelse", ()), getattr(one, "finalbody", ())):
                yield from _flat(inner)
            for handler in getattr(one, "handlers", ()):
                yield from _flat(handler.body)
        else:
            yield one


class Catalogue:
    """Describes the functions below some folders, of which the first has them first, and the others in it. No link
    leads out of that."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._modules: dict[str, Module | None] = {}

    def describe(self, name: str) -> dict[str, JSON] | None:
        """What the source says of module.function, as the zygote describes it;
        None when there is no such name, or no source that can be read."""
        full = name
        try:
            for _ in range(_REEXPORTS):
                home, _, attribute = full.rpartition(".")
                module = self._module(home)
                if module is None:
                    return None if full == name else _open(name, f"it comes from {home}, which is not in the source")
                function = module.functions.get(attribute)
                if function is not None:
                    return _function(name, module, function)
                if attribute in module.others:
                    return _open(name, f"{attribute} is no function that its source shows")
                if attribute not in module.imports or attribute in module.modules:
                    break
                full = module.imports[attribute]
                if self._module(full) is not None:
                    break  # a module
        except (RecursionError, MemoryError):
            pass
        return None

    def _module(self, name: str) -> Module | None:
        if name not in self._modules:
            self._modules[name] = self._parse(name)
        return self._modules[name]

    def _parse(self, name: str) -> Module | None:
        if not all(map(str.isidentifier, name.split("."))):
            return None
        for folder in self._folders:
            for package in (True, False):
                path = os.path.join(folder, *name.split("."), *["__init__"] * package) + ".py"
                try:
                    real = os.path.realpath(path)
                    within = real.startswith(os.path.join(os.path.realpath(self._folders[0]), ""))
                    if within and os.path.isfile(real):
                        with open(real, "rb") as file:
                            if len(text := file.read(LARGEST_FILE + 1)) <= LARGEST_FILE:
                                return Module(name, package, ast.parse(text))
                except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                    continue
        return None


def _function(name: str, module: Module, node: Function) -> dict[str, JSON]:
    kind = _kind(node)
    if node.decorator_list:
        text = ast.unparse(node.decorator_list[0])
        return _open(name, f"what @{text} makes of {node.name} cannot be read", ast.get_docstring(node) or "", kind)
    return schema.signature(_stub(module, node), kind).as_dict(name, kind)


def _open(name: str, why: str, doc: str = "", kind: str = "sync") -> dict[str, JSON]:
    """The description of a tool of which no more than its name, and perhaps its documentation, is known."""
    warnings = [f"nothing is known of its arguments: {why}"]
    return binding.Signature(parse_docstring(doc)[0], {"type": "object"}, None, [], None, warnings).as_dict(name, kind)


def _kind(node: Function) -> str:
    """How a function is run, as schema.kind_of says it."""
    asynchronous = isinstance(node, ast.AsyncFunctionDef)
    if _yields(node.body):
        return "async_generator" if asynchronous else "generator"
    return "async" if asynchronous else "sync"


def _yields(nodes: Iterable[ast.AST]) -> bool:
    """Whether one of these yields, functions and classes in them left out."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    return any(
        isinstance(one, (ast.Yield, ast.YieldFrom)) or _yields(ast.iter_child_nodes(one))
        for one in nodes if not isinstance(one, inner)
    )


# Signatures.


def _template() -> None:
    """Whose code stubs have: none."""


def _stub(module: Module, node: Function) -> Callable[..., Any]:
    """A function of the same signature and documentation, and no code."""
    kinds, arguments = inspect.Parameter, node.args
    normal = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(normal) - len(arguments.defaults)) + list(arguments.defaults)
    listed: list[tuple[ast.arg | None, Any, ast.expr | None]] = [
        (one, kinds.POSITIONAL_ONLY if one in arguments.posonlyargs else kinds.POSITIONAL_OR_KEYWORD, default)
        for one, default in zip(normal, defaults, strict=True)
    ]
    listed.append((arguments.vararg, kinds.VAR_POSITIONAL, None))
    listed += ((one, kinds.KEYWORD_ONLY, default)
               for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    listed.append((arguments.kwarg, kinds.VAR_KEYWORD, None))
    parameters = [_parameter(module, one, kind, default) for one, kind, default in listed if one is not None]
    returns = inspect.Signature.empty if node.returns is None else _annotation(module, node.returns)
    function: Any = types.FunctionType(_template.__code__, {"__builtins__": {}}, node.name)
    function.__doc__ = ast.get_docstring(node, clean=False)
    function.__signature__ = inspect.Signature(parameters, return_annotation=returns, __validate_parameters__=False)
    return typing.cast("Callable[..., Any]", function)


def _parameter(module: Module, node: ast.arg, kind: Any, default: ast.expr | None) -> inspect.Parameter:
    annotation: Any = inspect.Parameter.empty
    if node.annotation is not None:
        annotation = _annotation(module, node.annotation)
    given: Any = inspect.Parameter.empty
    if default is not None:
        try:
            given = ast.literal_eval(default)
        except (ValueError, TypeError, SyntaxError):
            given = _OPAQUE
            why = Unread(f"its default is not known: {_text(default)}")
            if isinstance(annotation, Unread) or annotation is inspect.Parameter.empty:
                annotation = annotation if node.annotation is not None else why
            else:  # the default may be None, and then null is taken
                annotation = typing.Annotated[typing.Optional[annotation], why]  # noqa: UP045 - of any annotation
    return inspect.Parameter(node.arg, kind, default=given, annotation=annotation)


# Annotations.


def _annotation(module: Module, node: ast.expr) -> Any:
    """What an annotation means where that is plain, or an Unread; never a text, which would be evaluated."""
    try:
        return _typed(module, node)
    except _NotPlain as failure:
        return Unread(f"{failure} is not read from the source")
    except Exception as failure:  # the standard library refuses it, as it would in the import
        return Unread(f"{_text(node)} cannot be read from the source ({failure})")


class _NotPlain(Exception):
    """Its text is the type that is not."""


def _typed(module: Module, node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return _typed(module, ast.parse(node.value.strip(), mode="eval").body)
        if node.value is None or node.value is ...:
            return node.value
    if isinstance(node, (ast.Name, ast.Attribute)):
        return _named(module, node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return typing.Union[_typed(module, node.left), _typed(module, node.right)]  # noqa: UP007 - of any two
    if isinstance(node, ast.Subscript):
        base = _named(module, node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if base is typing.Literal:
            return base[tuple(map(ast.literal_eval, parts))]
        if base is typing.Annotated:
            return base[tuple([_typed(module, parts[0]), *map(_note, parts[1:])])]
        made = tuple(_typed(module, part) for part in parts)
        return base[made if isinstance(node.slice, ast.Tuple) else made[0]]
    raise _NotPlain(_text(node))


def _named(module: Module, node: ast.expr) -> Any:
    full = ast.unparse(node)
    first, dot, rest = full.partition(".")
    if first in module.others or first in module.functions:
        raise _NotPlain(full)
    if first in module.imports:
        full = module.imports[first] + dot + rest
        home, _, name = full.rpartition(".")
        if home in _KNOWN and hasattr(_KNOWN[home], name):
            return getattr(_KNOWN[home], name)
    elif full in _BUILTINS:
        return getattr(builtins, full)
    raise _NotPlain(full)


def _note(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return Unread(f"what {_text(node)} says of it is not known without an import")


def _text(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) < 80 else text[:77] + "..."
