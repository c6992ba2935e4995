"""The mesh that a program is in.

    from toolmesh import mesh

    mesh.call("weather.forecast.today", {"city": "Oslo"})

Inside a tool that an agent runs, calls go through the tool's own worker: in the
session of its call, within its time. Elsewhere they go through a Mesh that is made
when it is first needed. progress and secret do nothing, or read the environment,
outside of a tool, so that its module runs in a plain test.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

import toolmesh

from . import _serving
from ._core import batches, errors, tasks, tool_side
from ._options import Options, Settings, Submission, Unpack

F = typing.TypeVar("F", bound=Callable[..., Any])

MeshError = errors.MeshError
MissingSecret = tool_side.MissingSecret
secret = tool_side.secret

__all__ = [
    "MeshError", "MissingSecret", "abatch", "acall", "adescribe", "aserve", "astream", "asubmit", "batch", "call",
    "default", "describe", "progress", "secret", "serve", "stop", "stream", "submit", "task", "tool",
]

_default: toolmesh.Mesh | None = None
_tools: list[tuple[Any, Options]] = []  # what was decorated, until it is served
_host: toolmesh.Host | None = None


def default() -> toolmesh.Mesh:
    """The Mesh that this module's functions use outside of tools."""
    global _default
    if _default is None:
        from .client import Mesh

        _default = Mesh()
    return _default


def _in_tool() -> bool:
    return "_toolmesh_worker" in sys.modules


def progress(fraction: float | None = None, text: str = "") -> None:
    """Tells how far the call is that this code serves, from 0 to 1, and what it does: one line. Cheap, never an
    error, and nothing outside of a call. Callers hear of it once a second at most; `mesh task show` shows it."""
    serving = _serving.current.get()
    if serving is None:
        tool_side.progress(fraction, text)
        return
    bridge, call = serving
    said: dict[str, Any] = {"text": str(text)[:256]}
    if fraction is not None and fraction == fraction:
        said["fraction"] = min(max(float(fraction), 0.0), 1.0)
    bridge.frame("rpc_progress", rpc_id=call, progress=said)


def call(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
    """Calls a tool by its full id and returns its result; see Mesh.call."""
    if _in_tool():
        return tool_side.call(tool, args, timeout=timeout)
    serving = _serving.current.get()
    if serving is not None:
        return serving[0].call(serving[1], tool, args, timeout, False).result()
    return default().call(tool, args, timeout=timeout)


def stream(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Iterator[Any]:
    """Calls a tool and yields its items as they come; see Mesh.stream."""
    if _in_tool():
        return tool_side.stream(tool, args, timeout=timeout)
    serving = _serving.current.get()
    if serving is not None:
        return serving[0].call(serving[1], tool, args, timeout, True).items()
    return default().stream(tool, args, timeout=timeout)


async def acall(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
    """As call, for coroutines."""
    if _in_tool():
        return await tool_side.acall(tool, args, timeout=timeout)
    serving = _serving.current.get()
    if serving is not None:
        return await serving[0].call(serving[1], tool, args, timeout, False).aresult()
    return await default().acall(tool, args, timeout=timeout)


def astream(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> AsyncIterator[Any]:
    """As stream, for coroutines."""
    if _in_tool():
        return tool_side.astream(tool, args, timeout=timeout)
    serving = _serving.current.get()
    if serving is not None:
        return serving[0].call(serving[1], tool, args, timeout, True).aitems()
    return default().astream(tool, args, timeout=timeout)


def batch(
    calls: Iterable[Any], *, timeout: float | None = None, return_exceptions: bool = False, parallel: bool = False
) -> list[Any]:
    """Makes several calls at once and returns their results in the order of the calls; see Mesh.batch."""
    if _in_tool():
        found: list[Any] = tool_side.batch(
            calls, timeout=timeout, return_exceptions=return_exceptions, **_said(parallel))
        return found
    serving = _serving.current.get()
    if serving is not None:
        made = batches.members(calls)
        return batches.ends(made, serving[0].batch(serving[1], made, timeout, parallel).result(), return_exceptions)
    return default().batch(calls, timeout=timeout, return_exceptions=return_exceptions, parallel=parallel)


async def abatch(
    calls: Iterable[Any], *, timeout: float | None = None, return_exceptions: bool = False, parallel: bool = False
) -> list[Any]:
    """As batch, for coroutines."""
    if _in_tool():
        found: list[Any] = await tool_side.abatch(
            calls, timeout=timeout, return_exceptions=return_exceptions, **_said(parallel))
        return found
    serving = _serving.current.get()
    if serving is not None:
        made = batches.members(calls)
        ends = await serving[0].batch(serving[1], made, timeout, parallel).aresult()
        return batches.ends(made, ends, return_exceptions)
    return await default().abatch(calls, timeout=timeout, return_exceptions=return_exceptions, parallel=parallel)


def _said(parallel: bool) -> dict[str, Any]:
    return {"parallel": True} if parallel else {}  # which an older agent's worker does not know


def submit(tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[Submission]) -> tasks.Task:
    """Hands in a call that is made whatever becomes of this program, and returns its task; see Mesh.submit."""
    said = typing.cast("dict[str, Any]", options)
    if _in_tool():
        made: tasks.Task = tool_side.submit(tool, args, **said)
        return made
    serving = _serving.current.get()
    if serving is not None:
        bridge, parent = serving

        def ask(verb: str, request: bytes) -> Any:
            return bridge.task(parent, verb, request).result()

        body = tasks.submission(tool, bridge.encoded(tool, args), **_SUBMISSION | said)
        return tasks.Task(ask("submit", body)["id"], ask)
    return default().submit(tool, args, **said)


async def asubmit(tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[Submission]) -> tasks.AsyncTask:
    """As submit, for coroutines."""
    said = typing.cast("dict[str, Any]", options)
    if _in_tool():
        made: tasks.AsyncTask = await tool_side.asubmit(tool, args, **said)
        return made
    serving = _serving.current.get()
    if serving is not None:
        bridge, parent = serving

        async def ask(verb: str, request: bytes) -> Any:
            return await bridge.task(parent, verb, request).aresult()

        body = tasks.submission(tool, bridge.encoded(tool, args), **_SUBMISSION | said)
        return tasks.AsyncTask((await ask("submit", body))["id"], ask)
    return await default().asubmit(tool, args, **said)


_SUBMISSION: dict[str, Any] = {
    "id": None, "timeout": None, "attempts": None, "priority": 0, "ttl": None, "idempotency_key": None, "at": None,
    "delay": None, "every": None, "cron": None,
}


def task(id: str) -> tasks.Task:
    """The durable task of that name; see Mesh.task."""
    if _in_tool():
        made: tasks.Task = tool_side.task(id)
        return made
    serving = _serving.current.get()
    if serving is not None:
        bridge, parent = serving
        return tasks.Task(id, lambda verb, request: bridge.task(parent, verb, request).result())
    return default().task(id)


def describe(tool: str) -> dict[str, Any]:
    """What a tool is, as mesh info --json prints it; ToolNotFound names what may have been meant."""
    if _in_tool():
        return tool_side.describe(tool)
    serving = _serving.current.get()
    if serving is not None:
        found: dict[str, Any] = serving[0].describe(serving[1], tool).result()
        return found
    return default().describe(tool)


async def adescribe(tool: str) -> dict[str, Any]:
    """As describe, for coroutines."""
    if _in_tool():
        return await tool_side.adescribe(tool)
    serving = _serving.current.get()
    if serving is not None:
        found: dict[str, Any] = await serving[0].describe(serving[1], tool).aresult()
        return found
    return await default().adescribe(tool)


@typing.overload
def tool(function: F, /, **settings: Unpack[Options]) -> F: ...


@typing.overload
def tool(function: None = None, /, **settings: Unpack[Options]) -> Callable[[F], F]: ...


def tool(function: Any = None, /, **settings: Unpack[Options]) -> Any:
    """Makes a function a tool that serve serves, as a decorator with or without
    arguments; see Host.tool. Inside a tool's worker it changes nothing: what an index
    offers is said in its tools.toml."""
    if function is None:
        return lambda given: tool(given, **settings)
    if _in_tool():
        return function
    if _host is not None:
        _host.tool(function, **settings)
    else:
        from .host import Host

        Host().tool(function, **settings)  # what cannot be a tool is refused where it stands
    _tools.append((function, settings))
    return function


def serve(**settings: Unpack[Settings]) -> None:
    """Serves the functions that tool has decorated until SIGINT or SIGTERM; the
    settings are Host's. One of a process at a time."""
    _made(settings).serve()


async def aserve(**settings: Unpack[Settings]) -> None:
    """As serve, on the running event loop. Cancelling it drains."""
    await _made(settings).aserve()


def stop() -> None:
    """Ends serve from another thread, once the calls that run have ended."""
    if _host is not None:
        _host.stop()


def _made(settings: Settings) -> toolmesh.Host:
    global _host
    from .host import Host

    if _host is not None and _host.serving:
        raise RuntimeError("this process serves already: a second set of tools has a Host of its own")
    made = Host(**settings)
    for function, said in _tools:
        made.tool(function, **said)
    _host = made
    return made
