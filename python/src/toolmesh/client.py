"""Mesh and AsyncMesh: calls, streams and requests, for plain code and for coroutines.

Both run the same coroutines: AsyncMesh on the caller's event loop, Mesh on a loop with its own thread, shared by all
Mesh objects of a process. So a Mesh works in threads, in notebooks and inside a running loop. After a fork the child
makes its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import json
import os
import time
import typing
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ._client import installing, models, payloads, streams
from ._client.answers import api, bare, outward, refused
from ._client.background import background
from ._client.call import Call, new_rpc_id
from ._client.connection import Connection
from ._client.finding import find
from ._client.results import _about_task, _explained, _page, _resolved, _typed
from ._client.routes import FRESH
from ._core import batches, errors, files, tasks, tool_side
from ._core import scope as _scope
from ._options import OfCall, OfCollect, OfStream, Submission, Unpack
from .remote import AsyncRemoteTool, Description, RemoteTool, declared

T = typing.TypeVar("T")
Args = Mapping[str, Any] | None
Items = Generator[T, None, None]
AsyncItems = AsyncGenerator[T, None]
Self = typing.TypeVar("Self", bound="_Base")
_Open = dict[tuple[int, asyncio.AbstractEventLoop], Connection]  # by process and event loop

_PAGE = 500  # tools of one request, at most
_BYTES = b'"$bytes"'  # the form of bytes without a declaration of the tool
_SCHEMAS = 1000


@outward
def scope(session: str | None = None, timeout: float | None = None) -> contextlib._GeneratorContextManager[None]:
    """Calls inside go to the session, except those on a Mesh of another session, and end after that time in seconds.
    Scopes may be nested; the outer time still counts. Threads started inside do not inherit it."""
    return _entered(session, tool_side._seconds(timeout))


@contextlib.contextmanager
def _entered(session: str | None, seconds: float | None) -> Iterator[None]:
    above_session, above_deadline = _scope.get()
    deadline = above_deadline
    if seconds is not None:
        deadline = min(time.monotonic() + seconds, above_deadline or float("inf"))
    token = _scope.set((session or above_session, deadline))
    try:
        yield
    finally:
        _scope.reset(token)


class _Links:
    """The connections of a mesh object and its sessions, one per event loop."""

    def __init__(self, settings: Mapping[str, Any], name: str, session: str) -> None:
        self.settings, self._name, self._session = settings, name, session
        self._schemas: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}  # with the time of the answer
        self.of: _Open = {}
        weakref.finalize(self, _dropped, self.of).atexit = False

    def here(self) -> Connection:
        """The connection of the running loop. A forked child leaves those of its parent alone."""
        key = os.getpid(), asyncio.get_running_loop()
        link = self.of.get(key)
        if link is None or link.closed:
            for one in list(self.of):
                if one[1].is_closed():
                    self.of.pop(one, None)
            settings = self.settings  # not self: a connection must not keep its owner
            link = self.of[key] = Connection(lambda: find(**settings), self._name, self._session)
            link.keep()
        return link

    async def settle(self, link: Connection, call: Call) -> None:
        """Converts bytes in a call's arguments as the tool declares them, and stores its files. It asks for the schema
        at most every few seconds."""
        if call.files or _BYTES in call.body:
            await link.within(call, self.declare(link, call))

    async def declare(self, link: Connection, call: Call) -> None:
        """settle, without a time limit."""
        await payloads.stored(link, call)
        if _BYTES not in call.body:
            return
        when, known = self._schemas.get((call.session, call.tool), (0.0, {}))
        if time.monotonic() - when > FRESH or not when:
            told = await link.registry(call.session, "describe", {"tool": call.tool})
            if len(self._schemas) >= _SCHEMAS:
                self._schemas.clear()
            known = told.get("input_schema") or {}
            self._schemas[call.session, call.tool] = time.monotonic(), known
        call.body = declared(call.body, known)


def _own(links: _Open) -> list[Connection]:
    return [link for (pid, _), link in list(links.items()) if pid == os.getpid()]


def _dropped(links: _Open) -> None:
    """Closes the connections of a mesh without references; on any thread."""
    for link in _own(links):
        with contextlib.suppress(RuntimeError):  # the loop, and its connection, is closed
            link.loop.call_soon_threadsafe(link.drop)


@api
class _Base:
    """The common part of Mesh and AsyncMesh."""

    def __init__(
        self, servers: str | Sequence[str] | None = None, *, context: str | None = None, creds: str | None = None,
        nkey: str | None = None, session: str | None = None, timeout: float | None = None, name: str = "",
    ) -> None:
        settings = {"servers": servers, "context": context, "creds": creds, "nkey": nkey}
        self._session = session
        self._timeout = tool_side._seconds(timeout)
        self._links = _Links(settings, name, session or "default")

    def session(self: Self, name: str) -> Self:
        """The same mesh, on the same connection, with calls in another session."""
        if not isinstance(name, str) or not name:
            raise ValueError("a session has a name: text that is not empty")
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._session = name
        return other

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of session {self.session_name!r}>"

    def __reduce__(self) -> typing.NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied: it is a connection of this process. Make "
                        "one where it is used, or after a fork use this one")

    @property
    def session_name(self) -> str:
        """The current session of calls."""
        return self._session or _scope.get()[0] or "default"

    def _call(
        self, tool: str, args: Args, timeout: float | None = None, rpc_id: str | None = None, idempotent: bool = False,
        isolation: str | None = None, revision: str | None = None, no_cache: bool = False,
        idempotency_key: str | None = None, prefix: str = "rpc_",
    ) -> Call:
        if not isinstance(tool, str):
            raise TypeError(f"a tool is called by its id, a text, not by {type(tool).__name__}")
        named = payloads.Named()
        store = files.named.set(named)
        try:
            body = tool_side._encoded(tool, args)
        finally:
            files.named.reset(store)
        seconds = tool_side._seconds(timeout) if timeout is not None else self._timeout
        deadline = _scope.get()[1]
        if deadline is not None:
            left = deadline - time.monotonic()
            seconds = left if seconds is None else min(seconds, left)
        if rpc_id is not None and (rpc_id != rpc_id.strip() or not rpc_id or not rpc_id.isprintable()):
            raise refused("invalid_request", f"the rpc_id {rpc_id!r} cannot travel in a header", tool)
        name = rpc_id or new_rpc_id(prefix)
        key = idempotency_key
        if key is not None and (not key or key != key.strip() or not key.isascii() or not key.isprintable()):
            raise refused("invalid_request", f"the idempotency key {key!r} cannot travel in a header: it is printable "
                                             "ASCII without space around it", tool)
        return Call(self.session_name, tool, body, name, seconds, idempotent, isolation, revision, no_cache, key=key,
                    files=named.found, described=getattr(tool, "revision", ""))

    def _submission(
        self, tool: str | Description, args: Args, options: Submission
    ) -> tuple[Call, Callable[..., bytes]]:
        """The call of a task, for writing its arguments, and a function that makes the request from them."""
        unknown = options.keys() - Submission.__annotations__.keys()
        if unknown:
            raise TypeError(f"submit() got an unexpected keyword argument {min(unknown)!r}")
        tool = tool._named if isinstance(tool, Description) else tool
        call = self._call(tool, args, rpc_id=options.get("id"), idempotency_key=options.get("idempotency_key"),
                          prefix="task_")
        said: dict[str, Any] = {**options, "id": call.rpc_id}
        request: Callable[..., bytes] = functools.partial(tasks.submission, tool, **said)
        request(b"")  # refuses invalid requests before anything is sent
        return call, request

    def _batched(
        self, calls: Iterable[Any], timeout: float | None, rpc_id: str | None, return_exceptions: bool, parallel: bool,
    ) -> Callable[[], Coroutine[Any, Any, list[Any]]]:
        """A function that sends a batch and returns its results. Arguments are written here, on the caller's thread."""
        made = batches.members(calls)
        members = [self._call(tool, args, seconds) for tool, args, seconds in made]
        for one, (_, _, seconds) in zip(members, made, strict=True):
            one.timeout = seconds
        call = self._call("", None, timeout, rpc_id, prefix="batch_")
        call.batch = True

        async def results() -> list[Any]:
            return batches.ends(made, await self._batch(call, members, parallel), return_exceptions)

        return results

    async def _unary(self, call: Call) -> bytes:
        link = self._links.here()
        await self._links.settle(link, call)
        found: bytes = await link.attempts(call, link.unary)
        return found

    async def _batch(self, call: Call, members: list[Call], parallel: bool) -> list[Any]:
        link = self._links.here()
        for one in members:
            await link.within(call, self._links.declare(link, one))  # its own time starts at a node
            call.stored += one.stored
        requests = batches.requests([(one.tool, one.body, one.timeout) for one in members], lambda _, body: body)
        said = ',"parallel":true' if parallel else ""
        head = f'{{"type":"rpc_batch_call","batch_id":{json.dumps(call.rpc_id)}{said},"requests":'
        call.body = head.encode() + requests + b"}"
        found = await _resolved(link, call.session, await link.attempts(call, link.unary), call.deadline)
        return [await _explained(link, call.session, one.tool, end) for one, end in zip(members, found, strict=True)]

    async def _submit(self, call: Call, request: Callable[..., bytes]) -> None:
        link = self._links.here()
        await self._links.settle(link, call)
        await link.fit(call)
        await link.task(call.session, "submit", request(call.body, ref=call.ref))

    async def _asked(self, verb: str, question: dict[str, Any]) -> dict[str, Any]:
        """An answer of the registry. Like all coroutines here it runs in the context of the caller, also on another
        thread, and so in its scope."""
        return await self._links.here().registry(self.session_name, verb, question)

    async def _ids(self, prefix: str) -> list[str]:
        found: list[str] = []
        question: dict[str, Any] = {"limit": _PAGE}
        while True:
            page = await self._asked("list", question)
            found += [one["id"] for one in page.get("tools", ())
                      if one.get("state") == "serving" and one["id"].startswith(prefix)]
            question["after"] = page.get("next")
            if not question["after"]:
                return sorted(found)

    async def _starting(self, prefix: str) -> list[dict[str, Any]]:
        return await self._described(await self._ids(prefix))

    async def _found(self, words: str, limit: int) -> list[dict[str, Any]]:
        told = await self._asked("search", {"query": words, "limit": limit})
        return await self._described([one["id"] for one in told["tools"]])

    async def _described(self, ids: list[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while ids:
            told = (await self._asked("describe", {"tools": ids[:_PAGE]}))["tools"]
            if not told:
                raise errors.error("protocol_error", f"the registry describes no tool of {len(ids)}", origin="caller")
            found += [one for one in told if one is not None]  # None: removed since the list was made
            ids = ids[len(told):]
        return found

    async def _declarations(self, provider: str, tools: Sequence[Any] | None) -> list[Any]:
        ids = [getattr(one, "id", one) for one in tools] if tools is not None else await self._ids("")
        question = {"provider": provider, "tools": list(ids)}
        return (await models.render(self._links.here(), self.session_name, question))[0]

    async def _meaning(self, call: Any) -> tuple[str, Any]:
        """The tool and the arguments of a model's call."""
        return await models.meaning(self._links.here(), self.session_name, call)

    async def _run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine, created on the loop with the connection."""
        return await make()

    @typing.overload
    async def acall(self, tool: str, args: Args = None, *, returns: type[T], **options: Unpack[OfCall]) -> T: ...

    @typing.overload
    async def acall(self, tool: str, args: Args = None, *, returns: Any = None, **options: Unpack[OfCall]) -> Any: ...

    async def acall(
        self, tool: str, args: Args = None, *, timeout: float | None = None, rpc_id: str | None = None,
        idempotent: bool = False, isolation: str | None = None, revision: str | None = None, returns: Any = None,
        no_cache: bool = False, idempotency_key: str | None = None,
    ) -> Any:
        """Mesh.call, for coroutines. Cancelling the task cancels the call where it runs."""
        call = self._call(tool, args, timeout, rpc_id, idempotent, isolation, revision, no_cache, idempotency_key)
        return _typed(await self._run(lambda: self._unary(call)), returns, tool)

    @typing.overload
    def astream(
        self, tool: str, args: Args = None, *, returns: type[T], **options: Unpack[OfStream]
    ) -> AsyncItems[T]: ...

    @typing.overload
    def astream(
        self, tool: str, args: Args = None, *, returns: Any = None, **options: Unpack[OfStream]
    ) -> AsyncItems[Any]: ...

    def astream(
        self, tool: str, args: Args = None, *, timeout: float | None = None, rpc_id: str | None = None,
        idempotent: bool = False, isolation: str | None = None, revision: str | None = None, returns: Any = None,
        idle: float | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Mesh.stream, for coroutines. The call starts with the request for the first item."""
        return _aitems(_Pages(self, lambda: self._call(
            tool, args, timeout, rpc_id, idempotent, isolation, revision, prefix="rpc_stream_"), idle, returns))

    async def abatch(
        self, calls: Iterable[Any], *, timeout: float | None = None, rpc_id: str | None = None,
        return_exceptions: bool = False, parallel: bool = False,
    ) -> list[Any]:
        """Mesh.batch, for coroutines. Cancelling the task cancels all running calls."""
        return await self._run(self._batched(calls, timeout, rpc_id, return_exceptions, parallel))

    async def asubmit(
        self, tool: str | Description, args: Args = None, **options: Unpack[Submission]
    ) -> tasks.AsyncTask:
        """Mesh.submit, for coroutines."""
        call, request = self._submission(tool, args, options)
        await self._run(lambda: self._submit(call, request))
        return self._atask(call.rpc_id, call.session, call.tool)

    def _atask(self, id: str, session: str, tool: str = "") -> tasks.AsyncTask:
        return tasks.AsyncTask(id, lambda verb, request: self._run(
            lambda: _about_task(self._links.here(), session, verb, request, tool)))

    async def adescribe(self, tool: str) -> dict[str, Any]:
        """The description of a tool, as mesh info --json prints it; ToolNotFound lists the nearest ids."""
        return await self._run(lambda: self._asked("describe", {"tool": tool}))

    async def asave(self, value: Any, path: str | os.PathLike[str]) -> str:
        """Mesh.save, for coroutines."""
        return await self._run(lambda: payloads.save(self._links.here(), self.session_name, value, path))


@api
class AsyncMesh(_Base):
    """Mesh for coroutines, with await. Any number of tasks may use it; each event loop has its own connection. Close
    it, or use it as an async context manager."""

    call, stream, batch, submit = _Base.acall, _Base.astream, _Base.abatch, _Base.asubmit
    describe, save = _Base.adescribe, _Base.asave

    async def collect(self, tool: str, args: Args = None, **options: Unpack[OfCollect]) -> list[Any]:
        """The list of all items of stream."""
        return [item async for item in self.stream(tool, args, **options)]

    def task(self, id: str) -> tasks.AsyncTask:
        """The session's durable task with that id. Sends no request yet."""
        return self._atask(id, self.session_name)

    async def cancel(self, rpc_id: str) -> bool:
        """Stops a call of the session, wherever it runs; False if no node had it."""
        return await self._links.here().cancelled(self.session_name, rpc_id)

    async def tools(self, prefix: str = "") -> list[AsyncRemoteTool]:
        """The served tools of the session whose id begins with prefix, in the order of their ids."""
        return [AsyncRemoteTool(self, one) for one in await self._starting(prefix)]

    async def search(self, words: str, *, limit: int = 10) -> list[AsyncRemoteTool]:
        """Mesh.search."""
        return [AsyncRemoteTool(self, one) for one in await self._found(words, limit)]

    async def tool(self, tool_id: str) -> AsyncRemoteTool:
        """One tool; ToolNotFound lists similar ids."""
        return AsyncRemoteTool(self, await self.describe(tool_id))

    async def format(self, provider: str, tools: Sequence[Any] | None = None) -> list[Any]:
        """Mesh.format."""
        return await self._declarations(provider, tools)

    async def execute(self, call: Any, *, timeout: float | None = None) -> Any:
        """Mesh.execute."""
        tool, arguments = await self._meaning(call)
        return await self.call(tool, arguments, timeout=timeout)

    async def close(self) -> None:
        """Closes the connection of this loop; pending calls fail. A later call opens a new one."""
        await self._links.here().close()

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@api
class Mesh(_Base):
    """A mesh whose tools you call. It connects at first use: by the arguments, by MESH_NATS_URL, MESH_NATS_CONTEXT,
    MESH_NATS_CREDS and MESH_NATS_NKEY (then NATS's own variables), to a running mesh up, or to NATS's default port.

    timeout is the default timeout of calls, in seconds. Any number of threads may use it at once. It works inside a
    running event loop, but blocks it: acall and astream do not. After a fork the child connects again; pending calls
    belong to the parent. AsyncMesh is the same for coroutines.
    """

    @typing.overload
    def call(self, tool: str, args: Args = None, *, returns: type[T], **options: Unpack[OfCall]) -> T: ...

    @typing.overload
    def call(self, tool: str, args: Args = None, *, returns: Any = None, **options: Unpack[OfCall]) -> Any: ...

    def call(
        self, tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None,
        rpc_id: str | None = None, idempotent: bool = False, isolation: str | None = None,
        revision: str | None = None, returns: Any = None, no_cache: bool = False, idempotency_key: str | None = None,
    ) -> Any:
        """Calls a tool and returns its result.

        args are its arguments by name; bytes, dates, dataclasses, pydantic models, numpy and pandas are transferred as
        in a tool's result. timeout is the whole time in seconds; the default is the tool's own. idempotent says that
        the call may be repeated if its node is lost. returns is the type of the returned value. no_cache ignores cached
        results. idempotency_key identifies the effect of the call for a day: it runs once, and each later call with the
        key gets its outcome (docs/bulk.md). Raises the MeshError of the code, ToolExecutionError if the tool itself
        failed. An exception in the waiting thread, such as KeyboardInterrupt, cancels the call.
        """
        call = self._call(tool, args, timeout, rpc_id, idempotent, isolation, revision, no_cache, idempotency_key)
        return _typed(background.run(lambda: self._unary(call)), returns, tool)

    async def _run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await asyncio.wrap_future(background.submit(make))

    @typing.overload
    def stream(self, tool: str, args: Args = None, *, returns: type[T], **options: Unpack[OfStream]) -> Items[T]: ...

    @typing.overload
    def stream(
        self, tool: str, args: Args = None, *, returns: Any = None, **options: Unpack[OfStream]
    ) -> Items[Any]: ...

    def stream(
        self, tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None,
        rpc_id: str | None = None, idempotent: bool = False, isolation: str | None = None,
        revision: str | None = None, returns: Any = None, idle: float | None = None,
    ) -> Generator[Any, None, None]:
        """Calls a tool and yields its items as they arrive, in order, each once, despite lost connections. The call
        starts with the request for the first item; closing the generator, or leaving a for loop over it, cancels it. A
        slow reader slows the tool down. Otherwise like call; returns is the type of an item, idle the max time in
        seconds between two items."""
        return _items(_Pages(self, lambda: self._call(
            tool, args, timeout, rpc_id, idempotent, isolation, revision, prefix="rpc_stream_"), idle, returns))

    def collect(self, tool: str, args: Args = None, **options: Unpack[OfCollect]) -> list[Any]:
        """The list of all items of stream."""
        return list(self.stream(tool, args, **options))

    def batch(
        self, calls: Iterable[Any], *, timeout: float | None = None, rpc_id: str | None = None,
        return_exceptions: bool = False, parallel: bool = False,
    ) -> list[Any]:
        """Makes several calls with one request, 1,000 at most, and returns their results in the order of the calls.

        A call is (tool, arguments), (tool, arguments, timeout) or just a tool: an id or an object of tool and tools.
        Calls of tools without parallel_safe run one after the other in that order; others run concurrently unless their
        resource keys are equal. parallel says that the calls are independent: then all run concurrently, except equal
        resource keys and tools that declare parallel_safe = false. A failed call does not affect the others. When all
        have ended the first error is raised, or with return_exceptions each error stands in place of its call's result.
        timeout is the time of all calls together, in seconds. rpc_id names the batch: sent again under that name none
        of it runs twice. An exception in the waiting thread, such as KeyboardInterrupt, cancels all running calls.
        """
        return background.run(self._batched(calls, timeout, rpc_id, return_exceptions, parallel))

    def submit(self, tool: str | Description, args: Args = None, **options: Unpack[Submission]) -> tasks.Task:
        """Submits a call that runs even if this program ends, and returns its task.

        id names the task: the same id again is the same task. The tool is run up to attempts times (3), each for at
        most timeout seconds; with an idempotency_key it is not repeated once it has begun. ttl is the number of seconds
        for which the result is kept (a day). Tasks of a session with a higher priority (1, 0, -1) run first. at is the
        start time, delay the seconds until the start; every, in seconds, and cron (5 fields, UTC) make a schedule,
        which ends when the task is cancelled. For missed times it submits one task; catch_up says none, one or all
        (docs/bulk.md).
        """
        call, request = self._submission(tool, args, options)
        background.run(lambda: self._submit(call, request))
        return self._task(call.rpc_id, call.session, call.tool)

    def task(self, id: str) -> tasks.Task:
        """The session's durable task with that id. Sends no request yet."""
        return self._task(id, self.session_name)

    def _task(self, id: str, session: str, tool: str = "") -> tasks.Task:
        return tasks.Task(id, lambda verb, request: background.run(
            lambda: _about_task(self._links.here(), session, verb, request, tool)))

    def describe(self, tool: str) -> dict[str, Any]:
        """The description of a tool, as mesh info --json prints it; ToolNotFound lists the nearest ids."""
        return background.run(lambda: self._asked("describe", {"tool": tool}))

    def save(self, value: Any, path: str | os.PathLike[str]) -> str:
        """Writes the file of a result (a tool that returns a File gives {"$file": ...}) to path, or into that folder
        under its own name, and returns its path. The mesh keeps the file for 15 minutes after the call; it can be saved
        once."""
        return background.run(lambda: payloads.save(self._links.here(), self.session_name, value, path))

    def cancel(self, rpc_id: str) -> bool:
        """Stops a call of the session, wherever it runs; False if no node had it."""
        return background.run(lambda: self._links.here().cancelled(self.session_name, rpc_id))

    def tools(self, prefix: str = "") -> list[RemoteTool]:
        """The served tools of the session whose id begins with prefix, in the order of their ids."""
        return [RemoteTool(self, one) for one in background.run(lambda: self._starting(prefix))]

    def search(self, words: str, *, limit: int = 10) -> list[RemoteTool]:
        """The tools of the session that fit what should be done, said in anybody's words, the best first.

        mesh.search("which forecast for tomorrow", limit=5); limit is 1,000 at most."""
        return [RemoteTool(self, one) for one in background.run(lambda: self._found(words, limit))]

    def tool(self, tool_id: str) -> RemoteTool:
        """One tool; ToolNotFound lists similar ids."""
        return RemoteTool(self, self.describe(tool_id))

    def install(
        self, source: str | os.PathLike[str], *, name: str = "", rev: str = "", env: Mapping[str, str] | None = None,
        paths: Iterable[str | os.PathLike[str]] = (),
    ) -> list[RemoteTool]:
        """Installs an index, as mesh install does, and returns its tools, which the mesh then serves.

        source is a folder, owner/repo or a git URL, with or without @rev. env has the variables of its tools, paths the
        folders that they may use: "DIR" to read, "DIR:rw" also to write. Warnings, and tools that are not served, are
        logged. Raises InstallFailed, LookupError if no tool is served, FileNotFoundError without the command mesh.
        """
        told = installing.install(
            source, name, rev, env, paths, self._links.settings, self.session_name, self.describe)
        return [RemoteTool(self, one) for one in told]

    def format(self, provider: str, tools: Sequence[Any] | None = None) -> list[Any]:
        """The declarations of tools (ids or tool objects; None: all of the session) for a provider: openai,
        openai-responses, anthropic, gemini or mcp. execute knows the names in them, in any program."""
        return background.run(lambda: self._declarations(provider, tools))

    def execute(self, call: Any, *, timeout: float | None = None) -> Any:
        """Runs a model's tool call: an object or a dict of the provider's client, or {"name", "arguments"}. Its name is
        mapped back, and arguments are fitted to the schema where their meaning is plain (docs/tools.md, "What models
        write"); the logger toolmesh reports that. Slightly broken JSON is repaired if json_repair is installed."""
        tool, arguments = background.run(lambda: self._meaning(call))
        return self.call(tool, arguments, timeout=timeout)

    def dspy_tools(self, prefix: str = "") -> list[Any]:
        """The tools of the session whose id begins with prefix as dspy.Tools, for dspy.ReAct and others, under names
        that are identifiers; see toolmesh.dspy. A streaming tool returns the list of its items. Without dspy they are
        callables with those names."""
        dspy = importlib.import_module("toolmesh.dspy")
        return list(dspy.tools(self, prefix))

    def close(self) -> None:
        """Closes the connection; pending calls fail. A later call opens a new one."""
        for link in _own(self._links.of):
            if link.loop is background.loop and not link.closed:
                background.run(link.close)

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


api(tasks._Handle)
api(tasks.Task)
api(tasks.AsyncTask)


class _Pages:
    """The pages of a stream. The first page starts the call, on the loop that asks for it."""

    def __init__(self, mesh: _Base, make: Callable[[], Call], idle: float | None, returns: Any) -> None:
        self.mesh, self._make, self._idle, self._returns = mesh, make, idle, returns
        self._call: Call | None = None
        self._pages: Any = None

    def begin(self) -> Callable[[], Coroutine[Any, Any, list[Any]]]:
        """Returns a function that returns the items of the next page; an empty page is the end. Runs on the caller's
        thread, as the caller's code writes the arguments."""
        self._call = self._call or self._make()
        return self._next

    async def _next(self) -> list[bytes]:
        assert self._call is not None
        if self._pages is None:
            link = self.mesh._links.here()
            await self.mesh._links.settle(link, self._call)
            self._pages = streams.pages(link, self._call)
        return await _page(self._pages, self._call, self._idle)

    def typed(self, body: bytes) -> Any:
        """An item in the type that the caller asked for."""
        assert self._call is not None
        return _typed(body, self._returns, self._call.tool)

    async def close(self) -> None:
        """Cancels the call if it runs, on its own loop."""
        if self._pages is not None:
            await self._pages.aclose()

    def end(self) -> None:
        """Cancels the call if it runs. Does not wait: a generator may be collected on any thread, also that of the
        loop."""
        loop, pages = background.loop, self._pages
        if pages is not None and loop is not None and not loop.is_closed() and background.pid == os.getpid():
            loop.call_soon_threadsafe(lambda: loop.create_task(_ended(pages)))


def _items(pages: _Pages) -> Generator[Any, None, None]:
    try:
        while True:
            try:
                page = background.run(pages.begin())
            except Exception as failure:
                bare(failure)
                raise
            if not page:
                return
            for body in page:
                yield pages.typed(body)
    finally:
        pages.end()


async def _aitems(pages: _Pages) -> AsyncGenerator[Any, None]:
    """_items, for coroutines."""
    try:
        while True:
            try:
                page = await pages.mesh._run(pages.begin())
            except Exception as failure:
                bare(failure)
                raise
            if not page:
                return
            for body in page:
                yield pages.typed(body)
    finally:
        if isinstance(pages.mesh, Mesh):
            pages.end()
        else:
            await pages.close()


async def _ended(pages: Any) -> None:
    with contextlib.suppress(RuntimeError):  # cancelled tasks are ending it
        await pages.aclose()
