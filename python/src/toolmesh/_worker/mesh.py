"""The mesh that a tool is in: calls of other tools, progress, secrets.

    from toolmesh import mesh

    def report(city: str) -> str:
        mesh.progress(0.5, "asking")
        return mesh.call("weather.forecast", {"city": city})["summary"]

Calls go to tools of the session that the tool itself was called in, and take at most the time that the tool has left.
They may be made by any thread. A failed one raises MeshError.

Outside a mesh progress does nothing and secret reads the environment, so that a tool's module runs in a plain test; a
call raises MeshError with the code unavailable.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from .calls import batches, channel, tasks
from .calls.errors import MeshError
from .schemas.values import NotSerializable, encode
from .wire.frames import BATCH, DESCRIBE, TASK

__all__ = [
    "MeshError", "MissingSecret", "abatch", "acall", "adescribe", "astream", "asubmit", "batch", "call", "describe",
    "progress", "secret", "stream", "submit", "task",
]


class MissingSecret(MeshError, KeyError):
    """The environment lacks the variable that mesh.secret asked for."""

    __module__ = "toolmesh"


def call(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
    """Calls a tool by its full id and returns its result.

    args are its arguments by name, of the types that a tool may return. timeout is in seconds. The default is the
    called tool's own; no call takes longer than the time left to the calling tool. In a coroutine await acall instead.
    """
    return _channel(tool).call(tool, _encoded(tool, args), _seconds(timeout))


def stream(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Iterator[Any]:
    """Calls a tool, as call does, and yields its items as they arrive.

    The call starts with the request for the first item. Closing the iterator, or leaving a for loop over it, cancels
    the call.
    """
    channel = _channel(tool)  # of the current call: another thread may read the items

    def items() -> Iterator[Any]:
        yield from channel.stream(tool, _encoded(tool, args), _seconds(timeout))

    return items()


async def acall(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
    """call, for coroutines: many concurrently with asyncio.gather."""
    return await _channel(tool).acall(tool, _encoded(tool, args), _seconds(timeout))


async def astream(
    tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None
) -> AsyncIterator[Any]:
    """stream, for coroutines. If you leave it early, contextlib.aclosing cancels it at once; otherwise the event loop
    does so a moment later."""
    items = _channel(tool).astream(tool, _encoded(tool, args), _seconds(timeout))
    try:
        async for item in items:
            yield item
    finally:
        await items.aclose()


def batch(
    calls: Iterable[Any], *, timeout: float | None = None, return_exceptions: bool = False, parallel: bool = False
) -> list[Any]:
    """Makes several calls at once, 1,000 at most, and returns their results in the order of the calls.

    A call is (tool, arguments), (tool, arguments, timeout) or just a tool's id. Calls of tools without parallel_safe
    run one after the other in that order; others run concurrently unless their resource keys are equal. parallel says
    that the calls are independent: then all run concurrently, except equal resource keys and tools that declare
    parallel_safe = false. A failed call does not affect the others. When all have ended the first error is raised, or
    with return_exceptions each error stands in place of its call's result. timeout is the time of all calls together,
    in seconds.
    """
    made = batches.members(calls)
    results = _channel("").call("", _requests(made, parallel), _seconds(timeout), BATCH)
    return batches.ends(made, results, return_exceptions)


async def abatch(
    calls: Iterable[Any], *, timeout: float | None = None, return_exceptions: bool = False, parallel: bool = False
) -> list[Any]:
    """batch, for coroutines."""
    made = batches.members(calls)
    results = await _channel("").acall("", _requests(made, parallel), _seconds(timeout), BATCH)
    return batches.ends(made, results, return_exceptions)


def _requests(made: list[tuple[str, Any, float | None]], parallel: bool) -> bytes:
    requests = batches.requests(made, _encoded)
    return b'{"parallel":true,"requests":' + requests + b"}" if parallel else requests


def submit(tool: str, args: Mapping[str, Any] | None = None, **options: Any) -> tasks.Task:
    """Submits a call that runs even if this tool ends, and returns its task at once.

    options are id, timeout, attempts, priority, ttl, idempotency_key, at, delay, every, cron and catch_up. id names the
    task: the same id again is the same task. The tool is run up to attempts times (3), each for at most timeout
    seconds; with an idempotency_key it is not repeated once it has begun. ttl is the number of seconds for which the
    result is kept (a day). Tasks of a session with a higher priority (1, 0, -1) run first. at is the start time, delay
    the seconds until the start; every, in seconds, and cron make a schedule, which ends when the task is cancelled.
    """
    ask = _asking()
    return tasks.Task(ask("submit", tasks.submission(tool, _encoded(tool, args), **options))["id"], ask)


async def asubmit(tool: str, args: Mapping[str, Any] | None = None, **options: Any) -> tasks.AsyncTask:
    """submit, for coroutines."""
    ask = _aasking()
    told = await ask("submit", tasks.submission(tool, _encoded(tool, args), **options))
    return tasks.AsyncTask(told["id"], ask)


def task(id: str) -> tasks.Task:
    """The session's durable task with that id. Sends no request yet."""
    return tasks.Task(id, _asking())


def _asking() -> Callable[[str, bytes], Any]:
    """A function that makes requests about tasks on behalf of the current call."""
    link = channel.here()
    return lambda verb, request: (link or _channel("")).call(verb, request, None, TASK)


def _aasking() -> Callable[[str, bytes], Awaitable[Any]]:
    link = channel.here()
    return lambda verb, request: (link or _channel("")).acall(verb, request, None, TASK)


def describe(tool: str) -> dict[str, Any]:
    """The description of a tool, as mesh info --json prints it: "id", "description", "input_schema", "output_schema",
    "annotations" and more. ToolNotFound lists the nearest ids."""
    found: dict[str, Any] = _channel(tool).call(tool, b"", None, DESCRIBE)
    return found


async def adescribe(tool: str) -> dict[str, Any]:
    """describe, for coroutines."""
    found: dict[str, Any] = await _channel(tool).acall(tool, b"", None, DESCRIBE)
    return found


def progress(fraction: float | None = None, text: str = "") -> None:
    """Reports the progress of the current call, from 0 to 1, with one line of text. It is cheap, never raises, and does
    nothing outside of a call. Callers get at most one report a second; `mesh task show` shows it."""
    link = channel.here()
    if link is None:
        return
    fields: dict[str, Any] = {"message": str(text)[:4096]}
    if fraction is not None and fraction == fraction:
        fields["fields"] = {"fraction": min(max(float(fraction), 0.0), 1.0)}
    link.progress(fields)


def secret(name: str) -> str:
    """The value of a variable that the index declares; raises MissingSecret if it is not set."""
    try:
        return os.environ[name]
    except KeyError:
        pass
    what = f"set the environment variable {name}"
    if channel.current is not None:
        what = f"declare it under [[index.env]] in tools.toml and install the index with --env {name}"
    raise MissingSecret("invalid_request", f"there is no secret {name!r}: {what}", started=False, origin="caller")


def _channel(tool: str) -> channel.Channel:
    if not isinstance(tool, str):
        raise TypeError(f"a tool is called by its id, a text, not by {type(tool).__name__}")
    found = channel.here()
    if found is None:
        channel.refuse(
            "unavailable",
            "no tool is being called in this process: tools are called from inside a tool that the mesh runs",
            tool,
        )
    return found


def _encoded(tool: str, args: Mapping[str, Any] | None) -> bytes:
    if args is None:
        return b""
    try:
        body = encode(args)
    except NotSerializable as failure:
        message = "arguments" + str(failure).removeprefix("result")
    else:
        if body.startswith(b"{"):
            return body
        message = f"the arguments are of type {type(args).__name__}: they are an object, by parameter name"
    channel.refuse("invalid_arguments", message, tool)


def _seconds(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    timeout = float(timeout)
    if not timeout > 0:
        raise ValueError(f"the timeout is {timeout}: it is a number of seconds above 0")
    return None if timeout == float("inf") else timeout

