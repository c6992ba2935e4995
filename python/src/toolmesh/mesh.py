"""The mesh that a program is in.

    from toolmesh import mesh

    mesh.call("weather.forecast.today", {"city": "Oslo"})

Inside a tool that an agent runs, calls go through the tool's own worker: in the session of its call, within its time.
Elsewhere they go through a Mesh that is made when it is first needed. progress and secret do nothing, or read the
environment, outside of a tool, so that its module runs in a plain test.
"""

from __future__ import annotations

import functools
import sys
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

import toolmesh

from ._client.answers import api
from ._core import errors, tasks, tool_side
from ._host import serving
from ._options import Options, Settings, Submission, Unpack

F = typing.TypeVar("F", bound=Callable[..., Any])

MeshError = errors.MeshError
MissingSecret = tool_side.MissingSecret
secret = tool_side.secret
progress = tool_side.progress

__all__ = [
    "MeshError", "MissingSecret", "abatch", "acall", "adescribe", "aserve", "astream", "asubmit", "batch", "call",
    "default", "describe", "progress", "secret", "serve", "stop", "stream", "submit", "task", "tool",
]

_default: toolmesh.Mesh | None = None
_tools: list[tuple[Any, Options]] = []  # decorated functions, until they are served
_host: toolmesh.Host | None = None


def default() -> toolmesh.Mesh:
    """The Mesh that this module's functions use outside of tools."""
    global _default
    if _default is None:
        from .client import Mesh

        _default = Mesh()
    return _default


def in_tool() -> bool:
    """Whether this is a process in which an agent runs tools."""
    return "_toolmesh_worker" in sys.modules


def serves() -> bool:
    """Whether this code serves a call: its own calls are nested in that one."""
    return in_tool() or serving.current.get() is not None


def _here() -> toolmesh.Mesh:
    """The object behind this module's functions for the current code."""
    return typing.cast("toolmesh.Mesh", tool_side) if serves() else default()


def call(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
    """Calls a tool by its full id and returns its result; see Mesh.call."""
    return _here().call(tool, args, timeout=timeout)


def stream(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Iterator[Any]:
    """Calls a tool and yields its items as they arrive; see Mesh.stream."""
    return _here().stream(tool, args, timeout=timeout)


async def acall(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
    """call, for coroutines."""
    return await _here().acall(tool, args, timeout=timeout)


def astream(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> AsyncIterator[Any]:
    """stream, for coroutines."""
    return _here().astream(tool, args, timeout=timeout)


def batch(
    calls: Iterable[Any], *, timeout: float | None = None, return_exceptions: bool = False, parallel: bool = False
) -> list[Any]:
    """Makes several calls at once and returns their results in the order of the calls; see Mesh.batch."""
    return _here().batch(calls, timeout=timeout, return_exceptions=return_exceptions, parallel=parallel)


async def abatch(
    calls: Iterable[Any], *, timeout: float | None = None, return_exceptions: bool = False, parallel: bool = False
) -> list[Any]:
    """batch, for coroutines."""
    return await _here().abatch(calls, timeout=timeout, return_exceptions=return_exceptions, parallel=parallel)


def submit(tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[Submission]) -> tasks.Task:
    """Submits a call that runs even if this program ends, and returns its task; see Mesh.submit."""
    return _here().submit(tool, args, **options)


async def asubmit(tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[Submission]) -> tasks.AsyncTask:
    """submit, for coroutines."""
    return await _here().asubmit(tool, args, **options)


def task(id: str) -> tasks.Task:
    """The durable task with that id; see Mesh.task."""
    return _here().task(id)


def describe(tool: str) -> dict[str, Any]:
    """The description of a tool, as mesh info --json prints it; ToolNotFound lists the nearest ids."""
    return _here().describe(tool)


async def adescribe(tool: str) -> dict[str, Any]:
    """describe, for coroutines."""
    return await _here().adescribe(tool)


@typing.overload
def tool(function: F, /, **settings: Unpack[Options]) -> F: ...


@typing.overload
def tool(function: None = None, /, **settings: Unpack[Options]) -> Callable[[F], F]: ...


def tool(function: Any = None, /, **settings: Unpack[Options]) -> Any:
    """Makes a function a tool for serve, as a decorator with or without arguments; see Host.tool. Inside a tool's
    worker it has no effect: tools.toml lists the tools of an index."""
    if function is None:
        return functools.partial(tool, **settings)
    if in_tool():
        return function
    if _host is not None:
        _host.tool(function, **settings)
    else:
        from .host import Host

        Host().tool(function, **settings)  # refuses an invalid tool at its definition
    _tools.append((function, settings))
    return function


def serve(**settings: Unpack[Settings]) -> None:
    """Serves the functions decorated by tool until SIGINT or SIGTERM; the settings are Host's. Once per process at a
    time."""
    _made(settings).serve()


async def aserve(**settings: Unpack[Settings]) -> None:
    """serve, on the running event loop. Cancelling it drains."""
    await _made(settings).aserve()


def stop() -> None:
    """Ends serve from another thread, after running calls have ended."""
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


api(sys.modules[__name__])
