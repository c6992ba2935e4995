"""Which call of a host this code serves, if any: what it calls goes through the same bridge, one deeper."""

from __future__ import annotations

import contextvars
import time
import typing

from .._core import batches, scope, tasks

if typing.TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from typing import Any

    from .bridge import Bridge

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

    def call(self, tool: str, args: Args = None, *, timeout: float | None = None) -> Any:
        return self._bridge.call(self._call, tool, args, timeout, False).result()

    async def acall(self, tool: str, args: Args = None, *, timeout: float | None = None) -> Any:
        return await self._bridge.call(self._call, tool, args, timeout, False).aresult()

    def stream(self, tool: str, args: Args = None, *, timeout: float | None = None) -> Iterator[Any]:
        return self._bridge.call(self._call, tool, args, timeout, True).items()

    def astream(self, tool: str, args: Args = None, *, timeout: float | None = None) -> AsyncIterator[Any]:
        return self._bridge.call(self._call, tool, args, timeout, True).aitems()

    def batch(self, calls: Iterable[Any], *, timeout: float | None, return_exceptions: bool,
              parallel: bool = False) -> list[Any]:
        made = batches.members(calls)
        return batches.ends(made, self._bridge.batch(self._call, made, timeout, parallel).result(), return_exceptions)

    async def abatch(self, calls: Iterable[Any], *, timeout: float | None, return_exceptions: bool,
                     parallel: bool = False) -> list[Any]:
        made = batches.members(calls)
        ends = await self._bridge.batch(self._call, made, timeout, parallel).aresult()
        return batches.ends(made, ends, return_exceptions)

    def submit(self, tool: str, args: Args = None, **options: Any) -> tasks.Task:
        body = tasks.submission(tool, self._bridge.encoded(tool, args), **tasks.DEFAULTS | options)
        return self.task(self._ask("submit", body)["id"])

    async def asubmit(self, tool: str, args: Args = None, **options: Any) -> tasks.AsyncTask:
        body = tasks.submission(tool, self._bridge.encoded(tool, args), **tasks.DEFAULTS | options)
        return tasks.AsyncTask((await self._aask("submit", body))["id"], self._aask)

    def task(self, id: str) -> tasks.Task:
        return tasks.Task(id, self._ask)

    def _ask(self, verb: str, request: bytes) -> Any:
        return self._bridge.task(self._call, verb, request).result()

    async def _aask(self, verb: str, request: bytes) -> Any:
        return await self._bridge.task(self._call, verb, request).aresult()

    def describe(self, tool: str) -> Any:
        return self._bridge.describe(self._call, tool).result()

    async def adescribe(self, tool: str) -> Any:
        return await self._bridge.describe(self._call, tool).aresult()


current: contextvars.ContextVar[Served | None] = contextvars.ContextVar("serving", default=None)


def enter(bridge: Bridge, frame: dict[str, Any]) -> None:
    """In the context of a call: it is what is served here."""
    current.set(Served(bridge, frame["rpc_id"]))
    left = frame.get("timeout_ms")
    scope.set((frame.get("session_id"), None if left is None else time.monotonic() + left / 1000))
