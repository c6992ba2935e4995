"""Functions of this process as tools of the mesh.

    from toolmesh import mesh

    @mesh.tool
    def refund(order: str, amount: int) -> dict:
        '''Pays an order's amount back.'''
        return {"order": order, "refunded": amount}

    mesh.serve(index="billing")

The node itself is a child process, mesh bridge, which keeps what the protocol promises of a node: each call runs once
at most, streams are stored and can be resumed, the registration ends with this process. Here is what runs a call: plain
functions on threads, coroutines on the event loop, generators of both kinds as their caller takes the items.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import ctypes
import functools
import inspect
import logging
import queue
import re
import signal
import threading
import time
import typing
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from typing import Any

from ._client import finding, names
from ._client.answers import api
from ._core import binding, errors, failures, guard, schema, terminals, values
from ._host import serving
from ._host.bridge import MOST, Bridge, Frame
from ._locks import lock
from ._options import Annotations, Options, Unpack

F = typing.TypeVar("F", bound=Callable[..., Any])
Self = typing.TypeVar("Self", bound="Host")

_log = logging.getLogger("toolmesh")
_SLOTS = 128
_BACK = 0.1, 5.0  # seconds before a bridge is restarted: at first, and max
_LOST = 3  # exit status of a bridge whose node another process has taken over
_DRAIN = 60.0  # seconds after which a draining bridge is killed
_NAME = re.compile(r"[^.\s]+\Z")
_FLOW = 64  # frames of a stream between two checks of the pipe
_SHORT = 100e-6  # seconds: shorter calls share a thread, as waking one costs as much
_LONG = 1e-3  # seconds: longer ones count as this, so that one long call is soon forgotten
_LOOK = 1e-3  # seconds between two checks of calls waiting for such a thread


@api
class Host:
    """Serves functions as tools, as an ordinary node.

    index is the prefix of their ids, <index>.<name>, in every session; without it they are tools of session alone, and
    end with it. slots is the max number of concurrent calls, node the node's id. servers, context, creds and nkey say
    where the mesh is, as for Mesh. Add tools with tool, before it serves or while it does.
    """

    def __init__(
        self, *, index: str | None = None, session: str | None = None, slots: int = _SLOTS, node: str | None = None,
        servers: str | Sequence[str] | None = None, context: str | None = None, creds: str | None = None,
        nkey: str | None = None,
    ) -> None:
        if slots < 1:
            raise ValueError(f"slots is {slots}: it is how many calls run at once")
        self._index, self._session, self._slots = index, session, slots
        self._where = {"servers": servers, "context": context, "creds": creds, "nkey": nkey}
        settings = {"MESH_SESSION": session, "MESH_NODE": node, "MESH_SLOTS": str(slots), "MESH_LOG_LEVEL": "warn"}
        self._settings = {name: value for name, value in settings.items() if value}
        self._tools: dict[str, _Offered] = {}
        self._runner: _Runner | None = None
        self._thread: threading.Thread | None = None
        self._lock = lock()

    @typing.overload
    def tool(self, function: F, /, **options: Unpack[Options]) -> F: ...

    @typing.overload
    def tool(self, function: None = None, /, **options: Unpack[Options]) -> Callable[[F], F]: ...

    def tool(
        self, function: F | None = None, /, *, name: str | None = None, description: str | None = None,
        metadata: dict[str, Any] | None = None, **annotations: Unpack[Annotations],
    ) -> Any:
        """Makes a function a tool, as a decorator with or without arguments; the function itself does not change. Its
        schemas come from its annotations and its docstring. A lambda, or another callable without a name, gets a
        generated one, tool_<uuid>: see tools. annotations are those of tools.toml: timeout and cache_ttl (seconds, or
        text like "2s"), cache_shared, idempotent, parallel_safe, resource_key, read_only, lane_scope, collect, results.
        Raises TypeError for objects that are not functions, ValueError for an invalid or used name, or an unknown
        annotation."""
        if function is None:
            return functools.partial(
                self.tool, name=name, description=description, metadata=metadata, **annotations)
        offered = _Offered(function, name, description, metadata, dict(annotations))
        with self._lock:
            if offered.name in self._tools:
                raise ValueError(f"there is a tool {offered.name!r} already: give one of them another name")
            self._tools[offered.name] = offered
            runner = self._runner
        if runner is not None:
            runner.add(offered)
        return function

    def __repr__(self) -> str:
        return f"<Host of {', '.join(self._tools) or 'no tools'}>"

    def __reduce__(self) -> typing.NoReturn:
        raise TypeError("a Host cannot be pickled or copied: its functions are those of this process")

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of its tools, in the order in which they were added."""
        with self._lock:
            return tuple(self._tools)

    @property
    def node(self) -> str:
        """The node's id; empty while it does not serve."""
        runner = self._runner
        return runner.node if runner is not None else ""

    @property
    def serving(self) -> bool:
        """Whether it serves, or is starting to."""
        return self._runner is not None

    def serve(self) -> None:
        """Serves until SIGINT or SIGTERM, or stop, and then lets running calls end. Raises Unavailable without a mesh
        or a binary."""
        # Our loop ignores the debug mode of python -X dev, which would log steps that are slow on a busy machine.
        asyncio.run(self.aserve(signals=threading.current_thread() is threading.main_thread()), debug=False)

    async def aserve(self, *, signals: bool = False, ready: Callable[[], None] | None = None) -> None:
        """serve, on the running event loop, which also runs coroutines. Cancelling it drains."""
        if not self._tools:
            raise ValueError("there is no tool to serve: decorate a function with tool first")
        with self._lock:
            if self._runner is not None:
                raise RuntimeError("it serves already")
            settings = {**finding.environment(self._where), **self._settings}
            runner = self._runner = _Runner(settings, self._index, self._session, self._slots, self._tools)
        loop = asyncio.get_running_loop()
        try:
            if signals:
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.add_signal_handler(number, runner.stop)
            await runner.run(ready)
        finally:
            if signals:
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.remove_signal_handler(number)
            self._runner = None

    def stop(self) -> None:
        """Ends serve, aserve or start from any thread, after running calls have ended."""
        runner, thread = self._runner, self._thread
        if runner is not None:
            runner.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            self._thread = None

    def start(self: Self) -> Self:
        """Serves on its own thread; returns once calls are served. stop ends it."""
        if self.serving:
            raise RuntimeError("it serves already")
        served = threading.Event()
        failures: list[BaseException] = []

        def serve() -> None:
            try:
                asyncio.run(self.aserve(ready=served.set), debug=False)
            except BaseException as failure:
                if served.is_set():
                    _log.error("the host has ended: %s", failure)
                failures.append(failure)
            finally:
                served.set()

        self._thread = threading.Thread(target=serve, name="toolmesh host", daemon=True)
        self._thread.start()
        served.wait()
        if failures:
            raise failures[0]
        atexit.register(self.stop)
        return self

    def __enter__(self: Self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        atexit.unregister(self.stop)


class _Offered:
    """A function as a tool."""

    def __init__(self, function: Any, name: str | None, description: str | None, metadata: dict[str, Any] | None,
                 annotations: dict[str, Any]) -> None:
        if not callable(function):
            raise TypeError(f"a tool is a function, not {type(function).__name__}")
        self.name = name if name is not None else getattr(function, "__name__", "")
        if name is None and self.name in ("", "<lambda>"):
            self.name = f"tool_{uuid.uuid4()}"
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise ValueError(f"{self.name!r} cannot be a tool's name: it is text without dots and spaces")
        names.token(self.name)
        known = Annotations.__annotations__
        unknown = set(annotations) - set(known)
        if unknown:
            raise ValueError(f"there is no annotation {min(unknown)!r}: there are {', '.join(sorted(known))}")
        self.kind = schema.kind_of(function)
        signature = schema.signature(function)
        self.tool = binding.Tool(self.name, function, self.kind, signature)
        told = signature.as_dict(self.name, self.kind)
        said = {key: f"{value}s" if key in ("timeout", "cache_ttl") and isinstance(value, (int, float)) else value
                for key, value in annotations.items() if value is not None}
        if isinstance(said.get("resource_key"), str) and said["resource_key"] != "dynamic":
            said["resource_key"] = [said["resource_key"]]
        self.streaming = self.kind in ("generator", "async_generator")
        self.took = _LONG  # seconds of a call, averaged over the last few
        self.spec = {
            "tool_id": self.name, "name": self.name, "type": "streaming" if self.streaming else "standard",
            "description": description if description is not None else told["description"],
            "metadata": metadata or {}, "input_schema": told["input_schema"], "positional": told["positional"],
            "annotations": said, **{key: told[key] for key in ("output_schema", "varargs") if told[key]},
        }


class _Call:
    __slots__ = ("id", "offered", "positional", "keyword", "stream", "credit", "sent", "context", "thread", "task",
                 "cancelled", "flow", "key", "bridge")

    def __init__(self, bridge: Bridge, frame: Frame, key: bytes, offered: _Offered, positional: Sequence[Any],
                 keyword: dict[str, Any]) -> None:
        self.bridge = bridge  # from which it came
        self.id: str = frame["rpc_id"]
        self.key = key  # the id as JSON
        self.offered, self.positional, self.keyword = offered, positional, keyword
        self.stream = frame["type"] == "rpc_tool_stream"
        self.credit: int | None = frame.get("credit")
        self.sent = 0
        self.thread = 0  # that runs it; 0: none
        self.task: asyncio.Task[Any] | None = None  # that a cancel ends
        self.cancelled = False
        self.flow: threading.Condition | asyncio.Event | None = None
        self.context = contextvars.copy_context()


class _Runner:
    """Serves the tools of a host, over successive bridges."""

    def __init__(self, settings: dict[str, str], index: str | None, session: str | None, slots: int,
                 tools: dict[str, _Offered]) -> None:
        self._settings, self._index, self._session, self._slots = settings, index, session, slots
        self._tools = tools
        self._loop = asyncio.get_running_loop()
        self._bridge: Bridge | None = None
        self._running: dict[str, _Call] = {}
        self._waiting: deque[_Call] = deque()  # for a thread
        self._recent = 0  # calls that came after the last look
        self._looking = False
        self._had_calls = False
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # of an idle thread: False ends it
        self._awake, self._roused, self._threads = 0, 0, 0  # _roused: awake but not yet looking for a call
        self._lock = lock()  # guards threads, calls that wait for them and exceptions raised in them
        self._stopping = False
        self._stopped = asyncio.Event()
        self.node = ""

    async def run(self, ready: Callable[[], None] | None) -> None:
        """Serves until stop."""
        wait = _BACK[0]
        try:
            while True:
                began = time.monotonic()
                bridge = self._bridge = Bridge(self._take)  # calls arrive as soon as tools are offered
                try:
                    await bridge.start(self._settings)
                    await self._offer(bridge, list(self._tools.values()))
                except errors.MeshError as failure:
                    await bridge.kill()
                    if self._stopping:
                        return
                    if not self.node and not self._had_calls:
                        raise  # it never served: calls may come before the bridge is ready
                    _log.error("%s", failure)
                else:
                    self.node = bridge.ready["node"]
                    if ready is not None:
                        ready()
                        ready = None
                    if self._stopping:
                        bridge.frame("drain")
                    status = await self._ended(bridge)
                    self._give_up()
                    if status == _LOST and not self._stopping:
                        raise errors.error("unavailable", f"mesh bridge cannot serve any more: {bridge.said}",
                                           origin="caller")
                    if not self._stopping:
                        _log.error("the bridge to the mesh has ended with status %d: starting it again", status)
                if self._stopping:
                    return
                wait = _BACK[0] if time.monotonic() - began > 10 else min(2 * wait, _BACK[1])
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), wait)
                    return
        finally:
            if self._bridge is not None:
                await self._bridge.kill()
            self._give_up()
            for _ in range(self._threads):
                self._wake.put(False)

    async def _ended(self, bridge: Bridge) -> int:
        waiting = asyncio.ensure_future(bridge.wait())
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self.stop()  # the serving task was cancelled: drain, then end
            await asyncio.wait({waiting}, timeout=_DRAIN)
            if not waiting.done():
                await bridge.kill()
            raise

    async def _offer(self, bridge: Bridge, tools: list[_Offered]) -> None:
        fields: dict[str, Any] = {"index": self._index} if self._index else {}
        await bridge.ask("init_tool_bridge", tools=[one.spec for one in tools], **fields).aresult()

    def add(self, offered: _Offered) -> None:
        def begin() -> None:
            if self._bridge is not None:
                task = self._loop.create_task(self._offer(self._bridge, [offered]))
                task.add_done_callback(_told)

        self._loop.call_soon_threadsafe(begin)

    def stop(self) -> None:
        """Drains, from any thread. The second call ends it at once."""
        def begin() -> None:
            if self._stopping and self._bridge is not None:
                self._loop.create_task(self._bridge.kill())
            elif self._bridge is not None:
                self._bridge.frame("drain")
            self._stopping = True
            self._stopped.set()

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:
            pass  # its loop has ended

    def _give_up(self) -> None:
        """Cancels running calls: the bridge has ended, and with it every caller."""
        for one in list(self._running.values()):
            self._cancel(one)
        self._running.clear()

    # Calls.

    def _take(self, frame: Frame, body: bytes) -> None:
        kind = frame.get("type")
        if kind in ("rpc_tool_call", "rpc_tool_stream"):
            self._begin(frame, body)
            return
        call = self._running.get(frame.get("rpc_id", ""))
        if call is None:
            return
        if kind == "rpc_cancel":
            self._cancel(call)
        elif kind == "rpc_credit":
            call.credit = max(call.credit or 0, int(frame["seq"]))
            _go_on(call)

    def _begin(self, frame: Frame, body: bytes) -> None:
        bridge, key = self._bridge, values.encode(frame["rpc_id"])
        assert bridge is not None
        offered = self._tools.get(frame["tool_id"])
        if offered is None:
            message = f"there is no tool {frame['tool_id']!r} here"
            bridge.send(_failed(key, failures.body("unavailable", message, False)))
            return
        try:
            positional, keyword = _bound(offered.tool, frame, body)
        except BaseException as failure:  # noqa: B036 - a converter of the tool's may raise anything
            bridge.send(_failed(key, terminals.unbound(failure, offered.tool)))
            return
        self._had_calls = True
        call = self._running[frame["rpc_id"]] = _Call(bridge, frame, key, offered, positional, keyword)
        call.context.run(serving.enter, bridge, frame)
        if offered.kind in ("async", "async_generator"):
            call.task = call.context.run(self._loop.create_task, _kept(lambda: self._awaited(call)))
            call.task.add_done_callback(lambda task: self._done(call, task))
            return
        with self._lock:
            self._recent += 1
            self._waiting.append(call)
            self._rouse(1 if offered.took > _SHORT or not self._awake else 0)
        if not self._looking:
            self._looking = True
            self._loop.call_later(_LOOK, self._look)

    def _rouse(self, more: int) -> None:
        """Starts more threads for waiting calls. The lock is held."""
        for _ in range(min(more, 2 * self._slots + 8 - self._awake)):
            self._awake += 1
            self._roused += 1
            if self._awake <= self._threads:
                self._wake.put(True)
            else:
                self._threads += 1
                threading.Thread(target=self._work, name="toolmesh tool", daemon=True).start()

    def _look(self) -> None:
        """Gives threads to calls that were waiting at the last check already: earlier calls are slow."""
        with self._lock:
            self._rouse(len(self._waiting) - self._recent - self._roused)
            self._looking = bool(self._recent or self._waiting)
            self._recent = 0
        if self._bridge is not None:
            self._bridge.flush()
        if self._looking:
            self._loop.call_later(_LOOK, self._look)

    def _gone(self, call: _Call) -> None:
        if self._running.get(call.id) is call:
            del self._running[call.id]

    def _end(self, call: _Call, value: bytes) -> None:
        """The answer waits to be sent."""
        self._gone(call)
        if call.stream and call.offered.streaming:
            call.bridge.put(b'{"type":"rpc_stream_chunk","rpc_id":' + call.key + b',"chunk_type":"complete"}')
        else:
            call.bridge.put(b'{"type":"rpc_tool_response","rpc_id":' + call.key + b',"status":"ok","result":' + value
                            + b"}")

    def _fail(self, call: _Call, failure: BaseException) -> None:
        self._gone(call)
        call.bridge.put(_failed(call.key, _told_of(failure, call)))

    def _item(self, call: _Call, value: Any) -> None:
        data = _encoded(call, value, "item")
        call.sent += 1
        call.bridge.send(b'{"type":"rpc_stream_chunk","rpc_id":' + call.key + b',"chunk_type":"data","data":' + data
                         + b"}")

    def _cancel(self, call: _Call) -> None:
        """The caller has cancelled: cancels a task, or in a thread interrupts the function in its Python code."""
        if call.task is not None:
            call.cancelled = True
            call.task.cancel()
            return
        with self._lock:
            if not call.cancelled:
                call.cancelled = True
                if call.thread:
                    _raise_in(call.thread, guard.Cancelled)
        _go_on(call)

    # On the loop.

    def _done(self, call: _Call, task: asyncio.Task[Any]) -> None:
        call.bridge.leave_fork()
        data, failure = _end(task)
        if failure is not None:
            self._fail(call, failure)
        else:
            self._end(call, data)
        call.bridge.wake()

    async def _awaited(self, call: _Call) -> bytes:
        value = call.offered.tool.function(*call.positional, **call.keyword)
        while inspect.isawaitable(value):
            value = await value
        call.bridge.leave_fork()
        if not inspect.isasyncgen(value):
            return _encoded(call, value)
        call.flow = asyncio.Event()
        try:
            await self._items(call, value)
        finally:
            await value.aclose()
        return b""

    async def _items(self, call: _Call, items: AsyncGenerator[Any, Any]) -> None:
        assert isinstance(call.flow, asyncio.Event)
        async for value in items:
            while call.credit is not None and call.sent >= call.credit:
                call.flow.clear()
                await call.flow.wait()
            self._item(call, value)
            if call.sent % _FLOW == 0:
                await call.bridge.written()

    # On threads.

    def _work(self) -> None:
        done: Bridge | None = None
        roused = True
        while True:
            with self._lock:
                self._roused -= roused
                roused = False
                call = self._waiting.popleft() if self._waiting else None
                if call is None and done is None:
                    self._awake -= 1
            if call is not None:
                with contextlib.suppress(guard.Cancelled):  # it came while the answer was being sent
                    call.context.run(self._run_call, call)
                done = call.bridge
            elif done is not None:
                done.flush()  # callbacks that arrive meanwhile run, too, before this sleeps
                done = None
            elif not (roused := self._wake.get()):
                return

    def _run_call(self, call: _Call) -> None:
        with self._lock:
            call.thread = 0 if call.cancelled else threading.get_ident()
        if not call.thread:
            self._gone(call)
            call.bridge.put(_failed(call.key, failures.body("cancelled", "the call was cancelled", False)))
            return
        failure: BaseException | None = None
        data, began = b"", time.perf_counter()
        try:
            try:
                data = self._called(call)
            finally:
                call.bridge.leave_fork()
                with self._lock:
                    call.thread = 0
                    if call.cancelled:
                        _raise_in(threading.get_ident(), None)  # it was not raised yet, and must not be from here on
        except BaseException as raised:  # noqa: B036 - one answer for each call; sys.exit is the tool's failure
            failure = raised
        took = call.offered.took
        call.offered.took = took + (min(time.perf_counter() - began, _LONG) - took) / 8
        if failure is not None:
            self._fail(call, failure)
        else:
            self._end(call, data)

    def _called(self, call: _Call) -> bytes:
        value = call.offered.tool.function(*call.positional, **call.keyword)
        call.bridge.leave_fork()
        if inspect.iscoroutine(value) or inspect.isasyncgen(value):  # of a decorated function
            given = value
            try:
                value = self._on_loop(lambda: _collected(given), call)
            finally:
                if inspect.iscoroutine(given):
                    given.close()  # a cancel may have come before its first step
            if call.cancelled:
                raise guard.Cancelled
        if not inspect.isgenerator(value):
            return _encoded(call, value)
        try:
            if call.stream:
                self._sent(call, value)
                return b""
            last: deque[Any] = deque(value, 1)
            return _encoded(call, last[0] if last else None)
        finally:
            value.close()

    def _on_loop(self, make: Callable[[], Coroutine[Any, Any, Any]], call: _Call) -> Any:
        """The result of a coroutine, created on the loop: one created here would never be awaited if a cancel
        interrupted this thread just then. Meanwhile a cancel of the call is one of the coroutine."""
        found: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def ended(task: asyncio.Task[Any]) -> None:
            call.task = None
            value, failure = _end(task)
            if failure is not None:
                found.set_exception(failure)
            else:
                found.set_result(value)

        def begin() -> None:
            call.task = self._loop.create_task(_kept(make))
            call.task.add_done_callback(ended)
            if call.cancelled:
                call.task.cancel()

        self._loop.call_soon_threadsafe(begin)
        return found.result()

    def _sent(self, call: _Call, items: Generator[Any, Any, Any]) -> None:
        flow = call.flow = threading.Condition()
        for value in items:
            with flow:
                while call.credit is not None and call.sent >= call.credit and not call.cancelled:
                    flow.wait()
            if call.cancelled:
                raise guard.Cancelled
            self._item(call, value)
            if call.sent % _FLOW == 0 and not call.bridge.over:
                self._on_loop(call.bridge.written, call)


async def _kept(make: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[Any, BaseException | None]:
    """The result of a coroutine; or its SystemExit, which would end the loop, and with it the host."""
    try:
        return await make(), None
    except SystemExit as failure:
        return None, failure


def _end(task: asyncio.Task[Any]) -> tuple[Any, BaseException | None]:
    """The result or the failure of such a task."""
    failure = asyncio.CancelledError() if task.cancelled() else task.exception()
    return task.result() if failure is None else (None, failure)


async def _collected(value: Any) -> Any:
    """The result of a coroutine, or the last item of an async generator."""
    while inspect.isawaitable(value):
        value = await value
    if inspect.isasyncgen(value):
        last = None
        async for last in value:  # noqa: B007
            pass
        return last
    return value


def _go_on(call: _Call) -> None:
    """Credit or a cancel has arrived: wakes its waiter."""
    flow = call.flow
    if isinstance(flow, asyncio.Event):
        flow.set()
    elif flow is not None:
        with flow:
            flow.notify_all()


def _encoded(call: _Call, value: Any, what: str = "result") -> bytes:
    data = call.offered.tool.encode(value)
    if len(data) > MOST:
        raise terminals.TooLarge(len(data), what)
    return data


def _failed(key: bytes, error: bytes) -> bytes:
    return b'{"type":"rpc_tool_response","rpc_id":' + key + b',"status":"error","error":' + error + b"}"


def _bound(tool: Any, frame: Frame, body: bytes) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments in the function's form; raises Mismatch."""
    given = tool.decode(body).get("kwargs") if tool.described.exact else frame.get("kwargs")
    return tool.bind(given or {}, frame.get("args") or [])  # type: ignore[no-any-return]


def _told_of(failure: BaseException, call: _Call) -> bytes:
    """The caller's form of a function's exception, or its result."""
    if isinstance(failure, guard.Cancelled) or isinstance(failure, asyncio.CancelledError) and call.cancelled:
        return failures.cancelled()
    trace = failure.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next  # a trace shows the tool, not its caller
    if trace is not None:
        failure.__traceback__ = trace
    return terminals.failed(failure, call.offered.tool, MOST, call.keyword, call.positional)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raises an exception in a thread when it next runs Python code; None withdraws one."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind) if kind else None)


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("a tool could not be offered: %s", task.exception())
