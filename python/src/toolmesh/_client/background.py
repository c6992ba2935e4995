"""The event loop for the process's Mesh objects, on its own thread, and its use by other threads."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import typing
from collections.abc import Callable, Coroutine
from typing import Any

from .._core import errors
from .._locks import lock
from .answers import refused

T = typing.TypeVar("T")

class Background:
    """The loop and its thread, started at first use."""

    def __init__(self) -> None:
        self.lock = lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None
        self.pid = 0
        self.over = False

    def start(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        if self.over:
            raise refused("unavailable", "the interpreter is shutting down: no tool can be called any more")
        loop = self.loop
        if loop is not None and self.pid == os.getpid():
            if threading.current_thread() is self.thread:
                raise RuntimeError("a Mesh was used on its own event loop; AsyncMesh is for coroutines")
            return loop
        with self.lock:
            if self.loop is None or self.pid != os.getpid():
                # After a fork the child has neither the thread nor the loop of its parent; it leaves their sockets
                # alone.
                loop = asyncio.new_event_loop()
                loop.set_debug(False)  # even under python -X dev: the loop is not the program's
                thread = threading.Thread(target=self._run, args=(loop,), name="toolmesh", daemon=True)
                try:
                    thread.start()
                except RuntimeError as failure:
                    loop.close()
                    raise refused("unavailable", f"the mesh cannot start a thread: {failure}") from None
                self.thread, self.loop, self.pid = thread, loop, os.getpid()
            return self.loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def end(self) -> None:
        """Ends the loop, and its pending work, when the interpreter ends."""
        with self.lock:
            self.over = True
            loop, thread = self.loop, self.thread
            if loop is None or thread is None or self.pid != os.getpid() or loop.is_closed():
                return
            loop.call_soon_threadsafe(loop.stop)
        thread.join(2)

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Runs a coroutine, created on the loop. Cancelling the future cancels it."""
        async def work() -> T:
            return await make()

        loop = self.start()
        return asyncio.run_coroutine_threadsafe(work(), loop)

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """submit, then waits. An exception in the waiting thread cancels the work."""
        loop, work = self.start(), _Awaited(make)
        try:
            loop.call_soon_threadsafe(work.begin, loop)
            while not work.ended.acquire(timeout=1):  # a signal may arrive just before the wait
                pass
        except BaseException:
            work.given_up = True
            loop.call_soon_threadsafe(work.give_up)
            raise
        if work.failure is None:
            return typing.cast("T", work.value)
        try:
            raise work.failure
        except asyncio.CancelledError:
            raise errors.error("cancelled", "the mesh was closed while the call ran", origin="caller") from None
        finally:
            del work


class _Awaited:
    """A coroutine that one thread waits for, with a bare lock: it costs a third of a future."""

    __slots__ = ("make", "ended", "task", "given_up", "value", "failure")

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.make, self.ended = make, threading.Lock()
        self.task: asyncio.Task[None] | None = None
        self.given_up, self.value = False, None
        self.failure: BaseException | None = None
        self.ended.acquire()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.given_up:
            self.task = loop.create_task(self.run())

    async def run(self) -> None:
        try:
            self.value = await self.make()
        except BaseException as failure:  # noqa: B036 - raised again in the waiting thread
            self.failure = failure
        if not background.over:  # else the waiting thread is a daemon, which ends with the interpreter
            self.ended.release()

    def give_up(self) -> None:
        if self.task is not None:
            self.task.cancel()


background = Background()
atexit.register(background.end)
