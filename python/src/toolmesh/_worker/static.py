"""Descriptions of tools read from an index's source, for those that cannot be imported.

No code of the index, and none of its dependencies, runs here: files are parsed,
and what their annotations mean is worked out. The schemas come out of the same
Builder as those of an import. What reading cannot know is open, with a warning:
a schema made here takes everything that the import's would take.

Run as `python -I -S`, so that nothing but the standard library is on the path.
"""

from __future__ import annotations

import ast
import inspect
import os
import resource
import signal
import sys
import time
import types
import typing
import warnings

from . import schema
from .docstring import parse as parse_docstring
from .modules import Library, Module
from .shapes import Unread
from .source import OPAQUE, FieldInfo, Foreign, FunctionRef, Missing, Note, Reader, Scope
from .standins import maybe
from .values import encode

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .values import JSON

LARGEST = 1 << 20  # bytes of one description
MOST = 32 << 20  # bytes of all
MEMORY = 1 << 30  # bytes of this process's data
TIME = 3.0  # seconds of the processor for one tool
TIME_OF_ALL = 20.0  # seconds of all; the agent waits 30
RESTARTS = 30  # processes that may end over a tool, before the rest is left alone
_DEEPEST = 30  # decorators that are followed


def main(root: str, names: Sequence[str]) -> None:
    """Writes the descriptions of the tools that the source has, as JSON, to stdout."""
    warnings.simplefilter("ignore")
    folders = [root]
    if os.path.isdir(os.path.join(root, "src")):
        folders.append(os.path.join(root, "src"))
    end = time.monotonic() + TIME_OF_ALL
    described: list[bytes] = []
    room, at = MOST, 0
    for _ in range(RESTARTS):
        # A source can keep C code busy for ever, or end the parser: each time a
        # process of its own goes on behind the tool that it ended over.
        for line in _lines(folders, names[at:], end):
            at += 1
            if line and len(line) <= room:
                described.append(line)
                room -= len(line)
        at += 1
        if at >= len(names) or time.monotonic() > end:
            break
    sys.stdout.buffer.write(b'{"tools":[' + b",".join(described) + b"]}")
    sys.stdout.buffer.flush()


def _lines(folders: Sequence[str], names: Sequence[str], end: float) -> list[bytes]:
    """A line for each tool, in order, empty for one that has no description;
    fewer than the names when the process that makes them did not come further."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            catalogue = Catalogue(folders)
            with open(writer, "wb") as out:
                for name in names:
                    if time.monotonic() > end:
                        break
                    signal.setitimer(signal.ITIMER_PROF, TIME)  # not caught: it ends the process
                    made = catalogue.describe(name)
                    line = encode(made) if made is not None else b""
                    out.write((line if len(line) <= LARGEST else b"") + b"\n")
                    out.flush()
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as inp:
        data = inp.read()
    os.waitpid(child, 0)
    return data.split(b"\n")[:-1]


class Catalogue:
    """Describes the functions below some folders, of which the first has them first."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._library = Library(folders)
        self._reader = Reader(self._library)

    def forget(self) -> None:
        """Drops what is half worked out."""
        self._reader = Reader(self._library)

    def describe(self, name: str) -> dict[str, JSON] | None:
        """What the source says of module.function, as the zygote describes it;
        None when there is no such name, or no source that can be read."""
        try:
            return self._describe(name)
        except (RecursionError, MemoryError):
            self.forget()
            return None

    def _describe(self, name: str) -> dict[str, JSON] | None:
        home, _, attribute = name.rpartition(".")
        module = self._library.module(home)
        if module is None:
            return None
        try:
            found = self._reader.lookup_strictly(module, attribute, False)
        except Missing:
            return None
        if isinstance(found, Module) or any(one.kind == "module" for one in module.bindings.get(attribute, ())):
            return None
        if isinstance(found, FunctionRef):
            return self._function(name, found)
        why = found.why if isinstance(found, Unread) else f"{attribute} is no function that its source shows"
        if isinstance(found, Foreign):
            why = f"{attribute} comes from {found.name.rpartition('.')[0]}, which is not in the source"
        return _open(name, "", "sync", why)

    def _function(self, name: str, found: FunctionRef) -> dict[str, JSON]:
        kind = _kind(found.node)
        for decorator in reversed(found.node.decorator_list):
            after = self._decorated(found, decorator, kind)
            if after is None:
                why = f"what @{ast.unparse(decorator)} makes of {found.node.name} cannot be read from the source"
                return _open(name, ast.get_docstring(found.node) or "", kind, why)
            kind = after
        function = self._stand_in(found, kind)
        self._reader.settle()
        made = schema.signature(function)
        return {
            "name": name,
            "description": made.description,
            "input_schema": made.input_schema,
            "output_schema": made.output_schema,
            "kind": kind,
            "positional": [p.name for p in made.parameters if p.kind in ("positional", "normal")],
            "varargs": any(p.kind == "varargs" for p in made.parameters),
            "warnings": made.warnings,
        }

    # Decorators.

    def _decorated(self, found: FunctionRef, decorator: ast.expr, kind: str) -> str | None:
        """The kind of a function below a decorator that leaves its signature as
        it was; None for one of which that is not known."""
        call = decorator if isinstance(decorator, ast.Call) else None
        try:
            callee = self._reader.reference(call.func if call else decorator, found.scope, annotation=False)
        except Missing:
            return None
        if isinstance(callee, Foreign):
            if callee.name in ("functools.cache", "functools.lru_cache"):
                return "sync"
            if callee.name in ("warnings.deprecated", "typing_extensions.deprecated"):
                return kind if kind in ("sync", "async") else "sync"
            return None
        if any(callee is one for one in (typing.no_type_check, typing.final)):
            return kind
        return self._through(callee, call is not None, kind, 0) if isinstance(callee, FunctionRef) else None

    def _through(self, decorator: FunctionRef, called: bool, kind: str, deep: int) -> str | None:
        """_decorated for a decorator of the index's own: a function that returns
        what it is given, or an inner one that functools.wraps it."""
        node = decorator.node
        if deep > _DEEPEST or node.decorator_list or not isinstance(node, ast.FunctionDef) or _kind(node) != "sync":
            return None
        inner: dict[str, Any] = {}
        for one in ast.walk(node):
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and one is not node:
                inner[one.name] = None if one.name in inner else one
        results = [one.value for one in _own(node) if isinstance(one, ast.Return)]
        if not results or not _ends(node) or not all(isinstance(one, ast.Name) for one in results):
            return None
        names = {one.id for one in results if isinstance(one, ast.Name)}
        taken = [one.arg for one in [*node.args.posonlyargs, *node.args.args]]
        if called:
            made = inner.get(names.pop()) if len(names) == 1 else None
            return self._through(FunctionRef(decorator.scope, made), False, kind, deep + 1) if made else None
        if not taken or _stores(node, taken[0]):
            return None
        kinds = set()
        for name in names:
            if name == taken[0]:
                kinds.add(kind)
                continue
            wrapper = inner.get(name)
            if wrapper is None or not self._wraps(wrapper, taken[0], decorator.scope):
                return None
            kinds.add(_kind(wrapper))
        return kinds.pop() if len(kinds) == 1 else kind if kind in kinds else None

    def _wraps(self, wrapper: ast.FunctionDef, wrapped: str, scope: Scope) -> bool:
        """Whether its only decorator is functools.wraps(wrapped)."""
        if len(wrapper.decorator_list) != 1 or not isinstance(wrapper.decorator_list[0], ast.Call):
            return False
        call = wrapper.decorator_list[0]
        try:
            callee = self._reader.reference(call.func, scope, annotation=False)
        except Missing:
            return False
        given = call.args[0] if len(call.args) == 1 and not call.keywords else None
        named = isinstance(given, ast.Name) and given.id == wrapped
        return named and isinstance(callee, Foreign) and callee.name == "functools.wraps"

    # Signatures.

    def _stand_in(self, found: FunctionRef, kind: str) -> Callable[..., Any]:
        """A function of the same signature and documentation, and no code."""
        node = found.node
        near = dict(found.scope.near)
        for one in getattr(node, "type_params", ()):
            bound = getattr(one, "bound", None)
            if type(one).__name__ == "TypeVar" and not isinstance(bound, ast.Tuple):
                limit = self._reader.annotation(bound, found.scope) if bound is not None else None
                make: Any = typing.TypeVar
                near[one.name] = make(one.name, bound=limit)
            else:
                near[one.name] = Unread(f"{one.name} is a parameter of types")
        scope = Scope(found.scope.module, near)
        arguments = node.args
        normal = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(normal) - len(arguments.defaults)) + list(arguments.defaults)
        parameters = [
            self._parameter(one, inspect.Parameter.POSITIONAL_ONLY if place < len(arguments.posonlyargs)
                            else inspect.Parameter.POSITIONAL_OR_KEYWORD, default, scope)
            for place, (one, default) in enumerate(zip(normal, defaults, strict=True))
        ]
        if arguments.vararg is not None:
            parameters.append(self._parameter(arguments.vararg, inspect.Parameter.VAR_POSITIONAL, None, scope))
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            parameters.append(self._parameter(one, inspect.Parameter.KEYWORD_ONLY, default, scope))
        if arguments.kwarg is not None:
            parameters.append(self._parameter(arguments.kwarg, inspect.Parameter.VAR_KEYWORD, None, scope))
        returns = self._reader.annotation(node.returns, scope) if node.returns is not None else inspect.Signature.empty
        function: Any = types.FunctionType(_TEMPLATES[kind].__code__, {"__builtins__": {}}, node.name)
        function.__doc__ = ast.get_docstring(node, clean=False)
        function.__signature__ = inspect.Signature(parameters, return_annotation=returns, __validate_parameters__=False)
        return typing.cast("Callable[..., Any]", function)

    def _parameter(self, node: ast.arg, kind: Any, default: ast.expr | None, scope: Scope) -> inspect.Parameter:
        annotation = inspect.Parameter.empty
        if node.annotation is not None:
            annotation = self._reader.annotation(node.annotation, scope)
        given = inspect.Parameter.empty
        if default is not None:
            given = self._reader.value(default, scope)
            if isinstance(given, Unread):
                # It may be None, and then null is taken.
                why = Unread(f"its default is not known: {given.why}")
                annotation = maybe(annotation, why) if annotation is not inspect.Parameter.empty else annotation
                given = OPAQUE
            elif isinstance(given, FunctionRef) or isinstance(given, Note) and not isinstance(given, FieldInfo):
                given = OPAQUE
        return inspect.Parameter(node.arg, kind, default=given, annotation=annotation)


def _open(name: str, doc: str, kind: str, why: str) -> dict[str, JSON]:
    """The description of a tool of which no more than its name, and perhaps its
    documentation, is known."""
    return {
        "name": name, "description": parse_docstring(inspect.cleandoc(doc))[0], "input_schema": {"type": "object"},
        "output_schema": None, "kind": kind, "positional": [], "varargs": False,
        "warnings": [f"nothing is known of its arguments: {why}"],
    }


def _sync() -> None:
    """In the place of a plain function."""


def _generator() -> Any:
    yield


async def _async() -> None:
    """In the place of a coroutine."""


async def _async_generator() -> Any:
    yield


_TEMPLATES: dict[str, Any] = {
    "sync": _sync, "generator": _generator, "async": _async, "async_generator": _async_generator,
}


def _own(node: ast.AST) -> list[ast.AST]:
    """Everything inside a function that is not inside a function in it."""
    found: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(node))
    while todo:
        one = todo.pop()
        found.append(one)
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            todo.extend(ast.iter_child_nodes(one))
    return found


def _kind(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """How a function is run, as schema.kind_of says it."""
    yields = any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for one in node.body for inner in [one, *_own(one)]
                 if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)))
    if isinstance(node, ast.AsyncFunctionDef):
        return "async_generator" if yields else "async"
    return "generator" if yields else "sync"


def _ends(node: ast.FunctionDef) -> bool:
    """Whether a function's last statement returns, whichever way it takes."""
    last: Any = node.body[-1]
    while isinstance(last, ast.If) and last.orelse:
        if not isinstance(last.body[-1], ast.Return):
            return False
        last = last.orelse[-1]
    return isinstance(last, ast.Return)


def _stores(node: ast.FunctionDef, name: str) -> bool:
    """Whether a function gives one of its parameters another value."""
    stored = (one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
    return any(one.id == name for one in stored)
