"""What the frameworks' tools share: names, runs, and failures as a model reads them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import keyword
import re
import typing

from ._background import background as _background
from ._core import errors

if typing.TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .client import Mesh
    from .remote import RemoteTool

_NAME = 64
_SHOWN = 600  # characters of a failure that a model reads
# What agents have under names of their own: ReAct, ReActV2 and RLM of DSPy.
_RESERVED = {"finish", "submit", "SUBMIT", "llm_query", "llm_query_batched", "print"}
_ADVICE = {
    "invalid_arguments": "Call it again with other arguments.",
    "tool_not_found": "Use another tool.",
    "deadline_exceeded": "It took too long.",
    "payload_too_large": "Ask for less.",
}


def names(ids: Sequence[str]) -> dict[str, str]:
    """Names for ids that every provider takes, that are identifiers, and that are nobody else's in this set: the id
    with _ for what is between its words, else a hash of the id behind it."""
    plain = {one: re.sub(r"[^A-Za-z0-9_]", "_", one) for one in ids}
    taken = list(plain.values())

    def good(one: str, name: str) -> bool:
        return (len(name) <= _NAME and name.isidentifier() and not keyword.iskeyword(name) and name not in _RESERVED
                and taken.count(name) == 1 and one.isascii())

    return {
        one: name if good(one, name) else f"t_{name[:_NAME - 11]}_{hashlib.sha256(one.encode()).hexdigest()[:8]}"
        for one, name in plain.items()
    }


def run(tool: RemoteTool, arguments: dict[str, Any]) -> Any:
    """The result of a model's call; of a tool that streams the list of its items."""
    mesh = tool._mesh
    return (mesh.collect if tool.streaming else mesh.call)(tool.id, arguments)


async def arun(tool: RemoteTool, arguments: dict[str, Any]) -> Any:
    """As run, for coroutines; cancelling it cancels the call."""
    if not tool.streaming:
        return await tool._mesh.acall(tool.id, arguments)
    return [item async for item in tool._mesh.astream(tool.id, arguments)]


async def meaning(mesh: Mesh, call: Any) -> dict[str, Any]:
    """The arguments of a call of a model whose tools mesh.format has declared, as the tool itself has them."""
    _, arguments = await asyncio.wrap_future(_background.submit(mesh._meaning(call)))
    return typing.cast("dict[str, Any]", arguments)


def text(value: Any) -> str:
    """A result as text: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def brief(failure: errors.MeshError) -> errors.MeshError:
    """A failure as a model should read it: what, and what to do. The rest stays in its attributes."""
    message = failure.message if len(failure.message) <= _SHOWN else failure.message[:_SHOWN] + "…"
    advice = _ADVICE.get(failure.code) or ("It may work when tried again." if failure.retryable else "")
    if advice:
        message = f"{message.rstrip('.')}. {advice}"
    return errors.error(
        failure.code, message, details=failure.details, tool=failure.tool,
        retryable=failure.retryable, started=failure.started, type=failure.type, stacktrace=failure.stacktrace,
        origin=failure.origin)
