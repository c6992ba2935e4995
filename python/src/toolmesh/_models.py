"""Tools for models: declarations as a provider takes them, and the calls that its models give back.

Both are the mesh's work (docs/protocol, section 2, render and arguments): here is
only what a provider's library wraps a call in.
"""

from __future__ import annotations

import importlib
import json
import typing

from ._answers import refused

if typing.TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ._connection import Connection

_REPAIRED = 20_000  # characters of JSON that are repaired at most: what that costs may grow with the square


class Names:
    """The names that tools of one session were declared under."""

    def __init__(self) -> None:
        self._ids: dict[str, tuple[str, str]] = {}  # name -> provider, id

    async def render(self, link: Connection, session: str, provider: str, ids: Sequence[str]) -> list[Any]:
        """The declarations of tools for a provider."""
        question: dict[str, Any] = {"provider": provider, "tools": list(ids)}
        declared: list[Any] = []
        while True:
            answer = await link.registry(session, "render", question)
            declared += answer.get("tools", ())
            for name, tool_id in answer.get("names", {}).items():
                self._ids[name] = provider, tool_id
            question["after"] = answer.get("next")
            if not question["after"]:
                return declared

    async def resolve(self, link: Connection, session: str, call: Any) -> tuple[str, Any]:
        """The tool and the arguments of a model's call."""
        name, arguments = unwrapped(call)
        provider, tool_id = self._ids.get(name, ("", ""))
        if not tool_id:
            # Not declared here: an id, or what a shorter one stands for.
            tool_id, _ = await link.resolve(session, name)
        if isinstance(arguments, str):
            arguments = parsed(arguments, tool_id)
        if not provider:
            return tool_id, arguments
        answer = await link.registry(
            session, "arguments", {"provider": provider, "tool": tool_id, "arguments": arguments})
        return tool_id, answer.get("arguments")


def unwrapped(call: Any) -> tuple[str, Any]:
    """The name and the arguments, an object or JSON text, of a tool call as a
    provider's library gives it."""
    for wrapper in ("function", "functionCall", "function_call", "params"):
        inner = _field(call, wrapper)
        if inner is not None and _field(inner, "name") is not None:
            call = inner
            break
    name = next((one for one in (_field(call, key) for key in ("name", "toolname", "tool")) if one is not None), None)
    if not isinstance(name, str) or not name:
        raise refused("invalid_request", f"the tool call names no tool: it is {type(call).__name__} without a name")
    for key in ("arguments", "input", "args", "kwargs"):
        arguments = _field(call, key)
        if arguments is not None:
            return name, arguments
    return name, {}


def _field(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    return getattr(value, name, None)


def parsed(text: str, tool: str) -> Any:
    """The value that JSON text stands for; where it is slightly broken, what it most likely means."""
    if not text.strip():
        return {}
    try:
        return json.loads(text)
    except ValueError as failure:
        broken = failure
    if len(text) > _REPAIRED:
        raise refused("invalid_arguments", f"the arguments are no JSON ({broken}), and too long to be repaired", tool)
    try:
        repair = importlib.import_module("json_repair")
    except ImportError:
        raise refused("invalid_arguments", f"the arguments are no JSON ({broken}); with json_repair installed "
                                           "(pip install toolmesh[models]) they would be repaired", tool) from None
    found = repair.loads(text)
    if not isinstance(found, dict):
        raise refused("invalid_arguments", f"the arguments are no JSON object ({broken})", tool)
    return found
