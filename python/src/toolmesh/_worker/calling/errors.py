"""What a call that a tool made raises when it fails."""

from __future__ import annotations

import json

from ..describing.values import decode

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from ..wire.frames import JSON


class MeshError(Exception):
    """A call that a tool made has failed.

    code is one of the mesh's: with "tool_error" the called tool itself failed,
    with any other the mesh could not have it run or answer. started says
    whether the called tool's code had begun: True, False, or None where nobody
    knows. A call that did not start can be made again without harm; retryable
    says that this may help.
    """

    __module__ = "toolmesh"

    def __init__(
        self,
        code: str,
        message: str,
        *,
        details: dict[str, JSON] | None = None,
        retryable: bool = False,
        started: bool | None = None,
        tool: str = "",
        type: str = "",
        stacktrace: str = "",
        origin: str = "",
    ) -> None:
        self.code = code
        self.message = message
        self.details = details or {}
        self.retryable = retryable
        self.started = started
        self.tool = tool
        self.type = type
        self.stacktrace = stacktrace
        self.origin = origin
        super().__init__(code, message)

    def __str__(self) -> str:
        kind = f"{self.type}: " if self.type and self.code == "tool_error" else ""
        tool = f"{self.tool}: " if self.tool else ""
        return f"{tool}{self.code}: {kind}{self.message}"

    def as_dict(self) -> dict[str, JSON]:
        """What the details of a failed call say of the nested call it failed of."""
        found: dict[str, JSON] = {"tool": self.tool, "code": self.code, "message": self.message[:2000]}
        if self.type:
            found["type"] = self.type
        if self.retryable:
            found["retryable"] = True
        if self.details and len(json.dumps(self.details, default=str)) < 4096:
            found["details"] = self.details
        return found


def failure(body: bytes, tool: str) -> MeshError:
    """The exception of a NESTED_ERROR's body, the error object of the mesh."""
    found = decode(body)
    told = ("details", "retryable", "started", "type", "stacktrace", "origin")
    return MeshError(
        found.get("code") or "internal", found.get("message") or "", tool=tool,
        **{name: found[name] for name in told if found.get(name) is not None},
    )
