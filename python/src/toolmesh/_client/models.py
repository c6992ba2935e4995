"""Tools for models: declarations for a provider, and the calls that its models return.

The mesh does both (docs/protocol, section 2, render and arguments); this module only unwraps the objects of providers'
libraries.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Sequence
from typing import Any

from .answers import refused
from .connection import Connection

_log = logging.getLogger("toolmesh")

_NAME = ("toolname", "name", "tool")
_ARGUMENTS = ("arguments", "input", "args", "kwargs", "parameters")
_WRAPPERS = ("function", "functionCall", "function_call", "params")
# Keys next to the name of a call that are not arguments.
_BESIDE = ("_meta", "cache_control", "call_id", "caller", "id", "index", "namespace", "partial_args",
           "provider_specific_fields", "role", "status", "thoughtSignature", "thought_signature", "type",
           "will_continue")
_REPAIRED = 20_000  # max characters of repaired JSON: the cost may grow with the square


async def render(link: Connection, session: str, question: dict[str, Any]) -> tuple[list[Any], dict[str, str]]:
    """The declarations that a request asks for, and the ids of the names in them."""
    found: list[Any] = []
    names: dict[str, str] = {}
    while True:
        answer = await link.registry(session, "render", question)
        found += answer.get("tools", ())
        names.update(answer.get("names") or {})
        question["after"] = answer.get("next")
        if not question["after"]:
            return found, names


async def meaning(link: Connection, session: str, call: Any) -> tuple[str, Any]:
    """The tool and the arguments of a model's call. The name alone identifies the tool, in any program."""
    name, arguments = unwrapped(call)
    return await meant(link, session, name, parsed(arguments, name) if isinstance(arguments, str) else arguments)


async def meant(
    link: Connection, session: str, name: str, arguments: Any, only_changed: bool = False,
) -> tuple[str, Any]:
    """The tool that a name means, and its arguments for those that a model wrote; with only_changed None for arguments
    without a change."""
    answer = await link.registry(session, "arguments", {"tool": name, "arguments": arguments})
    changed = answer.get("changed", ())
    if changed:
        _log.info("arguments of a model changed: tool %s: %s", answer["tool"], "; ".join(changed))
    return answer["tool"], answer["arguments"] if changed or not only_changed else None


def unwrapped(call: Any, beside: Sequence[str] = _BESIDE) -> tuple[str, Any]:
    """The name and the arguments, an object or JSON text, of a tool call in the form of a provider's library. It takes
    or refuses all possible arguments; beside are keys that are none."""
    name = _named(call)
    if name is None:
        call = next((inner for wrapper in _WRAPPERS if _named(inner := _field(call, wrapper)) is not None), call)
        name = _named(call)
    if not isinstance(name, str) or not name:
        raise refused("invalid_request", f"the tool call names no tool: it is {type(call).__name__} without a name")
    given = {key: one for key in _ARGUMENTS if (one := _field(call, key)) is not None}
    if any(one != next(iter(given.values())) for one in given.values()):
        raise refused("invalid_request", f"the call has several arguments: {', '.join(given)}; leave one of them", name)
    known = (*_NAME, *beside, *_ARGUMENTS)
    keys = call if isinstance(call, dict) else ()
    if left := [str(key) for key in keys if key in _WRAPPERS or not given and key not in known]:
        raise refused("invalid_request", f"the call has {', '.join(left)} beside its name: put arguments into an "
                                         "object named arguments, and leave out the rest", name)
    return name, next(iter(given.values()), {})


def _named(call: Any) -> Any:
    return next((one for key in _NAME if (one := _field(call, key)) is not None), None)


def _field(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    return getattr(value, name, None)


def parsed(text: str, tool: str) -> Any:
    """JSON text unchanged, for the mesh to read; slightly broken text is repaired."""
    if not text.strip():
        return {}
    try:
        json.loads(text)
        return text
    except RecursionError:
        return text  # the mesh refuses deep nesting
    except ValueError as failure:
        broken = failure
    if len(text) > _REPAIRED:
        raise refused("invalid_arguments", f"the arguments are not JSON ({broken}), and too long to be repaired", tool)
    try:
        found = importlib.import_module("json_repair").loads(text)
    except ImportError:
        raise refused("invalid_arguments", f"the arguments are not JSON ({broken}); with json_repair installed "
                                           "(pip install toolmesh[models]) they would be repaired", tool) from None
    if not isinstance(found, dict):
        raise refused("invalid_arguments", f"the arguments are not a JSON object ({broken})", tool)
    return found
