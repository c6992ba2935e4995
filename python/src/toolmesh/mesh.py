"""The mesh that a program is in.

    from toolmesh import mesh

    mesh.call("weather.forecast.today", {"city": "Oslo"})

Inside a tool that an agent runs, calls go through the tool's own worker: in the session of its call, within its time.
Elsewhere they go through a Mesh that is made when it is first needed. progress and secret do nothing, or read the
environment, outside of a tool, so that its module runs in a plain test.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
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


def _forwarded(function: F) -> F:
    """A function of the worker's that goes to the mesh of the current code."""
    name, known = function.__name__, inspect.signature(function).parameters.keys()

    def plain(*args: Any, **kwargs: Any) -> Any:
        if unknown := kwargs.keys() - known:
            raise TypeError(f"{name}() got an unexpected keyword argument {min(unknown)!r}")
        return getattr(_here(), name)(*args, **kwargs)

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        return await plain(*args, **kwargs)

    made = functools.wraps(function)(coroutine if inspect.iscoroutinefunction(function) else plain)
    made.__module__ = __name__
    return typing.cast("F", made)


call, acall = _forwarded(tool_side.call), _forwarded(tool_side.acall)
stream, astream = _forwarded(tool_side.stream), _forwarded(tool_side.astream)
batch, abatch = _forwarded(tool_side.batch), _forwarded(tool_side.abatch)
describe, adescribe = _forwarded(tool_side.describe), _forwarded(tool_side.adescribe)
task = _forwarded(tool_side.task)


def submit(tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[Submission]) -> tasks.Task:
    """Submits a call that runs even if this program ends, and returns its task; see Mesh.submit."""
    return _here().submit(tool, args, **options)


async def asubmit(tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[Submission]) -> tasks.AsyncTask:
    """submit, for coroutines."""
    return await _here().asubmit(tool, args, **options)


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
