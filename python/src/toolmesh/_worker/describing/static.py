"""The documentation of tools that cannot be imported, read from an index's source.

Files are parsed; no code of the index, and none of its dependencies, runs here. Run as `python -I -S`, so that nothing
but the standard library is on the path.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import sys
import typing
import warnings

from . import docstring

if typing.TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..wire.frames import JSON

    Function: typing.TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

LARGEST_FILE, LARGEST_TEXT = 2 << 20, 1 << 18  # bytes; characters of one description


def main(root: str, names: Sequence[str]) -> None:
    """Writes the descriptions of the tools that the source has, as JSON, to stdout."""
    warnings.simplefilter("ignore")
    tools = [tool for name in names if (tool := describe(root, name)) is not None]
    sys.stdout.write(json.dumps({"tools": tools}, separators=(",", ":")))
    sys.stdout.flush()


def describe(root: str, name: str) -> dict[str, JSON] | None:
    """What the source below root says of module.function, in the form of the zygote's descriptions; None where it
    shows no such function."""
    home, _, attribute = name.rpartition(".")
    tree = _module(root, home)
    try:
        function = None if tree is None else _function(tree.body, attribute)
        text = "" if function is None else docstring.parse(ast.get_docstring(function) or "")[0]
    except RecursionError:
        return None
    if function is None or len(text) > LARGEST_TEXT:
        return None
    return {
        "name": name, "description": text, "input_schema": {"type": "object"}, "output_schema": None, "kind": "sync",
        "positional": [], "varargs": False,
        "warnings": ["its arguments and its result are unknown: its module was not imported"],
    }


@functools.lru_cache(maxsize=1)  # the tools of a module follow each other
def _module(root: str, name: str) -> ast.Module | None:
    if not all(map(str.isidentifier, name.split("."))):
        return None
    for folder in (root, os.path.join(root, "src")):
        for last in ("/__init__.py", ".py"):
            real = os.path.realpath(os.path.join(folder, *name.split(".")) + last)
            if not real.startswith(os.path.join(os.path.realpath(root), "")) or not os.path.isfile(real):
                continue  # no link leads out of the index
            try:
                with open(real, "rb") as file:
                    if len(text := file.read(LARGEST_FILE + 1)) <= LARGEST_FILE:
                        return ast.parse(text)
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                continue
    return None


def _function(statements: Iterable[ast.stmt], name: str) -> Function | None:
    """The last function of this name, whatever conditions hold."""
    found: Function | None = None
    for one in statements:
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found = one if one.name == name else found
        elif isinstance(one, (ast.If, ast.Try, ast.With)):
            inner = [*one.body, *getattr(one, "orelse", ()), *getattr(one, "finalbody", ())]
            found = _function(inner, name) or found
    return found
