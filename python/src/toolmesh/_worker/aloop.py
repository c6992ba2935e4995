"""The worker of coroutines and async generators: many calls on one event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys
from types import AsyncGeneratorType

from . import channel, failures, limits, strays
from .frames import (
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
    READY,
    RESULT,
    SPENT,
    STREAM,
    YIELD,
    FrameError,
)
from .loop import (
    PAGE_CANCEL,
    PAGE_HEARD,
    PAGE_RUNNING,
    PAGE_TAKEN,
    SIGNAL,
    _no_memory,
    _raw_pending,
    _TooLarge,
    forked_by_tool,
    not_json,
    refused,
    split_meta,
    too_deep,
)
from .output import NoShield, Outlet, install
from .values import Mismatch, NotSerializable, decode

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import FrameType
    from typing import Any

    from .binding import Tool
    from .values import JSON

# Whose frames are never cut off: ours, and those of the loop's own upkeep.
_UNTOUCHED = (os.path.dirname(__file__), os.path.dirname(asyncio.__file__))
_SAMPLE = 0.01  # seconds of processor time between two looks at what runs
_call = contextvars.ContextVar("toolmesh_call", default=0)


class _Credit:
    """Bytes that one stream may still send."""

    __slots__ = ("left", "_more")

    def __init__(self, left: int) -> None:
        self.left = left
        self._more: asyncio.Future[None] | None = None

    def add(self, size: int) -> None:
        """Takes what the agent grants on top."""
        self.left += size
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def wait(self) -> None:
        """Returns when something may be sent."""
        while self.left <= 0:
            self._more = asyncio.get_running_loop().create_future()
            await self._more


class Worker:
    """Serves calls until the agent closes the pipe."""

    def __init__(self, inp: int, out: int, page: memoryview[int], tools: list[Tool], limit: int) -> None:
        self._inp = inp
        self._page = page
        self._tools = tools
        self._limit = limit
        self._buffer = b""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._credit: dict[int, _Credit] = {}
        self._asked: set[int] = set()  # calls that the agent cancelled
        self._taken = 0
        self._outlet = Outlet(out, _call.get, NoShield())  # coroutines are cancelled between steps
        self._forked = False
        self._channel = channel.current = channel.LoopChannel(self, self._outlet, _call.get)
        self._giving = False  # what is held back is about to be written
        install(self._outlet)
        forked_by_tool((inp, out), self._outlet, self)
        signal.signal(SIGNAL, self._interrupt)
        if limits.cpu_time:
            signal.signal(signal.SIGPROF, self._sample)
            signal.siginterrupt(signal.SIGPROF, False)
            signal.setitimer(signal.ITIMER_PROF, _SAMPLE, _SAMPLE)

    def _sample(self, _signum: int, _frame: FrameType | None) -> None:
        """Tells the agent which call uses the processor: of all that share the loop
        it is the one to count it for."""
        call = _call.get()
        if call:
            self._page[PAGE_RUNNING] = call

    def _interrupt(self, _signum: int, frame: FrameType | None) -> None:
        """Cancels the call that is meant while it keeps the loop from hearing of
        it: where it stands, if that is in the tool's own code. Elsewhere nothing
        happens: the loop hears of it soon, or the agent signals again."""
        call = _call.get()
        if call == 0 or self._page[PAGE_CANCEL] != call or call in self._asked:
            return
        if frame is None or os.path.dirname(frame.f_code.co_filename) in _UNTOUCHED:
            return
        task = self._tasks.get(call)
        if task is not None and asyncio.current_task(self._loop) is task:
            self._heard(call)
            raise asyncio.CancelledError

    def _heard(self, call: int) -> None:
        self._asked.add(call)
        self._page[PAGE_HEARD] = call

    async def serve(self, about: bytes) -> None:
        """Says READY with about, and returns when the agent is done."""
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._inp, self._readable)
        self._outlet.send(HEADER.pack(len(about), READY, 0, 0, 0) + about)
        await self._done

    def _give(self, data: bytes) -> None:
        """Writes a frame, or holds it back while others come right behind it: until
        the loop has gone through what is ready, or stands still."""
        self._outlet.item(data)
        if self._outlet.held and not self._giving:
            self._giving = True
            self._loop.call_soon(self._given)

    def _given(self) -> None:
        self._giving = False
        self._outlet.settle_items()

    def _finish(self, failure: FrameError | None = None) -> None:
        if not self._done.done():
            self._loop.remove_reader(self._inp)
            if failure is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(failure)

    def _readable(self) -> None:
        data = os.read(self._inp, 1 << 18)
        if not data:
            self._finish()
            return
        buffer = self._buffer + data if self._buffer else data
        at, size = 0, len(buffer)
        while size - at >= 16:
            length, kind, flags, slot, call = HEADER.unpack_from(buffer, at)
            end = at + 16 + length
            if end > size:
                break
            self._take(kind, flags, slot, call, buffer[at + 16 : end])
            at = end
        self._buffer = buffer[at:] if at else buffer

    def _take(self, kind: int, flags: int, slot: int, call: int, body: bytes) -> None:
        if kind == CALL:
            self._taken += 1
            self._page[PAGE_TAKEN] = self._taken
            task = self._loop.create_task(self._run(flags, slot, call, body))
            self._tasks[call] = task
            task.add_done_callback(lambda _: self._ended(slot, call))
        elif kind == CANCEL:
            running = self._tasks.get(call)
            if running is not None and call not in self._asked:
                self._heard(call)
                running.cancel()
        elif kind == CREDIT:
            credit = self._credit.get(call)
            if credit is not None:
                credit.add(int.from_bytes(body, "little"))
        elif NESTED_RESULT <= kind <= NESTED_END:
            self._channel.dispatch(kind, call, body)
        elif kind == PING:
            self._outlet.send(HEADER.pack(0, PONG, 0, 0, call))
        elif kind == EXIT:
            self._finish()
        else:
            self._finish(FrameError(f"frame type {kind} is unknown to this worker"))

    def _ended(self, slot: int, call: int) -> None:
        if self._tasks.pop(call, None) is not None:
            self._asked.discard(call)
            # Cancelled before its first step: the coroutine never ran.
            body = failures.body("cancelled", "the call was cancelled", False)
            self._outlet.send(HEADER.pack(len(body), ERROR, 0, slot, call) + body)

    async def _run(self, flags: int, slot: int, call: int, body: bytes) -> None:
        _call.set(call)
        try:
            kind, data = await self._outcome(flags, slot, call, body)
        except BaseException as failure:  # noqa: B036 - one terminal per call, whatever happens
            kind, data = ERROR, failures.raised(failure, self._tools[slot].name)
        if self._forked:
            os._exit(0)
        self._tasks.pop(call, None)
        self._asked.discard(call)
        if self._outlet.dirty:
            self._outlet.settle(call)
        raw = 0
        if not self._tasks:
            strays.sweep()  # of whose call they are is not known: of none that runs
            raw = _raw_pending()
        if limits.memory and (limits.exceeded() or _no_memory(kind, data)):
            kind, data = ERROR, failures.out_of_memory()
            raw |= SPENT
        self._give(HEADER.pack(len(data), kind, raw, slot, call) + data)

    async def _outcome(self, flags: int, slot: int, call: int, body: bytes) -> tuple[int, bytes]:
        tool = self._tools[slot]
        meta: dict[str, JSON] = {}
        try:
            if flags & META:
                meta, body = split_meta(body)
            arguments = decode(body) if body else {}
            positional, keyword = tool.bind(arguments, meta.get("varargs"))
        except Mismatch as failure:
            return ERROR, failures.invalid([failure])
        except ValueError as failure:
            return ERROR, not_json(failure)
        except RecursionError:
            return ERROR, failures.invalid([too_deep()])
        except Exception as failure:  # of a converter of the tool, like __post_init__
            return ERROR, failures.raised(failure, tool.name)
        try:
            value = tool.function(*positional, **keyword)
            if type(value) is AsyncGeneratorType:
                if flags & STREAM:
                    await self._stream(tool, slot, call, value, meta)
                    return END, b""
                value = await _drain(value, flags & COLLECT)
            elif hasattr(value, "__await__"):
                value = await value
            data = tool.encode(value)
        except asyncio.CancelledError as failure:
            if call in self._asked:
                return ERROR, failures.cancelled()
            return ERROR, failures.raised(failure, tool.name)
        except NotSerializable as failure:
            return ERROR, failures.unserializable(failure, tool.name)
        except _TooLarge as failure:
            return ERROR, failures.too_large(failure.size, self._limit, failure.what)
        except BaseException as failure:  # noqa: B036 - sys.exit in a tool is the tool's failure
            if isinstance(failure, TypeError):
                problems = refused(failure, tool, keyword, positional)
                if problems:
                    return ERROR, failures.invalid(problems)
            return ERROR, failures.raised(failure, tool.name)
        if len(data) > self._limit:
            return ERROR, failures.too_large(len(data), self._limit, "result")
        return RESULT, data

    async def _stream(
        self, tool: Tool, slot: int, call: int, items: AsyncGenerator[Any, Any], meta: dict[str, JSON]
    ) -> None:
        credit = self._credit[call] = _Credit(meta.get("credit", 1 << 18))
        try:
            async for value in items:
                data = tool.encode(value)
                if len(data) > self._limit:
                    raise _TooLarge(len(data), "item")
                if self._outlet.dirty:
                    self._outlet.settle(call)
                if credit.left <= 0:
                    self._outlet.settle_items()
                    await credit.wait()
                credit.left -= len(data) + 64
                self._give(HEADER.pack(len(data), YIELD, 0, slot, call) + data)
        finally:
            self._credit.pop(call, None)
            await items.aclose()


async def _drain(items: AsyncGenerator[Any, Any], collect: int) -> Any:
    """An async generator's last value, or the list of all."""
    if collect:
        return [value async for value in items]
    last = None
    async for value in items:
        last = value
    return last


def start(inp: int, out: int, page: memoryview[int], tools: list[Tool], limit: int, about: bytes) -> None:
    """Serves as a worker of coroutines; returns when the agent is done with it."""
    worker = Worker(inp, out, page, tools, limit)
    asyncio.run(worker.serve(about))
    sys.stdout.flush()
