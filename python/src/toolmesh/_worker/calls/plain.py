"""The worker of plain functions and generators: one call at a time.

Calls run on the main thread, so that a signal can interrupt them anywhere, in a sleep as in a loop. The agent shares a
control page with the worker. Before it signals it writes the id of the call to cancel there, and the handler raises
only if that call is running. A late signal has no effect.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no stubs
import os
import sys
from collections.abc import Callable, Generator
from contextvars import copy_context
from time import perf_counter as _clock
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from .. import FOLDER
from ..schemas.binding import Tool
from ..schemas.values import encode
from ..state import limits, orphans, turns
from ..state.snapshot import Snapshot
from ..wire import frames
from ..wire.frames import JSON
from . import channel, failures, threads, transfer
from .guard import PAGE_STARTED, SIGNAL, Cancelled, Guard
from .output import Outlet, install
from .terminals import TooLarge, bound, failed, forked_by_tool, no_memory, unbound

_STREAMED = object()  # in place of a result: the items were sent


class Worker:
    """Serves calls until the agent closes the pipe.

    It is made before the fork and started after it: a worker that creates few objects touches a third of the pages, and
    the system copies each touched page.
    """

    def __init__(self, tools: list[Tool]) -> None:
        self._page = memoryview(bytes(8 * 8)).cast("Q")
        self._tools = tools
        self._limit = 0
        self._reader = frames.Reader(-1)
        self._guard = Guard(self._page)
        self._outlet = Outlet(-1, self._printing, self._guard)
        self._channel = channel.PlainChannel(self._outlet, self._reader, self._guard)

    def _printing(self) -> int:
        """The running call, if this thread's output belongs to it."""
        running = self._channel.running
        return running if threads.owner() in (0, running) else 0

    def install(self) -> None:
        """Directs tools' output, nested calls and signals to this worker."""
        channel.current = self._channel
        install(self._outlet)
        forked_by_tool(self._outlet, self._reader)
        _signal.signal(SIGNAL, self._guard.handle)  # signal.signal makes members of enums

    def start(
        self, inp: int, out: int, page: memoryview[int], limit: int, about: bytes, snapshot: Snapshot | None
    ) -> bool:
        """In the worker's own process: sends READY with about, which is JSON about the worker, and serves until the
        agent closes the pipe. With a snapshot, the state is restored after each call; False if that failed and this
        worker must be replaced."""
        self._reader.fd = inp
        self._page = self._guard.page = page
        self._limit = limit
        self._outlet.begin(out)
        if snapshot is not None:
            snapshot.begin()
        frames.write_all(out, frames.HEADER.pack(len(about), frames.READY, 0, 0, 0) + about)
        fit = self.serve(snapshot)
        sys.stdout.flush()
        return fit

    def serve(self, snapshot: Snapshot | None) -> bool:
        """The loop: one read and one write per call."""
        read, run, outlet, pack = self._reader.next, self._run, self._outlet, frames.HEADER.pack
        lock, out, write, sweep, nested = outlet.lock, outlet.fd, os.write, orphans.sweep, self._channel
        clock, swept = _clock, 0.0
        spent = 0
        while True:
            frame = nested.next() if nested.used else read()
            if frame is None:
                return True
            kind, flags, slot, call, body = frame
            if kind == frames.CALL:
                nested.running = call
                began = clock()
                kind, body = copy_context().run(run, flags, slot, call, body)  # context variables stay the call's own
                if outlet.fd < 0:
                    os._exit(0)  # a child process of the tool returned from the function
                now, over = clock(), False
                if now - began > orphans.SHORTEST or now - swept > orphans.PERIOD:
                    swept = now
                    sweep()
                    over = limits.exceeded()  # a short call can use some 100 kB
                if over or limits.memory and no_memory(kind, body):
                    kind, body, spent = frames.ERROR, failures.out_of_memory(), frames.SPENT
                if outlet.partial or outlet.budgets:
                    outlet.settle(call)
                if transfer.folders:
                    transfer.forget(call)
                nested.running = 0
                nested.served = True
                data = pack(len(body), kind, spent, slot, call) + body
                with lock:
                    if outlet.held:
                        data = outlet.released() + data
                    sent = write(out, data)
                    if sent != len(data):
                        frames.write_all(out, memoryview(data)[sent:])
                if snapshot is not None and not snapshot.mend():
                    return False
            elif kind == frames.PING:
                outlet.send(pack(0, frames.PONG, 0, 0, call))
            elif kind == frames.EXIT:
                return True
            elif kind not in (frames.CANCEL, frames.CREDIT) and not frames.NESTED_RESULT <= kind <= frames.NESTED_END:
                # These may arrive after the end of their call.
                raise frames.FrameError(f"frame type {kind} is unknown to this worker")

    def _run(self, flags: int, slot: int, call: int, body: bytes) -> tuple[int, bytes]:
        """Runs one call to its end: (frame type, body)."""
        threads.running.set(call)
        guard, tool = self._guard, self._tools[slot]
        try:
            try:
                positional, keyword, meta = bound(tool, flags, body)
            except Exception as failure:
                return frames.ERROR, unbound(failure, tool)
            if self._page[turns.PAGE_UNTIL]:
                turns.check(self._page[turns.PAGE_UNTIL])
            try:
                self._page[PAGE_STARTED] = call
                guard.begin(call)
                value = tool.function(*positional, **keyword)
                kind = type(value)
                if kind is CoroutineType or kind is AsyncGeneratorType:  # from a decorated function
                    value = self._looped(value, flags, tool, slot, call, meta)
                    kind = type(value)
                if kind is GeneratorType:
                    streams = flags & frames.STREAM
                    value = self._stream(tool, slot, call, value, meta) if streams else _drain(value, flags)
                data = b"" if value is _STREAMED else encode(value) if tool.dump is None else tool.encode(value)
            except BaseException as failure:
                guard.armed = 0
                if isinstance(failure, Cancelled):
                    return frames.ERROR, failures.cancelled()
                return frames.ERROR, failed(failure, tool, self._limit, keyword, positional)
            guard.armed = 0
            if value is _STREAMED:
                return frames.END, b""
            if len(data) > self._limit:
                return frames.ERROR, failures.too_large(len(data), self._limit, "result")
            return frames.RESULT, data
        except Cancelled:
            # It arrived between the end of the function and the lines above.
            guard.armed = 0
            return frames.ERROR, failures.cancelled()

    def _stream(
        self, tool: Tool, slot: int, call: int, items: Generator[Any, Any, Any], meta: dict[str, JSON]
    ) -> object:
        """Sends the items of a generator, within the credit."""
        send = self._sender(tool, slot, call, meta)
        try:
            for value in items:
                send(value)
        finally:
            items.close()
        return _STREAMED

    def _sender(self, tool: Tool, slot: int, call: int, meta: dict[str, JSON]) -> Callable[[Any], None]:
        """A function that sends an item."""
        guard, outlet, put, pack = self._guard, self._outlet, self._outlet.item, frames.HEADER.pack
        encode, limit, link = tool.encode, self._limit, self._channel
        credit = meta.get("credit", 1 << 18)
        link.credit = 0

        def send(value: Any) -> None:
            nonlocal credit
            data = encode(value)
            if len(data) > limit:
                raise TooLarge(len(data), "item")
            with guard:
                if outlet.partial:
                    outlet.settle(call)
                while credit <= 0:
                    outlet.settle_items()
                    credit += link.more()
                credit -= len(data) + 64
                put(pack(len(data), frames.YIELD, 0, slot, call) + data)

        return send

    def _looped(self, value: Any, flags: int, tool: Tool, slot: int, call: int, meta: dict[str, JSON]) -> Any:
        """The result of a coroutine, or the items of an async generator, on an event loop for this call."""
        import asyncio

        try:
            return asyncio.run(self._awaited(value, flags, tool, slot, call, meta))
        except asyncio.CancelledError:
            if self._guard.untasked(call):
                raise Cancelled from None
            raise
        finally:
            self._guard.untasked(call)

    async def _awaited(
        self, value: Any, flags: int, tool: Tool, slot: int, call: int, meta: dict[str, JSON]
    ) -> Any:
        """The task of _looped. A coroutine may return an async generator, as decorators do."""
        import asyncio
        import selectors

        from .coroutines import drained

        upkeep = (FOLDER, os.path.dirname(asyncio.__file__) + os.sep, selectors.__file__)
        self._guard.tasked(asyncio.get_running_loop(), asyncio.current_task(), upkeep)
        if type(value) is CoroutineType:
            value = await value
        if type(value) is not AsyncGeneratorType:
            return value
        if not flags & frames.STREAM:
            return await drained(value, flags)
        send = self._sender(tool, slot, call, meta)
        try:
            async for item in value:
                send(item)
        finally:
            await value.aclose()
        return _STREAMED


def _drain(items: Generator[Any, Any, Any], flags: int) -> Any:
    """A generator's last value, or the list of all."""
    if flags & frames.COLLECT:
        return list(items)
    value = None
    yielded = False
    while True:
        try:
            value = next(items)
            yielded = True
        except StopIteration as stop:
            return value if yielded else stop.value
