"""Which call of a host this code serves, if any: what it calls goes through the same bridge, one deeper."""

from __future__ import annotations

import contextvars
import time
import typing

from .._core import batches, scope, tasks, tool_side

if typing.TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from typing import Any

    from .bridge import Asked, Bridge

    Args = Mapping[str, Any] | None


class Served:
    """The mesh as the code of one call has it: the functions of toolmesh.mesh, on behalf of that call."""

    def __init__(self, bridge: Bridge, call: str) -> None:
        self._bridge, self._call = bridge, call

    def progress(self, fraction: float | None, text: str) -> None:
        said: dict[str, Any] = {"text": str(text)[:256]}
        if fraction is not None and fraction == fraction:
            said["fraction"] = min(max(float(fraction), 0.0), 1.0)
        self._bridge.frame("rpc_progress", rpc_id=self._call, progress=said)

    def _asked(self, kind: str, tool: str, body: bytes, timeout: float | None = None, **fields: Any) -> Asked:
        seconds = tool_side._seconds(timeout)
        if seconds is not None:
            fields["timeout_ms"] = max(1, int(seconds * 1000))
        return self._bridge.ask(kind, tool, body, parent=self._call, **fields)

    def _called(self, kind: str, tool: str, args: Args, timeout: float | None) -> Asked:
        return self._asked(kind, tool, b'"kwargs":' + (tool_side._encoded(tool, args) or b"{}"), timeout, tool_id=tool)

    def call(self, tool: str, args: Args = None, *, timeout: float | None = None) -> Any:
        return self._called("rpc_tool_call", tool, args, timeout).result()

    async def acall(self, tool: str, args: Args = None, *, timeout: float | None = None) -> Any:
        return await self._called("rpc_tool_call", tool, args, timeout).aresult()

    def stream(self, tool: str, args: Args = None, *, timeout: float | None = None) -> Iterator[Any]:
        return self._called("rpc_tool_stream", tool, args, timeout).items()

    def astream(self, tool: str, args: Args = None, *, timeout: float | None = None) -> AsyncIterator[Any]:
        return self._called("rpc_tool_stream", tool, args, timeout).aitems()

    def _members(self, made: list[Any], timeout: float | None, parallel: bool) -> Asked:
        body = b'"requests":' + batches.requests(made, tool_side._encoded)
        return self._asked("rpc_batch_call", "", body, timeout, **({"parallel": True} if parallel else {}))

    def batch(self, calls: Iterable[Any], *, timeout: float | None, return_exceptions: bool,
              parallel: bool = False) -> list[Any]:
        made = batches.members(calls)
        return batches.ends(made, self._members(made, timeout, parallel).result(), return_exceptions)

    async def abatch(self, calls: Iterable[Any], *, timeout: float | None, return_exceptions: bool,
                     parallel: bool = False) -> list[Any]:
        made = batches.members(calls)
        return batches.ends(made, await self._members(made, timeout, parallel).aresult(), return_exceptions)

    def submit(self, tool: str, args: Args = None, **options: Any) -> tasks.Task:
        return self.task(self._ask("submit", tasks.submission(tool, tool_side._encoded(tool, args), **options))["id"])

    async def asubmit(self, tool: str, args: Args = None, **options: Any) -> tasks.AsyncTask:
        body = tasks.submission(tool, tool_side._encoded(tool, args), **options)
        return tasks.AsyncTask((await self._aask("submit", body))["id"], self._aask)

    def task(self, id: str) -> tasks.Task:
        return tasks.Task(id, self._ask)

    def _ask(self, verb: str, request: bytes) -> Any:
        return self._asked("task_request", "", b'"kwargs":' + request, tool_id=verb).result()

    async def _aask(self, verb: str, request: bytes) -> Any:
        return await self._asked("task_request", "", b'"kwargs":' + request, tool_id=verb).aresult()

    def describe(self, tool: str) -> Any:
        return self._asked("describe_tool", tool, b"", tool_id=tool).result()

    async def adescribe(self, tool: str) -> Any:
        return await self._asked("describe_tool", tool, b"", tool_id=tool).aresult()


current: contextvars.ContextVar[Served | None] = contextvars.ContextVar("serving", default=None)


def enter(bridge: Bridge, frame: dict[str, Any]) -> None:
    """In the context of a call: it is what is served here."""
    current.set(Served(bridge, frame["rpc_id"]))
    left = frame.get("timeout_ms")
    scope.set((frame.get("session_id"), None if left is None else time.monotonic() + left / 1000))
