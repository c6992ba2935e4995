"""The worker of coroutines and async generators: many calls on one event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from _thread import get_ident
from collections.abc import AsyncGenerator, Generator
from inspect import CORO_CREATED, getcoroutinestate
from types import AsyncGeneratorType, FrameType, GeneratorType
from typing import Any

from .. import FOLDER
from ..schemas.binding import Tool
from ..schemas.values import encode
from ..state import limits, orphans, turns
from ..state.snapshot import Snapshot
from ..wire import frames
from ..wire.frames import JSON
from . import channel, failures, threads, transfer
from .channel import Channel, Waiter, refuse
from .guard import PAGE_CANCEL, PAGE_HEARD, PAGE_RUNNING, PAGE_TAKEN, SIGNAL
from .output import UNSHIELDED, Outlet, install
from .terminals import TooLarge, bound, failed, forked_by_tool, no_memory, raw_pending, unbound

# Folders of code that is never interrupted: ours and the loop's.
_UNTOUCHED = (FOLDER, os.path.dirname(asyncio.__file__) + os.sep)
# Bytes of short frames that are read at once. Calls that arrive together start in groups, so their waits end in groups,
# too, and others run in between.
_READ = 1 << 12
# New objects between two collections. Each call in flight is some tens of objects, which would reach Python's own
# threshold again and again.
_YOUNG = 10_000
_SAMPLE = 0.01  # seconds of processor time between two samples of the running call
_call = threads.running


class _Credit:
    """Bytes that one stream may still send."""

    __slots__ = ("left", "_more")

    def __init__(self, left: int) -> None:
        self.left = left
        self._more: asyncio.Future[None] | None = None

    def add(self, size: int) -> None:
        self.left += size
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def wait(self) -> None:
        """Returns when there is credit."""
        while self.left <= 0:
            self._more = asyncio.get_running_loop().create_future()
            await self._more


class Worker:
    """Serves calls until the agent closes the pipe."""

    def __init__(
        self, inp: int, out: int, page: memoryview[int], tools: list[Tool], limit: int, snapshot: Snapshot | None
    ) -> None:
        self._reader = frames.Reader(inp)
        self._page = page
        self._tools = tools
        self._limit = limit
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._credit: dict[int, _Credit] = {}
        self._asked: set[int] = set()  # calls cancelled by the agent
        self._taken = 0
        self._outlet = Outlet(out, self._printing, UNSHIELDED)  # coroutines are cancelled between steps
        self._channel = channel.current = LoopChannel(self, self._outlet)
        self._giving = False  # held frames are about to be written
        install(self._outlet)
        forked_by_tool(self._outlet, self._reader)
        signal.signal(SIGNAL, self._interrupt)
        if limits.cpu_time:
            signal.signal(signal.SIGPROF, self._sample)
            signal.siginterrupt(signal.SIGPROF, False)
            signal.setitimer(signal.ITIMER_PROF, _SAMPLE, _SAMPLE)
        self._snapshot = snapshot
        self.fit = True  # ready for more calls
        if snapshot is not None:
            snapshot.begin()
            snapshot.handle(SIGNAL, signal.getsignal(SIGNAL))
            if limits.cpu_time:
                snapshot.handle(signal.SIGPROF, signal.getsignal(signal.SIGPROF), _SAMPLE)

    def _printing(self) -> int:
        """The call that output now belongs to, while it runs: a task may outlive its call."""
        call = _call.get()
        return call if call in self._tasks else 0

    def _sample(self, _signum: int, _frame: FrameType | None) -> None:
        """Tells the agent which call uses the processor, so that it can charge the right call of those on this loop."""
        call = _call.get()
        if call:
            self._page[PAGE_RUNNING] = call

    def _interrupt(self, _signum: int, frame: FrameType | None) -> None:
        """Cancels the given call while it blocks the loop: at its current line, if that is in the tool's code.
        Elsewhere it does nothing: the loop will handle the request soon, or the agent signals again.

        It calls no Python function of another file: a second signal would take that for the tool's code, and its
        exception would leave this handler into the code that the first signal has interrupted.
        """
        call = _call.get()
        if call == 0 or self._page[PAGE_CANCEL] != call or call in self._asked:
            return
        if frame is None or frame.f_code.co_filename.startswith(_UNTOUCHED):
            return
        task = self._tasks.get(call)
        if task is not None and asyncio.current_task(self._loop) is task:
            self._heard(call)
            raise asyncio.CancelledError

    def _heard(self, call: int) -> None:
        self._asked.add(call)
        self._page[PAGE_HEARD] = call

    def serve(self, loop: asyncio.AbstractEventLoop, about: bytes) -> asyncio.Future[None]:
        """Sends READY with about, and serves while the loop runs. Returns a callback, which is done when the agent
        closes the pipe. A task would be found by a tool that cancels all tasks."""
        self._loop = loop
        self._ready = getattr(loop, "_ready", (None,))  # other kinds of loop may not have it
        self._done: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._reader.fd, self._readable)
        self._outlet.send(frames.HEADER.pack(len(about), frames.READY, 0, 0, 0) + about)
        return self._done

    def _give(self, data: bytes) -> None:
        """Writes a frame, or holds it back while others may follow at once: until the loop has run all ready callbacks,
        or is idle."""
        if not self._ready:
            self._outlet.send(data)  # nothing else is ready before the loop sleeps
        elif self._outlet.gather(data) and not self._giving:
            self._giving = True
            self._loop.call_soon(self._given)

    def _given(self) -> None:
        self._giving = False
        self._outlet.settle_items()

    def _finish(self, failure: frames.FrameError | None = None) -> None:
        if not self._done.done():
            self._loop.remove_reader(self._reader.fd)
            if failure is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(failure)

    def _readable(self) -> None:
        if not self._reader.read(_READ):
            self._finish()
            return
        while self._reader.give(self._take):
            pass
        self._page[PAGE_TAKEN] = self._taken  # none of the new calls has made a step yet

    def _take(self, frame: frames.Frame) -> None:
        kind, flags, slot, call, body = frame
        if kind == frames.CALL:
            if self._page[turns.PAGE_UNTIL]:
                turns.check(self._page[turns.PAGE_UNTIL])
            # Without the loop's task factory, which a tool may have set.
            self._tasks[call] = asyncio.Task(self._run(flags, slot, call, body), loop=self._loop)
            self._taken += 1
        elif kind == frames.CANCEL:
            running = self._tasks.get(call)
            if running is not None and call not in self._asked:
                self._heard(call)
                running.cancel()
                self._unbegun(call, running)
        elif kind == frames.CREDIT:
            credit = self._credit.get(call)
            if credit is not None:
                credit.add(int.from_bytes(body, "little"))
        elif frames.NESTED_RESULT <= kind <= frames.NESTED_END:
            self._channel.dispatch(kind, call, body)
        elif kind == frames.PING:
            for one, task in list(self._tasks.items()):
                self._unbegun(one, task)
            self._outlet.send(frames.HEADER.pack(0, frames.PONG, 0, 0, call))
        elif kind == frames.EXIT:
            self._finish()
        else:
            self._finish(frames.FrameError(f"frame type {kind} is unknown to this worker"))

    def _unbegun(self, call: int, task: asyncio.Task[None]) -> None:
        """Ends a call that was cancelled before its first step, by the agent or by a tool that cancels all tasks: its
        coroutine, which would send the end, never runs."""
        coroutine: Any = task.get_coro()
        waits = getattr(task, "_must_cancel", False) and getcoroutinestate(coroutine) == CORO_CREATED
        if waits or task.done():
            self._tasks.pop(call, None)
            self._asked.discard(call)
            body = failures.body("cancelled", "the call was cancelled", False)
            self._outlet.send(frames.HEADER.pack(len(body), frames.ERROR, 0, 0, call) + body)

    async def _run(self, flags: int, slot: int, call: int, body: bytes) -> None:
        _call.set(call)
        tool = self._tools[slot]
        begun = False
        kind, data = frames.RESULT, b""
        try:
            if tool.takes_files:  # they arrive through the loop, which must not block
                positional, keyword, meta = await asyncio.to_thread(bound, tool, flags, body)
            else:
                positional, keyword, meta = bound(tool, flags, body)
            begun = True
            value = tool.function(*positional, **keyword)
            if type(value) is not AsyncGeneratorType and hasattr(value, "__await__"):
                value = await value
                if type(value) is GeneratorType:
                    value = _steps(value, flags & (frames.STREAM | frames.COLLECT))
            if type(value) is AsyncGeneratorType:
                if flags & frames.STREAM:
                    await self._stream(tool, slot, call, value, meta)
                    kind = frames.END
                else:
                    value = await drained(value, flags)
            if kind == frames.RESULT:
                if tool.gives_files:
                    data = await asyncio.to_thread(tool.encode, value)
                else:
                    data = encode(value) if tool.dump is None else tool.encode(value)
                if len(data) > self._limit:
                    kind, data = frames.ERROR, failures.too_large(len(data), self._limit, "result")
        except BaseException as failure:  # noqa: B036 - one terminal per call; sys.exit is the tool's failure
            kind = frames.ERROR
            try:
                if not begun:
                    data = unbound(failure, tool)
                elif isinstance(failure, asyncio.CancelledError) and call in self._asked:
                    data = failures.cancelled()
                else:
                    data = failed(failure, tool, self._limit, keyword, positional)
            except BaseException as second:  # noqa: B036 - as above
                data = failures.raised(second, tool.name)
        if self._outlet.fd < 0:
            os._exit(0)
        if self._tasks.pop(call, None) is None:
            return  # its end was sent
        if self._asked:
            self._asked.discard(call)
        if transfer.folders:
            transfer.forget(call)
        if self._outlet.partial or self._outlet.budgets:
            self._outlet.settle(call)
        raw = 0
        if not self._tasks:
            orphans.sweep()  # they belong to ended calls, as none runs
            raw = raw_pending()
        if limits.memory and (limits.exceeded() or no_memory(kind, data)):
            kind, data = frames.ERROR, failures.out_of_memory()
            raw |= frames.SPENT
        try:
            frame = frames.HEADER.pack(len(data), kind, raw, slot, call) + data
        except MemoryError as failure:
            data = failures.raised(failure, tool.name)
            frame = frames.HEADER.pack(len(data), frames.ERROR, raw, slot, call) + data
        self._give(frame)
        if self._snapshot is not None and not self._tasks and not self._snapshot.mend():
            self.fit = False
            self._finish()

    async def _stream(
        self, tool: Tool, slot: int, call: int, items: AsyncGenerator[Any, Any], meta: dict[str, JSON]
    ) -> None:
        credit = self._credit[call] = _Credit(meta.get("credit", 1 << 18))
        try:
            async for value in items:
                data = tool.encode(value)
                if len(data) > self._limit:
                    raise TooLarge(len(data), "item")
                if self._outlet.partial:
                    self._outlet.settle(call)
                if credit.left <= 0:
                    self._outlet.settle_items()
                    await credit.wait()
                credit.left -= len(data) + 64
                self._give(frames.HEADER.pack(len(data), frames.YIELD, 0, slot, call) + data)
        finally:
            self._credit.pop(call, None)
            await items.aclose()


class LoopChannel(Channel):
    """The channel of a worker of coroutines: its loop always reads."""

    def __init__(self, worker: Worker, outlet: Outlet) -> None:
        super().__init__(outlet)
        self._worker = worker

    def _only(self) -> int:
        return next(iter(list(self._worker._tasks)), 0) if self._worker._taken == 1 else 0

    def _runs(self, call: int) -> bool:
        return call in self._worker._tasks

    def _answers(self, tool: str, args: bytes, timeout: float | None, flags: int) -> Generator[Any, None, None]:
        if get_ident() == self._main:
            instead = "await mesh.acall(...)"
            if flags & frames.FILE:
                tool, instead = "", "declare the result as a File, or return it from a thread"
            elif flags & frames.STREAM:
                instead = "async for item in mesh.astream(...)"
            refuse("invalid_request", f"this would block the event loop that all calls here run on: {instead}", tool)
        return super()._answers(tool, args, timeout, flags)

    def _event(self, waiter: Waiter) -> tuple[int, bytes]:
        while not waiter.events:
            waiter.sleep()
        return waiter.events.popleft()


async def _steps(items: Generator[Any, Any, Any], yields: int) -> AsyncGenerator[Any, Any]:
    """Runs a plain generator that a coroutine returned as an async one, so that other calls run between its items."""
    found = False
    try:
        while True:
            try:
                value = next(items)
            except StopIteration as stop:
                if not yields and not found:
                    yield stop.value  # its return value is its result, as for a declared generator
                return
            found = True
            yield value
            await asyncio.sleep(0)
    finally:
        items.close()


async def drained(items: AsyncGenerator[Any, Any], flags: int) -> Any:
    """An async generator's last value, or the list of all."""
    if flags & frames.COLLECT:
        return [value async for value in items]
    last = None
    async for value in items:
        last = value
    return last


def start(
    tools: list[Tool],
    inp: int, out: int, page: memoryview[int], limit: int, about: bytes, snapshot: Snapshot | None = None,
) -> bool:
    """Serves tools as a worker of coroutines; the counterpart of plain's start."""
    worker = Worker(inp, out, page, tools, limit, snapshot)
    young, *older = gc.get_threshold()
    if 0 < young < _YOUNG:
        gc.set_threshold(_YOUNG, *older)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    serving = worker.serve(loop, about)
    try:
        while not serving.done():
            try:
                loop.run_until_complete(serving)
            except (SystemExit, KeyboardInterrupt, RuntimeError):
                # Raised by a task or callback of a tool. The code that awaits it gets it, too; for all others the
                # loop continues. Or a tool has stopped the loop.
                if serving.done() or loop.is_closed():
                    raise
    finally:
        try:
            _wind_up(loop)
        finally:
            worker._outlet.settle_items()
    sys.stdout.flush()
    return worker.fit


def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """Ends tasks that tools left on the loop, as asyncio.run does."""
    loop.set_task_factory(None)  # a tool's may not work any more
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    try:
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
