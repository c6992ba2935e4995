"""The mesh that a program is in.

    from toolmesh import mesh

    mesh.call("weather.forecast.today", {"city": "Oslo"})

Inside a tool that an agent runs, calls go through the tool's own worker: in the
session of its call, within its time. Elsewhere they go through a Mesh that is made
when it is first needed. progress and secret do nothing, or read the environment,
outside of a tool, so that its module runs in a plain test.
"""

from __future__ import annotations

import sys
import typing

from ._core import errors, tool_side

if typing.TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from typing import Any

    from .client import Mesh

MeshError = errors.MeshError
MissingSecret = tool_side.MissingSecret
progress = tool_side.progress
secret = tool_side.secret

__all__ = ["MeshError", "MissingSecret", "acall", "astream", "call", "default", "progress", "secret", "stream"]

_default: Mesh | None = None


def default() -> Mesh:
    """The Mesh that this module's functions use outside of tools."""
    global _default
    if _default is None:
        from .client import Mesh

        _default = Mesh()
    return _default


def _in_tool() -> bool:
    return "_toolmesh_worker" in sys.modules


def call(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
    """Calls a tool by its full id and returns its result; see Mesh.call."""
    if _in_tool():
        return tool_side.call(tool, args, timeout=timeout)
    return default().call(tool, args, timeout=timeout)


def stream(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Iterator[Any]:
    """Calls a tool and yields its items as they come; see Mesh.stream."""
    if _in_tool():
        return tool_side.stream(tool, args, timeout=timeout)
    return default().stream(tool, args, timeout=timeout)


async def acall(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
    """As call, for coroutines."""
    if _in_tool():
        return await tool_side.acall(tool, args, timeout=timeout)
    return await default().acall(tool, args, timeout=timeout)


def astream(tool: str, args: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> AsyncIterator[Any]:
    """As stream, for coroutines."""
    if _in_tool():
        return tool_side.astream(tool, args, timeout=timeout)
    return default().astream(tool, args, timeout=timeout)
