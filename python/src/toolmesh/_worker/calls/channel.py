"""A tool's own calls, on the side of its worker.

A nested call is a NESTED_CALL frame with an id from the worker; its answers have that id. In a worker of coroutines the
event loop reads them. In a worker of plain functions no loop reads while a tool runs: one waiting thread reads for all,
and when it has its own answer another one continues. A tool without nested calls pays nothing for this.
"""

from __future__ import annotations

import json
import os
from _thread import allocate_lock, get_ident, start_new_thread
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from ..schemas.values import decode
from ..state import limits
from ..wire import frames
from ..wire.frames import JSON, Frame, Reader
from . import threads
from .errors import error, failure
from .guard import Guard
from .output import Outlet

if TYPE_CHECKING:
    import asyncio

_WINDOW = 1 << 18  # bytes of a nested stream in flight, initially granted by the agent
_ITEM = 64  # what an item counts besides its bytes, as in the agent
_text = json.JSONEncoder().encode  # bound now: a tool may replace functions of json

current: Channel | None = None
"""The channel of this process; None where no call can be made."""
served: ContextVar[Any] = ContextVar("served", default=None)
"""In a process that is no worker: the same of the call of a host that this context serves."""


def here() -> Channel | None:
    """The channel of the calling code, if any."""
    return current or served.get()


def refuse(code: str, message: str, tool: str) -> NoReturn:
    """Raises the error of a nested call that is refused here."""
    raise error(code, message, tool=tool, started=False, origin="caller")


class Waiter:
    """A wait for frames, on a thread of its own."""

    __slots__ = ("id", "events", "used", "_lock")

    def __init__(self, number: int) -> None:
        self.id = number
        self.used = 0  # bytes of a stream taken since the last credit
        self.events: deque[tuple[int, bytes]] = deque()
        self._lock = allocate_lock()
        self._lock.acquire()

    def give(self, kind: int, body: bytes) -> None:
        self.events.append((kind, body))
        self.alert()

    def alert(self) -> None:
        """Ends a sleep, or the next one if none is in progress."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # alerted already

    def sleep(self) -> None:
        """Returns after an alert. It may return without a reason."""
        self._lock.acquire()


class Awaiting(Waiter):
    """A wait for frames on an event loop."""

    __slots__ = ("_loop", "_thread", "_future")

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(number)
        self._loop = loop
        self._thread = get_ident()
        self._future: asyncio.Future[None] | None = None

    def alert(self) -> None:
        if get_ident() == self._thread:
            self._wake()
            return
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            pass  # the loop is closed and the wait has ended

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def event(self) -> tuple[int, bytes]:
        while not self.events:
            self._future = self._loop.create_future()
            await self._future
        return self.events.popleft()


class Channel:
    """The common part of both workers' channels. Any thread may call it.

    Arguments are JSON bytes, results are values; a failure is a MeshError.
    """

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._waiters: dict[int, Waiter] = {}
        self._ids = count(1)
        self._unsent: list[bytes] = []
        self._main = get_ident()

    def caller(self) -> int:
        """The call of the calling code; 0 if unknown."""
        call = threads.owner()
        if call:
            return call
        # A thread of unknown origin belongs to the running call if that is the worker's only one.
        return self._only()

    def _only(self) -> int:
        """The running call, if this worker has had no other; else 0."""
        raise NotImplementedError

    def _runs(self, call: int) -> bool:
        raise NotImplementedError

    def progress(self, fields: dict[str, JSON]) -> None:
        """Reports the progress of the running call."""
        self._outlet.record(fields, frames.LOG_PROGRESS)

    def dispatch(self, kind: int, number: int, body: bytes) -> None:
        """Handles a frame about a nested call. Drops it if no thread waits for it."""
        waiter = self._waiters.get(number)
        if waiter is None:
            return
        if kind != frames.NESTED_ITEM:
            del self._waiters[number]
        waiter.give(kind, body)

    def _open(self, waiter: Waiter, tool: str, args: bytes, timeout: float | None, flags: int) -> None:
        """Sends a nested call, or refuses it."""
        if len(args) > limits.message:
            size = len(args)
            refuse("payload_too_large", f"the arguments are {size} bytes of JSON, more than {limits.message}", tool)
        call = self.caller()
        about: dict[str, JSON] = {"call": call, "tool": tool}
        if timeout is not None:
            about["timeout_ms"] = int(min(-(-timeout * 1000 // 1), 1e12))
        head = _text(about).encode()
        body = len(head).to_bytes(4, "little") + head + args
        frame = frames.HEADER.pack(len(body), frames.NESTED_CALL, flags, 0, waiter.id) + body
        outlet = self._outlet
        self._waiters[waiter.id] = waiter
        with outlet.lock:
            # Decided while no thread can write a call's end, so that no nested call follows that end.
            forked, over = outlet.fd < 0, not call or not self._runs(call)
            if not forked and not over:
                while self._unsent:
                    frames.write_all(outlet.fd, self._unsent.pop())
                frames.write_all(outlet.fd, outlet.released() + frame)  # held frames would wait for this call
                return
        del self._waiters[waiter.id]
        if forked:
            refuse("invalid_request", "a process that a tool forked cannot call other tools: the tool can", tool)
        if call:
            refuse("invalid_request", "the call that this code belongs to is over: it can call no other tools", tool)
        refuse("invalid_request", "it is not known which call this code belongs to: tools call tools, modules that "
                "are imported do not; threads are started inside the call, by threading.Thread, a ThreadPoolExecutor "
                "or asyncio.to_thread", tool)

    def _cancel(self, waiter: Waiter) -> None:
        """Tells the agent that no answer is awaited, unless the call has ended. The garbage collector may close a
        generator at any point, so this does not wait long for the pipe."""
        with self._shielded():
            if self._waiters.pop(waiter.id, None) is None:
                return
            frame = frames.HEADER.pack(0, frames.NESTED_CANCEL, 0, 0, waiter.id)
            lock = self._outlet.lock
            if not lock.acquire(True, 0.1):
                self._unsent.append(frame)
                return
            try:
                if self._outlet.fd >= 0:
                    frames.write_all(self._outlet.fd, frame)
            finally:
                lock.release()

    def _credit(self, waiter: Waiter) -> None:
        """Grants more items once half of the window is used up."""
        if waiter.used >= _WINDOW // 2:
            size = waiter.used.to_bytes(4, "little")
            with self._shielded():
                self._outlet.send(frames.HEADER.pack(4, frames.NESTED_CREDIT, 0, 0, waiter.id) + size)
            waiter.used = 0

    # Waits depend on the kind of worker.

    def _shielded(self) -> AbstractContextManager[None]:
        """The context in which this thread is not interrupted."""
        return nullcontext()

    def _enter(self, waiter: Waiter) -> None:
        """Called before a wait."""

    def _leave(self, waiter: Waiter) -> None:
        """Called after a wait."""

    def _event(self, waiter: Waiter) -> tuple[int, bytes]:
        """The next frame for waiter, after _enter."""
        raise NotImplementedError

    def call(self, tool: str, args: bytes, timeout: float | None, flags: int = 0) -> Any:
        """Makes the call, or the request that flags name, and waits for its result."""
        (value,) = self._answers(tool, args, timeout, flags)
        return value

    def stream(self, tool: str, args: bytes, timeout: float | None, flags: int = 0) -> Generator[Any, None, None]:
        """Calls a tool, or makes that request, and yields its items; closing it cancels the call."""
        return self._answers(tool, args, timeout, flags | frames.STREAM)

    def _answers(self, tool: str, args: bytes, timeout: float | None, flags: int) -> Generator[Any, None, None]:
        """The values of the answers; bytes if they are of a file."""
        waiter = Waiter(next(self._ids))
        opened = False
        try:
            while True:
                with self._shielded():
                    self._enter(waiter)
                    try:
                        if not opened:
                            self._open(waiter, tool, args, timeout, flags)
                            opened = True
                        else:
                            self._credit(waiter)
                        kind, body = self._event(waiter)
                    finally:
                        self._leave(waiter)
                if kind == frames.NESTED_ERROR:
                    raise failure(body, tool)
                if kind != frames.NESTED_END:
                    waiter.used += len(body) + _ITEM
                    yield body if flags & frames.FILE else decode(body)
                if kind != frames.NESTED_ITEM:
                    return
        finally:
            self._cancel(waiter)

    _begin = _open  # the same on an event loop

    async def acall(self, tool: str, args: bytes, timeout: float | None, flags: int = 0) -> Any:
        """call, on an event loop."""
        (value,) = [value async for value in self._aanswers(tool, args, timeout, flags)]
        return value

    def astream(self, tool: str, args: bytes, timeout: float | None) -> AsyncGenerator[Any, None]:
        """stream, on an event loop."""
        return self._aanswers(tool, args, timeout, frames.STREAM)

    async def _aanswers(
        self, tool: str, args: bytes, timeout: float | None, flags: int
    ) -> AsyncGenerator[Any, None]:
        import asyncio

        waiter = Awaiting(next(self._ids), asyncio.get_running_loop())
        try:
            self._begin(waiter, tool, args, timeout, flags)
            while True:
                kind, body = await waiter.event()
                if kind == frames.NESTED_ERROR:
                    raise failure(body, tool)
                if kind != frames.NESTED_END:
                    yield decode(body)
                    waiter.used += len(body) + _ITEM
                if kind != frames.NESTED_ITEM:
                    return
                self._credit(waiter)
        finally:
            self._cancel(waiter)


class PlainChannel(Channel):
    """The channel of a worker of plain functions: one waiting thread reads for all.

    The main thread is not interrupted while it waits. A cancellation arrives as a frame then, and the thread that reads
    it alerts the main thread.
    """

    def __init__(self, outlet: Outlet, reader: Reader, guard: Guard) -> None:
        super().__init__(outlet)
        self.running = 0  # the call of the worker; 0: none
        self.served = False  # a call has ended here
        self._reader = reader
        self._guard = guard
        self._turn = allocate_lock()  # held by the reading thread
        self._blocked: dict[Waiter, None] = {}  # waits that continue, or are about to
        self._idle = Waiter(0)  # the main thread's, for frames that are no answers
        self._resting: Waiter | None = None  # the current wait of the main thread
        self._inbox: deque[Frame] = deque()
        self._cancelled = 0  # the call to cancel
        self.used = False  # a thread may be reading, or may have left frames
        self.credit = 0  # bytes that the running call's stream may send in addition
        self._starting = allocate_lock()
        self._awaited: set[int] = set()  # nested calls of event loops that have not ended
        self._pump: Waiter | None = None

    def caller(self) -> int:
        call = threads.owner()
        if not call and get_ident() == self._main:
            return self.running  # in a context that the tool made
        return call or self._only()

    def _only(self) -> int:
        return 0 if self.served else self.running

    def _runs(self, call: int) -> bool:
        return self.running == call

    # The main thread, which may be cancelled.

    def _shielded(self) -> AbstractContextManager[None]:
        return self._guard if get_ident() == self._main else nullcontext()

    def _stopped(self) -> bool:
        return self._cancelled != 0 and self._cancelled == self.running and get_ident() == self._main

    # The reading thread.

    def _enter(self, waiter: Waiter) -> None:
        """Called before a wait. The main loop first notes its call's end and then looks for waiting threads; here the
        order is reversed, so that one of them sees the other."""
        self._blocked[waiter] = None
        self.used = True

    def _leave(self, waiter: Waiter) -> None:
        self._blocked.pop(waiter, None)
        if self._blocked and not self._turn.locked():
            for other in list(self._blocked)[:1]:
                other.alert()  # it must read now

    def _wait(self, waiter: Waiter, done: Callable[[], object]) -> None:
        main = get_ident() == self._main
        if main:
            self._resting = waiter
        try:
            while not done():
                if self._turn.acquire(False):
                    try:
                        while not done():
                            if not self._reader.take(self._give):
                                os._exit(0)  # the agent has ended
                    finally:
                        self._turn.release()
                else:
                    waiter.sleep()
        finally:
            if main:
                self._resting = None

    def _give(self, frame: Frame) -> None:
        """Passes a frame on. Called by the reading thread."""
        kind, _, _, about, body = frame
        if frames.NESTED_RESULT <= kind <= frames.NESTED_END:
            self.dispatch(kind, about, body)
            if kind != frames.NESTED_ITEM and about in self._awaited:
                self._awaited.discard(about)
                pump = self._pump
                if pump is not None and not self._awaited:
                    pump.alert()
            return
        if kind == frames.PING:
            self._outlet.send(frames.HEADER.pack(0, frames.PONG, 0, 0, about))
            return
        if kind == frames.CREDIT:
            if about == self.running:
                self.credit += int.from_bytes(body, "little")
        elif kind == frames.CANCEL:
            self._cancelled = about
        else:
            self._inbox.append(frame)
        resting = self._resting
        if resting is not None:
            resting.alert()

    def next(self) -> Frame | None:
        """The main loop's next frame, as Reader.next returns it if no thread reads."""
        if self._inbox:
            return self._inbox.popleft()
        self._enter(self._idle)
        if len(self._blocked) == 1:
            self._leave(self._idle)
            if self._inbox:
                return self._inbox.popleft()
            self.used = False
            return self._reader.next()
        try:
            self._wait(self._idle, lambda: self._inbox)
        finally:
            self._leave(self._idle)
        return self._inbox.popleft()

    def more(self) -> int:
        """Waits for credit; raises Cancelled. For the main thread while shielded."""
        self._enter(self._idle)
        try:
            self._wait(self._idle, lambda: self.credit > 0 or self._stopped())
        finally:
            self._leave(self._idle)
        if self._stopped():
            self._guard.cancel(self._cancelled)
        size, self.credit = self.credit, 0
        return size

    # Calls.

    def _event(self, waiter: Waiter) -> tuple[int, bytes]:
        """The next frame. The caller has entered and is shielded."""
        self._wait(waiter, lambda: waiter.events or self._stopped())
        if not waiter.events:
            self._guard.cancel(self._cancelled)
        return waiter.events.popleft()

    def _begin(self, waiter: Waiter, tool: str, args: bytes, timeout: float | None, flags: int) -> None:
        """For an event loop in a plain function: one thread reads for all its awaited calls, until the last one
        ends."""
        with self._shielded(), self._starting:
            pump = self._pump
            if pump is None:
                pump = Waiter(0)
                self._enter(pump)
            self._awaited.add(waiter.id)
            try:
                self._open(waiter, tool, args, timeout, flags)
                if self._pump is None:
                    start_new_thread(self._run_pump, (pump,))
                    self._pump = pump
            except BaseException:
                self._awaited.discard(waiter.id)
                if self._pump is None:
                    self._leave(pump)
                raise

    def _run_pump(self, waiter: Waiter) -> None:
        threads.block_signals()
        while True:
            self._wait(waiter, lambda: not self._awaited)
            with self._starting:
                if not self._awaited:
                    self._pump = None
                    self._leave(waiter)
                    return
