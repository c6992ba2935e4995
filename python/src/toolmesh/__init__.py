"""Toolmesh for Python: call the tools of a mesh, and serve functions as its tools.

    from toolmesh import Mesh

    mesh = Mesh()
    mesh.call("weather.forecast.today", {"city": "Oslo"})

AsyncMesh is the same for coroutines. Errors are MeshError, with a subclass for each code of the mesh. Inside a tool,
and for scripts, "from toolmesh import mesh" is the mesh that the program is in.
"""

from __future__ import annotations

import typing

from ._core import errors, files, tasks

__version__ = "0.1.0"

if typing.TYPE_CHECKING:
    from . import mesh as mesh
    from ._local import local
    from .client import AsyncMesh, Mesh, scope
    from .host import Host
    from .remote import AsyncRemoteTool, RemoteTool

File = files.File
Task = tasks.Task
AsyncTask = tasks.AsyncTask
MeshError = errors.MeshError
InvalidRequest = errors.InvalidRequest
PermissionDenied = errors.PermissionDenied
ToolNotFound = errors.ToolNotFound
SessionNotFound = errors.SessionNotFound
NotFound = errors.NotFound
StreamExpired = errors.StreamExpired
PayloadTooLarge = errors.PayloadTooLarge
InvalidArguments = errors.InvalidArguments
InstallFailed = errors.InstallFailed
Busy = errors.Busy
CallCancelled = errors.CallCancelled
ToolExecutionError = errors.ToolExecutionError
ResultNotSerializable = errors.ResultNotSerializable
InternalError = errors.InternalError
ProtocolError = errors.ProtocolError
WorkerCrashed = errors.WorkerCrashed
NodeLost = errors.NodeLost
Unavailable = errors.Unavailable
ToolTimeout = errors.ToolTimeout
WorkerOutOfMemory = errors.WorkerOutOfMemory

__all__ = [
    "AsyncMesh", "AsyncRemoteTool", "AsyncTask", "Busy", "CallCancelled", "File", "Host", "InstallFailed",
    "InternalError", "InvalidArguments", "InvalidRequest", "Mesh", "MeshError", "NodeLost", "NotFound",
    "PayloadTooLarge", "PermissionDenied", "ProtocolError", "RemoteTool", "ResultNotSerializable", "SessionNotFound",
    "StreamExpired", "Task", "ToolExecutionError", "ToolNotFound", "ToolTimeout", "Unavailable", "WorkerCrashed",
    "WorkerOutOfMemory", "__version__", "local", "mesh", "scope",
]

_HOMES = {
    "AsyncMesh": "client", "Mesh": "client", "Host": "host", "scope": "client", "AsyncRemoteTool": "remote",
    "RemoteTool": "remote", "local": "_local", "mesh": "mesh",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    # The client brings nats-py along, which a tool that only imports toolmesh.mesh does without.
    if name not in _HOMES:
        raise AttributeError(f"module 'toolmesh' has no attribute {name!r}")
    from importlib import import_module

    found = import_module(f"toolmesh.{_HOMES[name]}")
    if name != "mesh":
        found = globals()[name] = getattr(found, name)
    return found
