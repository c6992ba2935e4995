"""The exceptions of a tool's own calls."""

from __future__ import annotations

import json
import sys
from typing import Any

from ..schemas import redaction
from ..schemas.values import decode
from ..wire.frames import JSON

CLASSES: dict[str, type[MeshError]] = {}
"""The classes of the codes."""


class MeshError(Exception):
    """A call has failed. Each code of the mesh has its own subclass.

    code is a code of the mesh. With "tool_error" the called tool itself failed; with any other code the mesh could not
    run it or answer. started says whether the called tool's code had begun: True, False, or None if unknown. A call
    that did not start can be repeated without harm; retryable says that this may help. stacktrace is the remote stack
    as text, if any. origin is the part of the mesh that reports the failure.
    """

    __module__ = "toolmesh"
    revision = ""
    """Of the tool's index, as the node has it that refused the call; empty where that is not known."""

    def __init__(
        self, code: str, message: str, *, details: dict[str, JSON] | None = None, retryable: bool = False,
        started: bool | None = None, tool: str = "", type: str = "", stacktrace: str = "", origin: str = "",
    ) -> None:
        self.code = code
        self.message = message
        self.details: dict[str, JSON] = details or {}
        self.retryable = retryable
        self.started = started
        self.tool = tool
        self.type = type
        self.stacktrace = stacktrace
        self.origin = origin
        super().__init__(code, message)

    def __init_subclass__(cls, code: str = "", **others: Any) -> None:
        super().__init_subclass__(**others)  # base classes that a tool's own error adds
        if code:
            CLASSES[code], cls.__module__ = cls, "toolmesh"

    def __str__(self) -> str:
        kind = f"{self.type}: " if self.type and self.code == "tool_error" else ""
        tool = f"{self.tool}: " if self.tool else ""
        return f"{tool}{self.code}: {kind}{self.message}"

    def as_dict(self) -> dict[str, JSON]:
        """Its form in the details of the outer call's failure."""
        found: dict[str, JSON] = {"tool": self.tool, "code": self.code, "message": redaction.text(self.message)[:2000]}
        if self.type:
            found["type"] = self.type
        if self.retryable:
            found["retryable"] = True
        if self.details and len(json.dumps(self.details, default=str)) < 4096:
            found["details"] = self.details
        return found


class InvalidRequest(MeshError, ValueError, code="invalid_request"):
    """The request is malformed or contradicts itself."""


class PermissionDenied(MeshError, PermissionError, code="permission_denied"):
    """A rule of the broker or the mesh forbids it."""


class ToolNotFound(MeshError, LookupError, ValueError, code="tool_not_found"):
    """No node offers the tool. details["nearest"] lists similar ids."""


class SessionNotFound(MeshError, LookupError, code="session_not_found"):
    """The session does not exist or has ended."""


class NotFound(MeshError, LookupError, code="not_found"):
    """The call, task, file, node or index does not exist, or has expired."""


class StreamExpired(MeshError, code="stream_expired"):
    """Items of the stream are no longer kept."""


class PayloadTooLarge(MeshError, ValueError, code="payload_too_large"):
    """A message is over the size limit."""


class InvalidArguments(MeshError, ValueError, code="invalid_arguments"):
    """The arguments do not fit the tool's schema. details["errors"] says where: pointer, expected, got, message."""


class InstallFailed(MeshError, code="install_failed"):
    """An index could not be installed."""


class Busy(MeshError, code="busy"):
    """All slots are in use; nothing has started."""


class CallCancelled(MeshError, code="cancelled"):
    """The caller cancelled the call, or its session has ended."""


class ToolExecutionError(MeshError, RuntimeError, code="tool_error"):
    """The tool itself failed. error_type is the class of its exception, stacktrace the position inside the tool; from
    Python 3.11 on the exception has that as a note, too."""

    @property
    def tool_name(self) -> str:
        """The tool's id."""
        return self.tool

    @property
    def error_type(self) -> str:
        """The class of what the tool raised."""
        return self.type


class ResultNotSerializable(MeshError, code="result_not_serializable"):
    """The tool's result cannot be represented in JSON."""


class InternalError(MeshError, code="internal"):
    """A fault of the mesh."""


class ProtocolError(MeshError, code="protocol_error"):
    """A peer violated the protocol, or requires an unknown feature."""


class WorkerCrashed(MeshError, code="worker_crashed"):
    """The process that ran the tool died."""


class NodeLost(MeshError, ConnectionError, code="node_lost"):
    """The node that ran the call was lost: whether the tool ran is unknown."""


class Unavailable(MeshError, ConnectionError, code="unavailable"):
    """No node can serve it now, or no mesh answers."""


class ToolTimeout(MeshError, TimeoutError, code="deadline_exceeded"):
    """The call timed out. details["limit"] names the tool's limit, if that was the cause."""


class WorkerOutOfMemory(MeshError, MemoryError, code="worker_out_of_memory"):
    """The tool used more memory than its limit."""


NAMES: dict[str, type[MeshError]] = {"MeshError": MeshError, **{_one.__name__: _one for _one in CLASSES.values()}}


def error(code: str, message: str, **more: Any) -> MeshError:
    """The exception of a code, with more arguments of MeshError. An unknown code gives a MeshError."""
    return CLASSES.get(code, MeshError)(code, message, **more)


_FIELDS = {"code": str, "message": str, "details": dict, "retryable": bool, "started": bool, "type": str,
           "stacktrace": str, "origin": str}


def failure(body: bytes, tool: str) -> MeshError:
    """The exception of an error object of the mesh."""
    return rebuilt(decode(body), tool)


def rebuilt(found: dict[str, Any], tool: str) -> MeshError:
    """failure, for an error object that is parsed already. Fields of a wrong type are left out: any service answers."""
    told = {name: found[name] for name, kind in _FIELDS.items() if isinstance(found.get(name), kind)}
    made = error(told.pop("code", "") or "internal", told.pop("message", ""), tool=tool, **told)
    if made.stacktrace and sys.version_info >= (3, 11):
        made.add_note(f"In the tool: {made.stacktrace.strip()}")
    return made
