"""The common part of the frameworks' tools: names, runs, and failures as a model reads them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hashlib
import json
import keyword
import re
import typing

from .._client import models
from .._client.background import background
from .._core import errors
from ..client import Mesh

if typing.TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from typing import Any

    from ..remote import RemoteTool

_NAME = 64
_HASHED = re.compile(r"t_.*_[0-9a-f]{8}", re.ASCII)
_SHOWN = 600  # characters of a failure that a model reads
# Names that agents use themselves: ReAct, ReActV2 and RLM of DSPy.
_RESERVED = {"finish", "submit", "SUBMIT", "llm_query", "llm_query_batched", "print"}
_ADVICE = {
    "invalid_arguments": "Call it again with other arguments.",
    "tool_not_found": "Use another tool.",
    "deadline_exceeded": "It took too long.",
    "payload_too_large": "Ask for less.",
}


def names(ids: Sequence[str]) -> dict[str, str]:
    """Names for ids that every provider takes, that are identifiers, and that are unique in this set: the id
    with _ for what is between its words, else a hash of the id behind it."""
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
    """The tools whose id begins with prefix, with names that are no other tool's of the whole session: lists of
    several prefixes may be put together."""
    found, core = mesh.tools(prefix), mesh._here()
    known = background.run(lambda: core._ids("")) if prefix else []
    by_id = names(list(dict.fromkeys([*known, *[one.id for one in found]])))
    return [(one, by_id[one.id]) for one in found]


def run(tool: RemoteTool, arguments: dict[str, Any], exact: bool = False) -> Any:
    """The result of a model's call; of a tool that streams the list of its items. Unless they are exact already,
    the mesh is asked what refused arguments mean."""
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
    """As run, for coroutines; cancelling it cancels the call."""
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
    """The arguments that a model meant by those that were refused; raises the failure where the mesh knows none."""
    if failure.started is not False or not isinstance(mesh, Mesh):
        raise failure
    core = mesh._here()

    async def ask() -> dict[str, Any]:
        # The refusal says more than an error of the question would.
        with contextlib.suppress(errors.MeshError):
            _, found = await models.meant(core._links.here(), core.session_name, tool, arguments, only_changed=True)
            if found is not None:
                return typing.cast("dict[str, Any]", found)
            if not failure.revision:  # the node's refusal says it itself
                failure.message += await core._achanged(tool)
        raise failure

    return background.submit(ask)


async def meaning(mesh: Mesh, call: Any) -> dict[str, Any]:
    """The arguments of a call of a model whose tools mesh.format has declared, as the tool itself has them."""
    _, arguments = await asyncio.wrap_future(background.submit(mesh._meaning(call)))
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
