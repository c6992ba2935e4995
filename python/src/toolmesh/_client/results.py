"""Results in the form for the caller."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Callable
from typing import Any

from .._core import errors, schema, values
from . import payloads
from .answers import upgraded
from .call import Call, Ref
from .connection import Connection


async def _changed(link: Connection, session: str, tool: str) -> str:
    """The text of upgraded for a tool that refused arguments of a described call: the registry knows its current
    revision. Empty without a connection."""
    if not getattr(tool, "revision", "") or not link.connected:
        return ""
    with contextlib.suppress(errors.MeshError):
        told = await link.registry(session, "describe", {"tool": tool}, wait=1)  # the call's time may have ended
        return upgraded(tool.revision, (told.get("index") or {}).get("revision") or "")  # type: ignore[attr-defined]
    return ""


async def _explained(link: Connection, session: str, tool: str, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer that may have the error of a tool's call."""
    error = answer.get("error") or {}
    if error.get("code") == "invalid_arguments":
        error["message"] = error.get("message", "") + await _changed(link, session, tool)
    return answer


async def _about_task(
    link: Connection, session: str, verb: str, request: bytes, tool: str = "",
) -> dict[str, Any]:
    """The answer about a task of a tool, with its result fetched."""
    answer = await _explained(link, session, tool, await link.task(session, verb, request))
    if "ref" in answer:
        ref = Ref(answer.pop("ref"), answer.pop("digest", ""))
        answer["result"] = values.decode(await payloads.take(link, session, ref))
    return answer


async def _resolved(link: Connection, session: str, body: bytes, deadline: float) -> list[Any]:
    """The results in the answer to a batch, with payloads fetched."""
    results: list[Any] = values.decode(body)["results"]
    for one in results:
        if "ref" not in one:
            continue
        ref = Ref(one["ref"], one.get("digest", ""))
        try:
            one["result"] = values.decode(await payloads.take(link, session, ref, deadline=deadline))
        except errors.MeshError as failure:
            one["status"] = "error"
            one["error"] = {"code": failure.code, "message": failure.message, "started": True}
    return results


async def _page(pages: AsyncGenerator[list[bytes], None], call: Call, idle: float | None) -> list[bytes]:
    """The next page; an empty one is the end."""
    try:
        return await asyncio.wait_for(anext(pages, []), idle)
    except errors.MeshError:
        raise  # the timeout of the whole call is a TimeoutError, too
    except asyncio.TimeoutError:
        raise errors.error("deadline_exceeded", f"no item within {idle:g} s", tool=call.tool, started=None,
                           origin="caller", details={"limit": "idle"}) from None


def _typed(body: bytes, returns: Any, tool: str) -> Any:
    try:
        value = values.decode(body)
    except ValueError as failure:
        raise errors.error("protocol_error", f"the result is not JSON: {failure}", tool=tool, origin="caller") from None
    if returns is None:
        return value
    try:
        return _loader(returns)(value)
    except values.Mismatch as failure:
        raise TypeError(f"{tool}: the result is not {returns!r}: {failure.pointer or 'it'}: {failure}") from None


def _loader(returns: Any) -> Callable[[Any], Any]:
    try:
        return _made_loader(returns, repr(returns))
    except TypeError:  # it is not hashable
        return _made_loader.__wrapped__(returns, "")


@functools.lru_cache(maxsize=256)
def _made_loader(returns: Any, _text: str) -> Callable[[Any], Any]:
    """The text distinguishes unions that are equal but have their members in another order."""
    load: Callable[[Any], Any] = schema.Builder({}).shape(returns, "the result").load
    return load
