"""The worker of plain functions and generators: one call at a time.

Calls run on the main thread, so that a signal can interrupt them wherever they
are, in a sleep and in a loop alike. The control page is shared with the agent:
before it signals, the agent writes there which call is meant, and the handler
raises only if that call is the one that runs. A late signal hits nobody.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no stubs
import fcntl
import os
import signal
import sys
import termios
from contextvars import copy_context
from time import perf_counter as _clock
from types import AsyncGeneratorType, CoroutineType, GeneratorType

from . import channel, failures, forking, limits, strays, threads
from .frames import (
    BRISK,
    CALL,
    CANCEL,
    COLLECT,
    CREDIT,
    END,
    ERROR,
    EXIT,
    HEADER,
    META,
    NESTED_END,
    NESTED_RESULT,
    PING,
    PONG,
    RAW,
    READY,
    RESULT,
    SPENT,
    STREAM,
    YIELD,
    FrameError,
    Reader,
    write_all,
)
from .output import Outlet, install
from .values import Mismatch, NotSerializable, encode

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from types import FrameType
    from typing import Any, NoReturn

    from . import aloop
    from .binding import Tool
    from .keep import Keeper
    from .values import JSON

# Words of the control page, u64 each. The agent writes the first, we the rest.
PAGE_CANCEL = 0  # id of the call that is to stop
PAGE_STARTED = 1  # id of the last call whose function was entered
PAGE_TAKEN = 2  # how many CALL frames were taken up
PAGE_HEARD = 3  # id of the last call that was told to stop: the agent need not signal it again
PAGE_RUNNING = 4  # id of a call that an event loop was seen to run; the agent clears it

SIGNAL = signal.SIGURG  # ignored by default: harmless should it ever arrive too early


class Cancelled(BaseException):
    """The caller gave up or the call's time is up. Not an Exception, so that
    `except Exception` in a tool does not swallow it."""


_STREAMED = object()  # in the place of a result: the items were sent


class _TooLarge(Exception):
    def __init__(self, size: int, what: str) -> None:
        self.size = size
        self.what = what


class Guard:
    """Decides whether a cancellation may be raised now.

    armed is the call whose function is on the stack. As a context manager it
    shields a write: what arrives meanwhile is raised when it is over.
    """

    __slots__ = ("armed", "page", "_held", "_late", "_raised", "_loop", "_task", "_told", "_upkeep")

    def __init__(self, page: memoryview[int]) -> None:
        self.armed = 0
        self.page = page
        self._held = 0
        self._late = False
        self._raised = 0
        self._loop: Any = None
        self._task: Any = None
        self._told = 0  # the call whose task was told
        self._upkeep: tuple[str, ...] = ()

    def handle(self, _signum: int, frame: FrameType | None) -> None:
        """The signal handler: raises Cancelled in the call that is meant."""
        call = self.armed
        if call and self.page[PAGE_CANCEL] == call and self._raised != call:
            if self._held:
                self._late = True
            elif self._loop is None or self._loop.is_closed():
                self.cancel(call)
            elif self._told != call:
                self._told = call
                self._loop.call_soon_threadsafe(self._heard, call)
            elif frame is not None and not frame.f_code.co_filename.startswith(self._upkeep):
                self.cancel(call)  # signalled again: the loop hears of nothing

    def _heard(self, call: int) -> None:
        """Runs in the loop, when no step of the task does."""
        if self._task is not None and self._raised != call:
            self._raised = self.page[PAGE_HEARD] = call
            self._task.cancel()

    def tasked(self, loop: Any, task: Any, upkeep: tuple[str, ...]) -> None:
        """From here on the function's code is a task of a loop, and is cancelled as
        tasks are: what is raised where it awaits something would leave that behind,
        not cleaned up. Only code that keeps its loop from hearing of it is cut off
        where it stands, if that is neither in the loop's own upkeep nor here."""
        self._loop, self._task, self._upkeep = loop, task, upkeep

    def untasked(self, call: int) -> bool:
        """The loop has ended; True if call has been cancelled."""
        self._loop = self._task = None
        return self._raised == call

    def rearm(self, call: int) -> None:
        """Goes on with the function of call, which was disarmed for a while. Raises
        Cancelled if that was to be raised meanwhile and has not been before."""
        self.armed = call
        if self.page[PAGE_CANCEL] == call and self._raised != call:
            self.cancel(call)

    def cancel(self, call: int) -> NoReturn:
        """Raises Cancelled in call. Its signal, should it come yet, raises no second
        one while the function cleans up."""
        self._raised = self.page[PAGE_HEARD] = call
        raise Cancelled

    def __enter__(self) -> None:
        self._held += 1

    def __exit__(self, *_: object) -> None:
        self._held -= 1
        if self._late and not self._held:
            self._late = False
            if self.armed:
                self._raised = self.page[PAGE_HEARD] = self.armed
                raise Cancelled


def split_meta(body: bytes, tool: Tool) -> tuple[dict[str, JSON], bytes]:
    """(meta, arguments) of a CALL body with the META flag."""
    size = int.from_bytes(body[:4], "little")
    return tool.decode(body[4 : 4 + size]), body[4 + size :]


def forked_by_tool(outlet: Outlet, worker: Worker | aloop.Worker) -> None:
    """Keeps a process that a tool forks off the channel to the agent."""

    def closed() -> None:
        if forking.forks():
            return
        worker._forked = True
        fds = worker._inp, outlet.fd
        outlet.abandon()
        for fd in fds:
            try:
                os.close(fd)
            except OSError:
                pass

    os.register_at_fork(after_in_child=closed)


class Worker:
    """Serves calls until the agent closes the pipe.

    It is made before the fork, of no use yet: a worker that makes nothing new
    touches a third of the pages, each of which the system copies.
    """

    def __init__(self, tools: list[Tool]) -> None:
        self._inp = self._out = -1
        self._page = memoryview(bytes(8 * 8)).cast("Q")
        self._tools = tools
        self._limit = 0
        self._reader = Reader(-1)
        self._guard = Guard(self._page)
        self._call = 0
        self._served = False  # a call has ended here
        self._outlet = Outlet(-1, self._current, self._guard)
        self._forked = False
        self._channel = channel.PlainChannel(self, self._outlet)

    def install(self) -> None:
        """Makes this what tools' output, nested calls and signals go to."""
        channel.current = self._channel
        install(self._outlet)
        forked_by_tool(self._outlet, self)
        _signal.signal(SIGNAL, self._guard.handle)  # signal's own makes members of enums

    def _current(self) -> int:
        return self._call

    def start(
        self, inp: int, out: int, page: memoryview[int], limit: int, about: bytes, keeper: Keeper | None
    ) -> bool:
        """In the worker's own process: tells the agent that calls may come, with about,
        which is JSON about the worker, and serves until the agent is done with it. With
        a keeper others follow each call; False when that could not put back what one
        had changed, and this worker is to be replaced."""
        self._inp = self._reader.fd = inp
        self._out = out
        self._page = self._guard.page = page
        self._limit = limit
        self._outlet.begin(out)
        if keeper is not None:
            keeper.begin()
        write_all(out, HEADER.pack(len(about), READY, 0, 0, 0) + about)
        fit = self.serve(keeper)
        sys.stdout.flush()
        return fit

    def serve(self, keeper: Keeper | None) -> bool:
        """The loop: one read and one write per call."""
        read, look, run, outlet, pack = self._reader.next, self._reader.look, self._run, self._outlet, HEADER.pack
        lock, out, write, sweep, nested = outlet.lock, self._out, os.write, strays.sweep, self._channel
        clock, swept = _clock, 0.0
        spent = 0
        while True:
            frame = nested.next() if nested.used else read()
            if frame is None:
                return True
            kind, flags, slot, call, body = frame
            if kind == CALL:
                self._call = call
                began = clock()
                kind, body = copy_context().run(run, flags, slot, call, body)  # what a call sets there is its own
                if self._forked:
                    os._exit(0)  # a child of the tool came back from the function
                if limits.memory and (limits.exceeded() or _no_memory(kind, body)):
                    kind, body, spent = ERROR, failures.out_of_memory(), SPENT
                now = clock()
                if now - began > strays.SWIFT or now - swept > strays.SELDOM:
                    swept = now
                    sweep()
                if outlet.dirty:
                    outlet.settle(call)
                self._call = 0
                self._served = True
                data = pack(len(body), kind, spent, slot, call) + body
                with lock:
                    if outlet.held:
                        data = outlet.released() + data
                    sent = write(out, data)
                    if sent != len(data):
                        write_all(out, memoryview(data)[sent:])
                if keeper is not None and not keeper.mend():
                    return False
                if flags & BRISK:
                    look()
            elif kind == PING:
                outlet.send(pack(0, PONG, 0, 0, call))
            elif kind == EXIT:
                return True
            elif kind not in (CANCEL, CREDIT) and not NESTED_RESULT <= kind <= NESTED_END:
                # Those may come after the end of what they are about.
                raise FrameError(f"frame type {kind} is unknown to this worker")

    def _run(self, flags: int, slot: int, call: int, body: bytes) -> tuple[int, bytes]:
        """Runs one call to its terminal: (frame type, body)."""
        threads.running.set(call)
        guard, tool = self._guard, self._tools[slot]
        positional: Sequence[Any]
        keyword: dict[str, Any]
        try:
            try:
                extra = None
                if flags & META:
                    meta, body = split_meta(body, tool)
                    extra = meta.get("varargs")
                arguments = tool.decode(body) if body else {}
                if tool.direct and extra is None and type(arguments) is dict:
                    positional, keyword = (), arguments
                else:
                    positional, keyword = tool.bind(arguments, extra, body)
            except Mismatch as failure:
                return ERROR, failures.invalid([failure])
            except ValueError as failure:
                return ERROR, not_json(failure)
            except RecursionError:
                return ERROR, failures.invalid([too_deep()])
            except Exception as failure:  # of a converter of the tool, like __post_init__
                return ERROR, failures.raised(failure, tool.name)
            try:
                self._page[PAGE_STARTED] = call
                guard.armed = call
                if self._page[PAGE_CANCEL] == call:
                    guard.cancel(call)  # its signal came before the call did
                value = tool.function(*positional, **keyword)
                kind = type(value)
                if kind is CoroutineType or kind is AsyncGeneratorType:  # of a decorated function
                    value = self._looped(value, flags, tool, slot, call, meta if flags & META else {})
                    kind = type(value)
                    if value is _STREAMED:
                        guard.armed = 0
                        return END, b""
                if kind is GeneratorType:
                    if flags & STREAM:
                        self._stream(tool, slot, call, value, meta if flags & META else {})
                        guard.armed = 0
                        return END, b""
                    value = _drain(value, flags & COLLECT)
                data = encode(value) if tool.dump is None else tool.encode(value)
                guard.armed = 0
            except BaseException as failure:
                guard.armed = 0
                return ERROR, self._failed(failure, tool, keyword, positional)
            if len(data) > self._limit:
                return ERROR, failures.too_large(len(data), self._limit, "result")
            return RESULT, data
        except Cancelled:
            # It arrived between the end of the function and the lines above.
            guard.armed = 0
            return ERROR, failures.cancelled()

    def _failed(
        self, failure: BaseException, tool: Tool, keyword: dict[str, Any], positional: Sequence[Any]
    ) -> bytes:
        if isinstance(failure, Cancelled):
            return failures.cancelled()
        return failed(failure, tool, self._limit, keyword, positional)

    def _stream(
        self, tool: Tool, slot: int, call: int, items: Generator[Any, Any, Any], meta: dict[str, JSON]
    ) -> None:
        """Sends what a generator yields, never more than the agent has room for."""
        sender = self._sender(tool, slot, call, meta)
        next(sender)
        send = sender.send
        try:
            for value in items:
                send(value)
        finally:
            self._guard.armed = call
            items.close()

    def _sender(self, tool: Tool, slot: int, call: int, meta: dict[str, JSON]) -> Generator[None, Any, None]:
        """Sends the items that it is given."""
        guard, outlet, send, pack = self._guard, self._outlet, self._outlet.item, HEADER.pack
        credit = meta.get("credit", 1 << 18)
        page, encode, limit = self._page, tool.encode, self._limit
        self._channel.credit = 0
        while True:
            data = encode((yield))
            if len(data) > limit:
                raise _TooLarge(len(data), "item")
            guard.armed = 0
            if outlet.dirty:
                outlet.settle(call)
            while credit <= 0:
                outlet.settle_items()
                # A cancellation comes as a frame here: a signal that raised
                # could lose bytes that were read already.
                credit += self._channel.more()
            credit -= len(data) + 64
            send(pack(len(data), YIELD, 0, slot, call) + data)
            guard.armed = call
            if page[PAGE_CANCEL] == call:
                guard.cancel(call)  # its signal came while the frame was written

    def _looped(self, value: Any, flags: int, tool: Tool, slot: int, call: int, meta: dict[str, JSON]) -> Any:
        """What a coroutine returns or an async generator yields, on a loop of the
        call's own."""
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
        """_looped's own task. A coroutine may return an async generator: so decorators do."""
        import asyncio
        import selectors

        upkeep = (os.path.dirname(__file__) + os.sep, os.path.dirname(asyncio.__file__) + os.sep, selectors.__file__)
        self._guard.tasked(asyncio.get_running_loop(), asyncio.current_task(), upkeep)
        if type(value) is CoroutineType:
            value = await value
        if type(value) is not AsyncGeneratorType:
            return value
        last: Any = None
        every: list[Any] = []
        sender = self._sender(tool, slot, call, meta)
        next(sender)
        try:
            async for item in value:
                if flags & STREAM:
                    sender.send(item)
                elif flags & COLLECT:
                    every.append(item)
                else:
                    last = item
        finally:
            self._guard.armed = call
            await value.aclose()
        return _STREAMED if flags & STREAM else every if flags & COLLECT else last


def _drain(items: Generator[Any, Any, Any], collect: int) -> Any:
    """A generator's last value, or the list of all."""
    if collect:
        return list(items)
    value = None
    yielded = False
    while True:
        try:
            value = next(items)
            yielded = True
        except StopIteration as stop:
            return value if yielded else stop.value


def failed(
    failure: BaseException, tool: Tool, limit: int, keyword: dict[str, Any], positional: Sequence[Any]
) -> bytes:
    """The body for what came out of a tool's function, or out of its result, other
    than a cancellation."""
    if isinstance(failure, NotSerializable):
        return failures.unserializable(failure, tool.name)
    if isinstance(failure, _TooLarge):
        return failures.too_large(failure.size, limit, failure.what)
    if isinstance(failure, TypeError):
        problems = refused(failure, tool, keyword, positional)
        if problems:
            return failures.invalid(problems)
    return failures.raised(failure, tool.name)


def not_json(failure: ValueError) -> bytes:
    """The arguments are no JSON text."""
    return failures.invalid(
        [Mismatch("", "a JSON object", "something else", f"the arguments are not JSON: {failure}")]
    )


def too_deep() -> Mismatch:
    """The arguments are nested deeper than Python converts."""
    return Mismatch("", "less nesting", "deeper nesting", "the arguments are nested too deeply")


def refused(
    failure: BaseException, tool: Tool, keyword: dict[str, Any], positional: Sequence[Any]
) -> list[Mismatch]:
    """The mismatches when failure was raised by the call itself, not inside the tool."""
    step = failure.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    if step is None or os.path.dirname(step.tb_frame.f_code.co_filename) != os.path.dirname(__file__):
        return []
    return [] if positional else tool.problems(keyword)


def _no_memory(kind: int, body: bytes) -> bool:
    """Whether a call ended for want of memory: what it holds may be held for ever."""
    return kind == ERROR and body.startswith(b'{"code": "worker_out_of_memory"')


def _raw_pending(
    _zero: bytes = bytes(4),
    ioctl: Callable[[int, int, bytes], bytes] = fcntl.ioctl,
    request: int = termios.FIONREAD,
) -> int:
    """RAW when something written past sys.stdout still waits in the pipes of 1 and 2."""
    try:
        return RAW if ioctl(1, request, _zero) != _zero or ioctl(2, request, _zero) != _zero else 0
    except OSError:
        return 0  # the tool closed it
