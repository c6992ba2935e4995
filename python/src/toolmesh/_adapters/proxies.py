"""Tools of the mesh as functions, the basis of DSPy's tools; see toolmesh.dspy."""

from __future__ import annotations

import contextlib
import copy
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from .. import mesh as _here
from .._client.answers import api, refused
from .._core import tool_side, values
from .._locks import lock
from ..client import Mesh
from ..remote import Description, Named, declared

CALL = 30.0  # seconds of a call if the tool declares no timeout
CHUNK = 60.0  # seconds between two items of a stream
_CACHED = 100


@api
class RPCProxyTool:
    """A tool of the mesh as a function: proxy("Oslo", days=2).

    mesh is the mesh to call; None: the mesh of the program. timeout is the time of a call in seconds; the default is
    the tool's own, else CALL. told is the mesh's description of the tool: without it the proxy asks the mesh when
    arguments are given by position. Any thread may call it, many concurrently. Failures are MeshErrors: those of
    arguments, sizes and unknown tools are ValueErrors, too, and a timeout is a TimeoutError.
    """

    def __init__(self, tool_id: str, tool_name: str = "", mesh: Mesh | None = None, *,
                 timeout: float | None = None, told: Description | None = None) -> None:
        if not isinstance(tool_id, str) or not tool_id:
            raise ValueError("a tool has an id: text that is not empty")
        self.tool_id = tool_id
        self.tool_name = tool_name or tool_id
        self.timeout = timeout
        self._mesh = mesh
        self._told = told
        self.__name__ = self.tool_name
        self.__doc__ = told.description if told is not None else None
        if told is not None:
            self.__signature__ = told.__signature__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the tool and returns its result."""
        return self._caller().call(self._named, self._arguments(args, kwargs), timeout=self._limit(CALL))

    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call, for coroutines."""
        return await self._caller().acall(self._named, self._arguments(args, kwargs), timeout=self._limit(CALL))

    @property
    def _named(self) -> Named:
        """tool_id, which may be set anew, with the known revision of the tool."""
        named = Named(self.tool_id)
        named.revision = self._told.revision if self._told is not None else ""
        return named

    def _caller(self) -> Any:
        if self._mesh is not None:
            return self._mesh
        return _here if _here.serves() else _here.default()

    def _limit(self, usual: float) -> float | None:
        if self.timeout is not None:
            return self.timeout
        return None if self._told is not None and self._told.annotations.get("timeout") else usual

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not args:
            return kwargs  # the mesh validates them
        if self._told is None:
            caller = self._caller()
            if caller is _here:
                raise refused("invalid_arguments", "arguments by position need the tool's input_schema; "
                                                   "give them by name", self.tool_id)
            self._told = caller.tool(self.tool_id)
        return self._told.arguments(args, kwargs)


@api
class StreamingRPCProxyTool(RPCProxyTool):
    """A streaming tool: for item in proxy(...). timeout is the max time in seconds between two items, CHUNK by default.
    The whole stream is limited by toolmesh.scope, and inside a tool by that tool's own time. Closing the generator
    cancels the call."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Calls the tool and yields its items."""
        return self._options("stream")(self._named, self._arguments(args, kwargs))  # type: ignore[no-any-return]

    def acall(self, /, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        """A call, for coroutines."""
        return self._options("astream")(self._named, self._arguments(args, kwargs))  # type: ignore[no-any-return]

    def _options(self, name: str) -> Callable[..., Any]:
        stream: Callable[..., Any] = getattr(self._caller(), name)
        if self._caller() is _here:
            return stream
        return lambda tool, args: stream(tool, args, idle=self._limit(CHUNK))


@api
class CachedRPCProxyTool(RPCProxyTool):
    """A tool whose results are cached, for cache_ttl seconds and the last 100 calls: for tools that always give the
    same answer to the same arguments. Failures are not cached. Every caller gets its own copy of a result."""

    def __init__(self, *args: Any, cache_ttl: float = 300, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cache_ttl = cache_ttl
        self._lock = lock()
        self._kept: OrderedDict[str, tuple[float, Any]] = OrderedDict()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the tool, or returns the cached answer."""
        arguments = self._arguments(args, kwargs)
        key = self._key(arguments)
        kept = self._find(key) or self._keep(key, super().__call__(**arguments))
        return copy.deepcopy(kept[0])

    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call, for coroutines."""
        arguments = self._arguments(args, kwargs)
        key = self._key(arguments)
        kept = self._find(key) or self._keep(key, await super().acall(**arguments))
        return copy.deepcopy(kept[0])

    def _key(self, arguments: dict[str, Any]) -> str:
        # In the form on the wire: nested values have a key, too, and 1, 1.0 and True have three.
        session = self._mesh.session_name if self._mesh is not None else ""
        return session + "\n" + json.dumps(plain(arguments, self.tool_id), sort_keys=True)

    def _find(self, key: str) -> tuple[Any] | None:
        with self._lock:
            until, value = self._kept.get(key, (0.0, None))
            if time.monotonic() >= until:
                self._kept.pop(key, None)
                return None
            self._kept.move_to_end(key)
            return (value,)

    def _keep(self, key: str, value: Any) -> tuple[Any]:
        with self._lock:
            self._kept[key] = time.monotonic() + self.cache_ttl, copy.deepcopy(value)
            self._kept.move_to_end(key)
            if len(self._kept) > _CACHED:
                self._kept.popitem(last=False)
        return (value,)


def whole(proxy: RPCProxyTool, /, *args: Any, **kwargs: Any) -> Any:
    """The result of a proxy; for a stream the list of its items."""
    found = proxy(*args, **kwargs)
    return list(found) if isinstance(proxy, StreamingRPCProxyTool) else found


async def awhole(proxy: RPCProxyTool, /, **kwargs: Any) -> Any:
    if isinstance(proxy, StreamingRPCProxyTool):
        async with contextlib.aclosing(proxy.acall(**kwargs)) as items:  # type: ignore[type-var]
            return [item async for item in items]
    return await proxy.acall(**kwargs)


def plain(arguments: dict[str, Any], tool: str, schema: dict[str, Any] | None = None) -> Any:
    """Arguments in their JSON form."""
    return values.decode(declared(tool_side._encoded(tool, arguments), schema or {}))
