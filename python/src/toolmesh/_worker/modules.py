"""What the modules of an index bind to their names, read from their text.

Nothing here runs or imports code of the index: a file is parsed, and its
statements are looked at in their order, as an import would meet them.
"""

from __future__ import annotations

import ast
import os
import sys

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

LARGEST = 2 << 20  # bytes of a file that is read
MOST = 500  # files that are read for one index


class Binding:
    """One statement that gives a name its meaning. kind: def, class, assign,
    alias (type X = ...), module, import, or opaque for what cannot be followed."""

    __slots__ = ("kind", "node", "target", "level", "sure", "rebound", "tried")

    def __init__(self, kind: str, node: Any, target: str = "", level: int = 0) -> None:
        self.kind = kind
        self.node = node  # of the value for assign, of the statement for others
        self.target = target  # the module of module and import
        self.level = level  # the dots of an import
        self.sure = True  # whether it is met whatever conditions hold
        self.rebound = False  # whether another statement bound the name before
        self.tried = False  # whether it is the first thing that is tried, and what else there is stands in for it


class Module:
    """One file, parsed."""

    def __init__(self, name: str, tree: ast.Module, package: bool) -> None:
        self.name = name
        self.package = package
        self.bindings: dict[str, list[Binding]] = {}
        self.stars: list[tuple[str, int]] = []  # from here everything is imported: (module, dots)
        self.hidden: set[str] = set()  # what only type checkers see
        self._walk(tree.body, True)
        for node in ast.walk(tree):
            if isinstance(node, ast.Global):
                for one in node.names:
                    self._bind(one, Binding("opaque", node), False)
            elif isinstance(node, ast.NamedExpr):
                self._bind(node.target.id, Binding("opaque", node), False)

    def _bind(self, name: str, binding: Binding, sure: bool) -> None:
        before = self.bindings.get(name, [])
        binding.sure, binding.rebound = sure, bool(before)
        self.bindings[name] = [binding] if sure else [*before, binding]

    def _walk(self, statements: Iterable[ast.stmt], sure: bool) -> None:
        for one in statements:
            self._statement(one, sure)

    def _statement(self, one: ast.stmt, sure: bool) -> None:
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if not any(_last(decorator) == "overload" for decorator in one.decorator_list):
                self._bind(one.name, Binding("def", one), sure)
        elif isinstance(one, ast.ClassDef):
            self._bind(one.name, Binding("class", one), sure)
        elif isinstance(one, ast.Import):
            for name in one.names:
                bound = name.asname or name.name.partition(".")[0]
                self._bind(bound, Binding("module", one, name.name if name.asname else bound), sure)
        elif isinstance(one, ast.ImportFrom):
            for name in one.names:
                if name.name == "*":
                    self.stars.append((one.module or "", one.level))
                else:
                    made = Binding("import", name.name, one.module or "", one.level)
                    self._bind(name.asname or name.name, made, sure)
        elif isinstance(one, ast.Assign):
            for target in one.targets:
                self._assign(target, one.value, sure)
        elif isinstance(one, ast.AnnAssign):
            if one.value is not None:
                self._assign(one.target, one.value, sure)
        elif isinstance(one, (ast.AugAssign, ast.Delete)):
            for target in one.targets if isinstance(one, ast.Delete) else [one.target]:
                self._assign(target, None, sure)
        elif type(one).__name__ == "TypeAlias":
            self._bind(one.name.id, Binding("alias", one), sure)  # type: ignore[attr-defined]  # since 3.12
        elif isinstance(one, ast.If):
            self._condition(one, sure)
        elif isinstance(one, (ast.With, ast.AsyncWith)):
            for item in one.items:
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, None, sure)
            self._walk(one.body, sure)
        elif isinstance(one, (ast.For, ast.AsyncFor, ast.While)):
            if not isinstance(one, ast.While):
                self._assign(one.target, None, False)
            self._walk([*one.body, *one.orelse], False)
        elif isinstance(one, ast.Match):
            for case in one.cases:
                for part in ast.walk(case.pattern):
                    caught = getattr(part, "name", None) or getattr(part, "rest", None)
                    if isinstance(caught, str):
                        self._bind(caught, Binding("opaque", one), False)
                self._walk(case.body, False)
        elif isinstance(one, ast.Try) or type(one).__name__ == "TryStar":
            self._try(one, sure)  # type: ignore[arg-type]  # the same fields

    def _try(self, one: ast.Try, sure: bool) -> None:
        """What a handler that raises again stands for is met for sure."""
        firm = all(handler.body and isinstance(handler.body[-1], ast.Raise) for handler in one.handlers)
        self._walk([*one.body, *one.orelse], sure and firm)
        for statement in one.body[:1]:
            for name in statement.names if isinstance(statement, ast.ImportFrom) else ():
                for bound in self.bindings.get(name.asname or name.name, ())[:1]:
                    bound.tried = sure
        for handler in one.handlers:
            if handler.name:
                self._bind(handler.name, Binding("opaque", handler), False)
            if not firm:
                self._walk(handler.body, False)
        self._walk(one.finalbody, sure)

    def _condition(self, one: ast.If, sure: bool) -> None:
        holds = _holds(one.test)
        if holds is None:
            self._walk([*one.body, *one.orelse], False)
        elif holds == "checking":
            before, stars = dict(self.bindings), len(self.stars)
            self._walk(one.body, False)
            self.hidden |= {name for name in self.bindings if self.bindings[name] != before.get(name)}
            self.bindings = before
            del self.stars[stars:]
            self._walk(one.orelse, sure)
        else:
            self._walk(one.body if holds is True else one.orelse, sure)

    def _assign(self, target: ast.expr, value: ast.expr | None, sure: bool) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, Binding("opaque" if value is None else "assign", value or target), sure)
        elif isinstance(target, (ast.Tuple, ast.List)):
            values: Sequence[ast.expr | None] = [None] * len(target.elts)
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                values = value.elts
            for part, one in zip(target.elts, values, strict=True):
                self._assign(part, one, sure)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, None, sure)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.attr.startswith("__"):
            # f.__signature__ = ...: what was defined is no longer what it says.
            self._bind(target.value.id, Binding("opaque", target), False)


def _last(node: ast.expr) -> str:
    """The last part of a dotted name, that of what is called for a call."""
    while isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _holds(test: ast.expr) -> bool | str | None:
    """Whether a condition holds at an import; "checking" if type checkers alone
    see what it guards, None if it cannot be said."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _holds(test.operand)
        return True if inner == "checking" else not inner if isinstance(inner, bool) else None
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if _last(test) == "TYPE_CHECKING" and not isinstance(test, ast.Call):
        return "checking"
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    left, right, operator = test.left, test.comparators[0], type(test.ops[0])
    if isinstance(left, ast.Name) and left.id == "__name__" and isinstance(right, ast.Constant):
        main = {ast.Eq: False, ast.NotEq: True}
        return main.get(operator) if right.value == "__main__" else None
    if isinstance(left, ast.Attribute) and left.attr == "version_info" and isinstance(right, ast.Tuple):
        wanted = tuple(part.value for part in right.elts if isinstance(part, ast.Constant))
        if len(wanted) == len(right.elts) and all(type(part) is int for part in wanted):
            found = {ast.GtE: sys.version_info >= wanted, ast.Gt: sys.version_info > wanted,
                     ast.LtE: sys.version_info <= wanted, ast.Lt: sys.version_info < wanted}
            return found.get(operator)
    return None


class Library:
    """Finds and keeps the modules below some folders, each parsed once."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._modules: dict[str, Module | None] = {}
        self.trouble: dict[str, str] = {}  # module -> why it cannot be read

    def module(self, name: str) -> Module | None:
        """The module of a dotted name; None if it is not here or cannot be read."""
        if name not in self._modules:
            self._modules[name] = None
            for path, package in self._files(name):
                if os.path.isfile(path):
                    self._modules[name] = self._read(name, path, package)
                    break
        return self._modules[name]

    def _files(self, name: str) -> Iterator[tuple[str, bool]]:
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            return
        for folder in self._folders:
            path = os.path.join(folder, *parts)
            yield os.path.join(path, "__init__.py"), True
            yield path + ".py", False

    def _read(self, name: str, path: str, package: bool) -> Module | None:
        if len(self._modules) > MOST:
            self.trouble[name] = f"more than {MOST} modules"
            return None
        try:
            with open(path, "rb") as file:
                data = file.read(LARGEST + 1)
            if len(data) > LARGEST:
                self.trouble[name] = f"{os.path.basename(path)} is larger than {LARGEST >> 20} MB"
                return None
            return Module(name, ast.parse(data, path), package)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as failure:
            self.trouble[name] = f"{type(failure).__name__}: {failure}"
            return None

    @staticmethod
    def absolute(module: Module, target: str, level: int) -> str | None:
        """The full name of what a module imports; None beyond the top."""
        if level == 0:
            return target
        parts = module.name.split(".")
        up = level - 1 if module.package else level
        if up >= len(parts):
            return None
        parts = parts[: len(parts) - up]
        return ".".join([*parts, target] if target else parts) or None
