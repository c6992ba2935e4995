"""The common part of the frameworks' tools: names, calls, and failures in words for a model."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hashlib
import json
import keyword
import re
import typing
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from .._client import models
from .._client.background import background
from .._client.results import _changed
from .._core import errors
from ..client import Mesh
from ..remote import RemoteTool

_NAME = 64
_HASHED = re.compile(r"t_.*_[0-9a-f]{8}", re.ASCII)
_SHOWN = 600  # max characters of a failure for a model
# Names that agents use themselves: ReAct, ReActV2 and RLM of DSPy.
_RESERVED = {"finish", "submit", "SUBMIT", "llm_query", "llm_query_batched", "print"}
_ADVICE = {
    "invalid_arguments": "Call it again with other arguments.",
    "tool_not_found": "Use another tool.",
    "deadline_exceeded": "It took too long.",
    "payload_too_large": "Ask for less.",
}


def names(ids: Sequence[str]) -> dict[str, str]:
    """Names for ids: accepted by every provider, identifiers, and unique in this set. The name is the id with _ between
    its words, or that with a hash of the id."""
    plain = {one: re.sub(r"[^A-Za-z0-9_]", "_", one) for one in ids}
    taken = collections.Counter(plain.values())

    def good(one: str, name: str) -> bool:
        return (len(name) <= _NAME and name.isidentifier() and not keyword.iskeyword(name) and name not in _RESERVED
                and taken[name] == 1 and one.isascii() and not _HASHED.fullmatch(name))

    return {
        one: name if good(one, name) else f"t_{name[:_NAME - 11]}_{hashlib.sha256(one.encode()).hexdigest()[:8]}"
        for one, name in plain.items()
    }


def named(mesh: Mesh, prefix: str) -> list[tuple[RemoteTool, str]]:
    """The tools whose id begins with prefix. Names are unique in the whole session: lists of several prefixes can be
    joined."""
    found = mesh.tools(prefix)
    known = background.run(lambda: mesh._ids("")) if prefix else []
    by_id = names(list(dict.fromkeys([*known, *[one.id for one in found]])))
    return [(one, by_id[one.id]) for one in found]


def run(tool: RemoteTool, arguments: dict[str, Any], exact: bool = False) -> Any:
    """The result of a model's call; for a streaming tool the list of its items. If the arguments are refused and not
    exact, the mesh is asked for their meaning."""
    mesh = tool._mesh
    call = mesh.collect if tool.streaming else mesh.call
    try:
        return call(tool._named, arguments)
    except errors.InvalidArguments as failure:
        if exact:
            raise
        arguments = meant(mesh, tool._named, arguments, failure).result()
    return call(tool._named, arguments)


async def arun(tool: RemoteTool, arguments: dict[str, Any], exact: bool = False) -> Any:
    """run, for coroutines; cancelling it cancels the call."""
    async def call(given: dict[str, Any]) -> Any:
        if not tool.streaming:
            return await tool._mesh.acall(tool._named, given)
        return [item async for item in tool._mesh.astream(tool._named, given)]

    try:
        return await call(arguments)
    except errors.InvalidArguments as failure:
        if exact:
            raise
        arguments = await asyncio.wrap_future(meant(tool._mesh, tool._named, arguments, failure))
    return await call(arguments)


def meant(mesh: Any, tool: str, arguments: dict[str, Any], failure: errors.MeshError) -> Future[dict[str, Any]]:
    """The meaning of refused arguments; raises the failure if the mesh finds none."""
    if failure.started is not False or not isinstance(mesh, Mesh):
        raise failure

    async def ask() -> dict[str, Any]:
        # The refusal says more than an error of this request would.
        with contextlib.suppress(errors.MeshError):
            _, found = await models.meant(mesh._links.here(), mesh.session_name, tool, arguments, only_changed=True)
            if found is not None:
                return typing.cast("dict[str, Any]", found)
            if not failure.revision:  # the node's refusal says it itself
                failure.message += await _changed(mesh._links.here(), mesh.session_name, tool)
        raise failure

    return background.submit(ask)


async def meaning(mesh: Mesh, call: Any) -> dict[str, Any]:
    """The tool's own arguments in a call of a model whose tools mesh.format has declared."""
    return typing.cast("dict[str, Any]", (await mesh._run(lambda: mesh._meaning(call)))[1])


def text(value: Any) -> str:
    """A result as text: text unchanged, any other as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def brief(failure: errors.MeshError) -> errors.MeshError:
    """A failure in words for a model: what happened and what to do. The details stay in its attributes."""
    message = failure.message if len(failure.message) <= _SHOWN else failure.message[:_SHOWN] + "…"
    advice = _ADVICE.get(failure.code) or ("It may work when tried again." if failure.retryable else "")
    if advice:
        message = f"{message.rstrip('.')}. {advice}"
    return errors.error(
        failure.code, message, details=failure.details, tool=failure.tool,
        retryable=failure.retryable, started=failure.started, type=failure.type, stacktrace=failure.stacktrace,
        origin=failure.origin)
