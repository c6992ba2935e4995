"""Tools of the mesh for DSPy, and the tool bridge that DSPex's designs describe.

    import dspy
    from toolmesh import Mesh

    agent = dspy.ReAct("question -> answer", tools=Mesh().dspy_tools("weather."))

Without dspy installed, the same functions return plain callables. Proxies without a mesh call through toolmesh.mesh:
inside a tool an agent's calls are nested in the tool's call, in its session and time.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import importlib
import inspect
import sys
import uuid
from collections.abc import Sequence
from typing import Any

from . import mesh as _here
from ._adapters.common import named
from ._adapters.proxies import CachedRPCProxyTool, RPCProxyTool, StreamingRPCProxyTool, whole
from ._client.answers import api
from ._core import errors
from ._locks import lock
from .client import Mesh
from .remote import Description, RemoteTool

__all__ = [
    "BatchToolProcessor", "CachedRPCProxyTool", "RPCProxyTool", "StreamingRPCProxyTool", "ToolBridgeManager", "agent",
    "create_react_agent", "end_session", "init_tool_bridge", "tools",
]

_AT_ONCE = 32  # max concurrent calls of a batch
_BATCH = 1000


@api
class ToolBridgeManager:
    """The tools of one session, from the specifications of its owner."""

    def __init__(self, mesh: Mesh | None = None) -> None:
        self.mesh = mesh
        self.tools: dict[str, RPCProxyTool] = {}  # by id

    def create_tools_from_specs(self, specs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The tools by name: dspy.Tools, or without dspy the proxies themselves.

        A specification is {"tool_id", "name", "type": "standard" or "streaming", "description", "metadata"}, with the
        options "input_schema" (the mesh is not asked), "timeout_ms" and "cache_ttl" in seconds: docs/python/dspy.md.
        ValueError for an invalid specification, an unknown tool, and a repeated name.
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
        """The proxy of a call. ValueError for an unknown tool, TypeError for args that are no list and kwargs that are
        no dict."""
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
            if not _here.serves():
                return _here.default().tool(tool_id)
            told = {**spec, "input_schema": {"type": "object", "additionalProperties": True}}
        kept = {key: told.get(key) for key in ("description", "input_schema", "metadata")}
        return Description({"id": tool_id, **kept})


@api
class BatchToolProcessor:
    """Calls many tools of a manager concurrently."""

    def __init__(self, manager: ToolBridgeManager) -> None:
        self.manager = manager

    def process_batch(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The results of {"tool_id", "args": [], "kwargs": {}, "index"}, at most 1,000, in their order: {"index",
        "status": "ok", "result"} or {"index", "status": "error", "error": {"type", "message", "stacktrace", "code"}}.
        They are one parallel batch, see Mesh.batch; streams and cached tools are called one by one, concurrently.
        Invalid requests raise ValueError and TypeError before any runs."""
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
                # Each in its own context: session and deadline are the caller's.
                futures = [pool.submit(contextvars.copy_context().run, _outcome, *calls[place]) for place in rest]
                found.update(zip(rest, [one.result() for one in futures], strict=True))
        return [found[place] for place in range(len(calls))]


def _together(calls: list[Any], places: list[int]) -> dict[int, dict[str, Any]]:
    """The outcomes of the calls at places, as one batch, without calls that a batch cannot carry."""
    found: dict[int, dict[str, Any]] = {}
    sent: list[int] = []
    members = []
    for place in places:
        index, proxy, args, kwargs = calls[place]
        try:
            members.append((proxy._named, proxy._arguments(tuple(args), kwargs), proxy.timeout))
            sent.append(place)
        except errors.MeshError as failure:
            found[place] = _failed(index, failure)
    try:
        ends = calls[places[0]][1]._caller().batch(members, return_exceptions=True, parallel=True) if members else []
    except errors.MeshError as failure:
        if failure.started is False:
            return found  # too large for one message, or no node runs batches
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
        return {"index": index, "status": "ok", "result": whole(proxy, *args, **kwargs)}
    except errors.MeshError as failure:
        return _failed(index, failure)


def tools(mesh: Mesh, prefix: str = "") -> list[Any]:
    """See Mesh.dspy_tools."""
    return [_wrapped(_own(mesh, *one)) for one in named(mesh, prefix)]


def _own(mesh: Mesh, tool: RemoteTool, name: str) -> RPCProxyTool:
    kind = StreamingRPCProxyTool if tool.streaming else RPCProxyTool
    return kind(tool.id, name, mesh, told=tool)


def _wrapped(proxy: RPCProxyTool) -> Any:
    try:
        from ._adapters.dspy_tool import MeshTool
    except ModuleNotFoundError as failure:
        if failure.name != "dspy":
            raise
        return proxy
    return MeshTool(proxy)


_lock = lock()
_sessions: dict[str, tuple[ToolBridgeManager, dict[str, Any]]] = {}
_agents: dict[str, tuple[str, Any]] = {}


def init_tool_bridge(request: dict[str, Any], mesh: Mesh | None = None) -> dict[str, Any]:
    """Makes the tools of {"session_id", "tools"}, see create_tools_from_specs, in place of the session's earlier ones.
    Returns {"session_id", "tool_count", "tool_names"}. mesh is as for RPCProxyTool; inside a tool the session is that
    of its call, and session_id only a name."""
    session = _text(request, "session_id")
    where = mesh
    if where is None and not _here.serves():
        where = _here.default()
    manager = ToolBridgeManager(where.session(session) if where is not None else None)
    made = manager.create_tools_from_specs(request.get("tools", []))
    with _lock:
        _sessions[session] = manager, made
    return {"session_id": session, "tool_count": len(made), "tool_names": list(made)}


def create_react_agent(request: dict[str, Any]) -> dict[str, Any]:
    """Makes a dspy.ReAct of {"signature", "session_id", "max_iters": 5} with the tools of the session. Returns
    {"agent_id", "tool_count", "max_iters"}. ValueError for a session without tools, ImportError without dspy."""
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
    """The dspy.ReAct made by create_react_agent; LookupError for an unknown or ended one."""
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


api(sys.modules[__name__])
