"""From the name of a tool to its function: the imports, and the reasons if they fail."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Any

from ..calls import failures
from ..schemas import schema
from ..schemas.binding import Tool


def load_module(module: str) -> str | None:
    """None, or why the module cannot be imported."""
    try:
        importlib.import_module(module)
        return None
    except BaseException as failure:  # noqa: B036 - sys.exit at import is isolated too
        return failures.unavailable_reason(failure, module)


def hidden(module: str, paths: Sequence[str]) -> str | None:
    """Why an imported module is not the index's own: the worker had loaded Python's module of the same name before any
    code of the index."""
    first = module.partition(".")[0]
    loaded = os.path.realpath(getattr(sys.modules.get(first), "__file__", None) or "")
    for path in paths:
        for own in (f"{first}.py", os.path.join(first, "__init__.py")):
            file = os.path.realpath(os.path.join(path, own))
            if loaded == file:
                return None
            if os.path.isfile(file):
                return f"the module {first} is Python's own, loaded before the index's {own}; rename that file"
    return None


def load_tool(name: str, module: str, attribute: str) -> tuple[Tool | None, str]:
    """(Tool, "") or (None, reason)."""
    namespace = sys.modules[module]
    try:
        found = getattr(namespace, attribute)
    except AttributeError:
        import difflib

        near = difflib.get_close_matches(attribute, [one for one in dir(namespace) if not one.startswith("_")], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return None, f"the module {module} has no {attribute}{hint}"
    except BaseException as failure:  # noqa: B036 - a module's __getattr__ may do anything
        return None, failures.unreadable(failure, f"{name} cannot be read")
    function = _unwrap(found)
    if not callable(function):
        return None, f"{name} is of type {type(found).__name__}, not a function"
    try:
        return Tool(name, function, schema.kind_of(function), schema.signature(function)), ""
    except BaseException as failure:  # noqa: B036 - one tool must not take the others along
        return None, failures.unreadable(failure, f"{name} cannot be described")


def _unwrap(found: Any) -> Any:
    """The function inside the object made by a framework's decorator."""
    if inspect.isroutine(found) or inspect.isclass(found):
        return found
    for attribute in ("coroutine", "func", "fn"):
        inner = getattr(found, attribute, None)
        if callable(inner) and type(found).__name__ != "partial":
            return inner
    return found
