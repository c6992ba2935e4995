"""Tools of the mesh for DSPy, and the tool bridge that DSPex's designs describe.

    import dspy
    from toolmesh import Mesh

    agent = dspy.ReAct("question -> answer", tools=Mesh().dspy_tools("weather."))

Where dspy is not installed, the same functions give plain callables. Proxies without
a mesh of their own call by toolmesh.mesh: inside a tool that is the tool's worker, so
that an agent's calls are nested in its own, in the session and the time of that.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import copy
import importlib
import inspect
import json
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import toolmesh

from . import _serving
from . import mesh as _here
from ._core import errors, values
from ._framework import named
from ._locks import lock
from .remote import Description, RemoteTool, declared

__all__ = [
    "BatchToolProcessor", "CachedRPCProxyTool", "RPCProxyTool", "StreamingRPCProxyTool", "ToolBridgeManager", "agent",
    "create_react_agent", "end_session", "init_tool_bridge", "tools",
]

CALL = 30.0  # seconds that a call has whose tool declares no time
CHUNK = 60.0  # seconds between two items of a stream
_CACHED = 100
_AT_ONCE = 32  # calls of a batch
_BATCH = 1000


class RPCProxyTool:
    """A tool of the mesh as a function: proxy("Oslo", days=2).

    mesh is where it is called, and None the mesh that the program is in. timeout is
    the time of a call in seconds; without one the tool's own holds, else CALL. told is
    what the mesh says of the tool: without it, it is asked for when it is
    first needed, for arguments by position. Any thread may call it, many at once.
    Failures are MeshErrors: those of arguments, sizes and unknown tools are
    ValueErrors too, and what is late is a TimeoutError.
    """

    def __init__(self, tool_id: str, tool_name: str = "", mesh: toolmesh.Mesh | None = None, *,
                 timeout: float | None = None, told: Description | None = None) -> None:
        if not isinstance(tool_id, str) or not tool_id:
            raise ValueError("a tool has an id: text that is not empty")
        self.tool_id = tool_id
        self.tool_name = tool_name or tool_id
        self.timeout = timeout
        self._mesh = mesh
        self._told = told
        self._named = told._named if told is not None else tool_id
        self.__name__ = self.tool_name
        self.__doc__ = told.description if told is not None else None
        if told is not None:
            self.__signature__ = told.__signature__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the tool and returns its result."""
        return self._caller().call(self._named, self._arguments(args, kwargs), timeout=self._limit(CALL))

    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """As a call, for coroutines."""
        return await self._caller().acall(self._named, self._arguments(args, kwargs), timeout=self._limit(CALL))

    def _caller(self) -> Any:
        if self._mesh is not None:
            return self._mesh
        return _here if _here._in_tool() or _serving.current.get() is not None else _here.default()

    def _limit(self, usual: float) -> float | None:
        if self.timeout is not None:
            return self.timeout
        return None if self._told is not None and self._told.annotations.get("timeout") else usual

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not args:
            return kwargs  # the mesh checks them
        if self._told is None:
            caller = self._caller()
            if caller is _here:
                raise errors.error("invalid_arguments", "arguments by position need the tool's input_schema; "
                                   "give them by name", tool=self.tool_id, started=False, origin="caller")
            self._told = told = caller.tool(self.tool_id)
            return dict(told.arguments(args, kwargs))
        return self._told.arguments(args, kwargs)


class StreamingRPCProxyTool(RPCProxyTool):
    """A tool whose items come one by one: for item in proxy(...). timeout is the longest
    time in seconds between two items, CHUNK without one; the whole is bound by
    toolmesh.scope, and inside a tool by that tool's own time alone. Closing the
    generator cancels the call."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Calls the tool and yields its items."""
        return self._options("stream")(self._named, self._arguments(args, kwargs))  # type: ignore[no-any-return]

    def acall(self, /, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        """As a call, for coroutines."""
        return self._options("astream")(self._named, self._arguments(args, kwargs))  # type: ignore[no-any-return]

    def _options(self, name: str) -> Callable[..., Any]:
        stream: Callable[..., Any] = getattr(self._caller(), name)
        if self._caller() is _here:
            return stream
        return lambda tool, args: stream(tool, args, idle=self._limit(CHUNK))


class CachedRPCProxyTool(RPCProxyTool):
    """A tool whose results are kept, for cache_ttl seconds and of the last 100 calls:
    for tools that answer the same to the same. Failures are not kept. Every caller has
    a result of its own, which it may change."""

    def __init__(self, *args: Any, cache_ttl: float = 300, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cache_ttl = cache_ttl
        self._lock = lock()
        self._kept: OrderedDict[str, tuple[float, Any]] = OrderedDict()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the tool, or returns what it answered before."""
        arguments = self._arguments(args, kwargs)
        key = self._key(arguments)
        kept = self._find(key)
        if kept is None:
            kept = (super().__call__(**arguments),)
            self._keep(key, kept[0])
        return copy.deepcopy(kept[0])

    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """As a call, for coroutines."""
        arguments = self._arguments(args, kwargs)
        key = self._key(arguments)
        kept = self._find(key)
        if kept is None:
            kept = (await super().acall(**arguments),)
            self._keep(key, kept[0])
        return copy.deepcopy(kept[0])

    def _key(self, arguments: dict[str, Any]) -> str:
        # As it is sent: nested values have a key too, and 1, 1.0 and True have three.
        session = self._mesh.session_name if self._mesh is not None else ""
        return session + "\n" + json.dumps(_plain(arguments, self.tool_id), sort_keys=True)

    def _find(self, key: str) -> tuple[Any] | None:
        with self._lock:
            until, value = self._kept.get(key, (0.0, None))
            if time.monotonic() >= until:
                self._kept.pop(key, None)
                return None
            self._kept.move_to_end(key)
            return (value,)

    def _keep(self, key: str, value: Any) -> None:
        with self._lock:
            self._kept[key] = time.monotonic() + self.cache_ttl, copy.deepcopy(value)
            self._kept.move_to_end(key)
            if len(self._kept) > _CACHED:
                self._kept.popitem(last=False)


class ToolBridgeManager:
    """The tools of one session, by the specifications that its owner gives."""

    def __init__(self, mesh: toolmesh.Mesh | None = None) -> None:
        self.mesh = mesh
        self.tools: dict[str, RPCProxyTool] = {}  # by id

    def create_tools_from_specs(self, specs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The tools by name: dspy.Tools, or the proxies themselves where dspy is not installed.

        A specification is {"tool_id", "name", "type": "standard" or "streaming",
        "description", "metadata"}, and, optional: "input_schema", where the mesh is not to
        be asked or cannot be, as inside a tool; "timeout_ms", of the call, or between
        items; "cache_ttl", in seconds, for results that may be kept. ValueError for one
        that is no such thing, names a tool that nobody offers, or a name twice.
        """
        made: dict[str, Any] = {}
        proxies: dict[str, RPCProxyTool] = {}
        if not isinstance(specs, (list, tuple)):
            raise TypeError(f"tools are a list of specifications, not {type(specs).__name__}")
        for spec in specs:
            if not isinstance(spec, dict):
                raise TypeError(f"the specification of a tool is an object, not {type(spec).__name__}")
            proxy = self._proxy(spec)
            if proxy.tool_name in made:
                raise ValueError(f"two tools have the name {proxy.tool_name!r}")
            proxies[proxy.tool_id] = proxy
            made[proxy.tool_name] = _wrapped(proxy)
        self.tools.update(proxies)
        return made

    def validate_tool_call(self, tool_id: str, args: Any, kwargs: Any) -> RPCProxyTool:
        """The proxy of a call as it came over a wire. ValueError for a tool that is not
        here, TypeError for args that are no list and kwargs that are no dict."""
        proxy = self.tools.get(tool_id)
        if proxy is None:
            raise ValueError(f"there is no tool {tool_id!r} here")
        if not isinstance(args, (list, tuple)):
            raise TypeError(f"args are a list, not {type(args).__name__}")
        if not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
            raise TypeError("kwargs are an object: a dict whose keys are text")
        return proxy

    def _proxy(self, spec: dict[str, Any]) -> RPCProxyTool:
        tool_id, kind = spec.get("tool_id"), spec.get("type", "standard")
        if not isinstance(tool_id, str) or not tool_id:
            raise ValueError("the specification of a tool has a tool_id")
        if kind not in ("standard", "streaming"):
            raise ValueError(f"{tool_id}: the type of a tool is standard or streaming, not {kind!r}")
        told = self._described(tool_id, spec)
        if spec.get("description"):
            told.description = told.__doc__ = spec["description"]
        milliseconds = spec.get("timeout_ms")
        given: dict[str, Any] = {
            "tool_id": tool_id, "tool_name": spec.get("name") or tool_id, "mesh": self.mesh, "told": told,
            "timeout": None if milliseconds is None else milliseconds / 1000,
        }
        if kind == "streaming":
            return StreamingRPCProxyTool(**given)
        if spec.get("cache_ttl") is not None:
            return CachedRPCProxyTool(cache_ttl=spec["cache_ttl"], **given)
        return RPCProxyTool(**given)

    def _described(self, tool_id: str, spec: dict[str, Any]) -> Description:
        told = spec
        if "input_schema" not in spec:
            if self.mesh is not None:
                return self.mesh.tool(tool_id)
            if not _here._in_tool() and _serving.current.get() is None:
                return _here.default().tool(tool_id)
            told = {**spec, "input_schema": {"type": "object", "additionalProperties": True}}
        kept = {key: told.get(key) for key in ("description", "input_schema", "metadata")}
        return Description({"id": tool_id, **kept})


class BatchToolProcessor:
    """Calls many tools at once, those of a manager."""

    def __init__(self, manager: ToolBridgeManager) -> None:
        self.manager = manager

    def process_batch(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The results of {"tool_id", "args": [], "kwargs": {}, "index"}, in the order of
        the requests: {"index", "status": "ok", "result"}, or {"index", "status": "error",
        "error": {"type", "message", "stacktrace", "code"}} for one that fails. They are
        sent as one parallel batch of the mesh, see Mesh.batch: all side by side, but for
        those with one resource key and tools that declare parallel_safe = false; streams,
        and results that are kept, are calls of their own. ValueError and TypeError for
        requests that cannot be, before any runs; there are 1,000 at most."""
        if len(requests) > _BATCH:
            raise ValueError(f"{len(requests)} requests: a batch has {_BATCH} at most")
        calls = []
        for number, request in enumerate(requests):
            args, kwargs = request.get("args", []), request.get("kwargs", {})
            proxy = self.manager.validate_tool_call(str(request.get("tool_id")), args, kwargs)
            calls.append((request.get("index", number), proxy, args, kwargs))
        found: dict[int, dict[str, Any]] = {}
        plain = [place for place, call in enumerate(calls) if type(call[1]) is RPCProxyTool]
        if len(plain) > 1:
            found = _together(calls, plain)
        rest = [place for place in range(len(calls)) if place not in found]
        if rest:
            with concurrent.futures.ThreadPoolExecutor(min(_AT_ONCE, len(rest))) as pool:
                # Each in a context of its own: session and deadline are the caller's.
                futures = [pool.submit(contextvars.copy_context().run, _outcome, *calls[place]) for place in rest]
                found.update(zip(rest, [one.result() for one in futures], strict=True))
        return [found[place] for place in range(len(calls))]


def _together(calls: list[Any], places: list[int]) -> dict[int, dict[str, Any]]:
    """What the calls at places ended with, as one batch; those are missing that could not be sent so."""
    found: dict[int, dict[str, Any]] = {}
    sent: list[int] = []
    members = []
    for place in places:
        index, proxy, args, kwargs = calls[place]
        try:
            members.append((proxy.tool_id, proxy._arguments(tuple(args), kwargs), proxy.timeout))
            sent.append(place)
        except errors.MeshError as failure:
            found[place] = _failed(index, failure)
    try:
        ends = calls[places[0]][1]._caller().batch(members, return_exceptions=True, parallel=True) if members else []
    except errors.MeshError as failure:
        if failure.started is False:
            return found  # too large for one message, or nobody runs batches
        ends = [failure] * len(members)
    for place, end in zip(sent, ends, strict=True):
        index = calls[place][0]
        ok = not isinstance(end, errors.MeshError)
        found[place] = {"index": index, "status": "ok", "result": end} if ok else _failed(index, end)
    return found


def _failed(index: Any, failure: errors.MeshError) -> dict[str, Any]:
    return {"index": index, "status": "error", "error": {
        "type": failure.type or failure.code, "message": failure.message, "stacktrace": failure.stacktrace,
        "code": failure.code}}


def _outcome(index: Any, proxy: RPCProxyTool, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"index": index, "status": "ok", "result": _whole(proxy, *args, **kwargs)}
    except errors.MeshError as failure:
        return _failed(index, failure)


def _whole(proxy: RPCProxyTool, /, *args: Any, **kwargs: Any) -> Any:
    """The result of a proxy; of a stream the list of its items."""
    found = proxy(*args, **kwargs)
    return list(found) if isinstance(proxy, StreamingRPCProxyTool) else found


async def _awhole(proxy: RPCProxyTool, /, **kwargs: Any) -> Any:
    if isinstance(proxy, StreamingRPCProxyTool):
        async with contextlib.aclosing(proxy.acall(**kwargs)) as items:  # type: ignore[type-var]
            return [item async for item in items]
    return await proxy.acall(**kwargs)


def tools(mesh: toolmesh.Mesh, prefix: str = "") -> list[Any]:
    """See Mesh.dspy_tools."""
    return [_wrapped(_own(mesh, *one)) for one in named(mesh, prefix)]


def _own(mesh: toolmesh.Mesh, tool: RemoteTool, name: str) -> RPCProxyTool:
    kind = StreamingRPCProxyTool if tool.streaming else RPCProxyTool
    return kind(tool.id, name, mesh, told=tool)


def _wrapped(proxy: RPCProxyTool) -> Any:
    try:
        from ._dspy_tool import MeshTool
    except ModuleNotFoundError as failure:
        if failure.name != "dspy":
            raise
        return proxy
    return MeshTool(proxy)


def _plain(arguments: dict[str, Any], tool: str, schema: dict[str, Any] | None = None) -> Any:
    """Arguments as the JSON that is sent."""
    try:
        body = values.encode(arguments)
    except (values.NotSerializable, TypeError, ValueError) as failure:
        raise errors.error("invalid_arguments", f"not JSON: {failure}", tool=tool, started=False,
                           origin="caller") from None
    return values.decode(declared(body, schema or {}))


_lock = lock()
_sessions: dict[str, tuple[ToolBridgeManager, dict[str, Any]]] = {}
_agents: dict[str, tuple[str, Any]] = {}


def init_tool_bridge(request: dict[str, Any], mesh: toolmesh.Mesh | None = None) -> dict[str, Any]:
    """Makes the tools of {"session_id", "tools"}; see ToolBridgeManager for those. Returns
    {"session_id", "tool_count", "tool_names"}. Tools that the session had are replaced;
    end_session forgets them. mesh is as for RPCProxyTool; inside a tool
    the session is that of its call, and session_id only a name."""
    session = _text(request, "session_id")
    where = mesh
    if where is None and not _here._in_tool() and _serving.current.get() is None:
        where = _here.default()
    manager = ToolBridgeManager(where.session(session) if where is not None else None)
    made = manager.create_tools_from_specs(request.get("tools", []))
    with _lock:
        _sessions[session] = manager, made
    return {"session_id": session, "tool_count": len(made), "tool_names": list(made)}


def create_react_agent(request: dict[str, Any]) -> dict[str, Any]:
    """Makes a dspy.ReAct of {"signature", "session_id", "max_iters": 5} with the tools of
    the session. Returns {"agent_id", "tool_count", "max_iters"}; agent gives it by its
    id. ValueError for a session without tools, ImportError where dspy is not installed."""
    session, rounds = _text(request, "session_id"), request.get("max_iters", 5)
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
        raise ValueError(f"max_iters is {rounds!r}: it is how many steps there are at most")
    with _lock:
        if session not in _sessions:
            raise ValueError(f"there are no tools of the session {session!r}: init_tool_bridge comes first")
        made = list(_sessions[session][1].values())
    try:
        react = importlib.import_module("dspy").ReAct
    except ImportError:
        raise ImportError("agents need dspy: pip install toolmesh[dspy]") from None
    agent_id = f"react_{session}_{uuid.uuid4().hex[:8]}"
    found = react(request["signature"] if inspect.isclass(request.get("signature")) else _text(request, "signature"),
                  tools=made, max_iters=rounds)
    with _lock:
        _agents[agent_id] = session, found
    return {"agent_id": agent_id, "tool_count": len(made), "max_iters": rounds}


def agent(agent_id: str) -> Any:
    """The dspy.ReAct that create_react_agent made; LookupError for one that it did not, or that has ended."""
    with _lock:
        return _agents[agent_id][1]


def end_session(session_id: str) -> None:
    """Forgets the tools and the agents of a session."""
    with _lock:
        _sessions.pop(session_id, None)
        for one in [one for one, (session, _) in _agents.items() if session == session_id]:
            del _agents[one]


def _text(request: dict[str, Any], name: str) -> str:
    if not isinstance(request, dict):
        raise TypeError(f"a request is an object, not {type(request).__name__}")
    found = request.get(name)
    if not isinstance(found, str) or not found:
        raise ValueError(f"{name} is missing: text that is not empty")
    return found
