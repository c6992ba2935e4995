"""The documentation of tools that cannot be imported, read from an index's source without running code."""

from __future__ import annotations

import ast
import functools
import os
import typing
import warnings
from collections.abc import Iterable, Sequence

from . import docstring

Function: typing.TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

LARGEST_FILE, LARGEST_TEXT = 2 << 20, 1 << 18  # bytes; characters of one description


def documentation(folders: Sequence[str], name: str) -> str:
    """The description in the docstring of module.function, in the first of the folders with the module; empty if the
    source has none."""
    home, _, attribute = name.rpartition(".")
    tree = _module(tuple(folders), home)
    try:
        function = None if tree is None else _function(tree.body, attribute)
        text = "" if function is None else docstring.parse(ast.get_docstring(function) or "")[0]
    except RecursionError:
        return ""
    return text if len(text) <= LARGEST_TEXT else ""


@functools.lru_cache(maxsize=1)  # tools of the same module follow each other
def _module(folders: tuple[str, ...], name: str) -> ast.Module | None:
    if not all(map(str.isidentifier, name.split("."))):
        return None
    for folder in folders:
        for last in ("/__init__.py", ".py"):
            real = os.path.realpath(os.path.join(folder, *name.split(".")) + last)
            if not real.startswith(os.path.join(os.path.realpath(folders[0]), "")) or not os.path.isfile(real):
                continue  # links must not lead out of the index
            try:
                with open(real, "rb") as file, warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if len(text := file.read(LARGEST_FILE + 1)) <= LARGEST_FILE:
                        return ast.parse(text)
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                continue
    return None


def _function(statements: Iterable[ast.stmt], name: str) -> Function | None:
    """The last function of this name, whatever its conditions."""
    found: Function | None = None
    for one in statements:
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found = one if one.name == name else found
        elif isinstance(one, (ast.If, ast.Try, ast.With)):
            inner = [*one.body, *getattr(one, "orelse", ()), *getattr(one, "finalbody", ())]
            found = _function(inner, name) or found
    return found
