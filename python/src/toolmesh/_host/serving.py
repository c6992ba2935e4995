"""The current call of a host's code, if any: its own calls go through the same bridge, nested in it."""

from __future__ import annotations

import time
import typing

from .._core import channel, scope
from .._worker.wire.frames import BATCH, DESCRIBE, STREAM, TASK

if typing.TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Any

    from .bridge import Asked, Bridge

_KINDS = {0: "rpc_tool_call", STREAM: "rpc_tool_stream", BATCH: "rpc_batch_call", DESCRIBE: "describe_tool",
          TASK: "task_request"}

current = channel.served


class Served:
    """The counterpart of a worker's calls/channel.py, for the code of one call of a host."""

    def __init__(self, bridge: Bridge, call: str) -> None:
        self._bridge, self._call = bridge, call

    def progress(self, fields: dict[str, Any]) -> None:
        said = {"text": fields["message"][:256], **fields.get("fields", {})}
        self._bridge.frame("rpc_progress", rpc_id=self._call, progress=said)

    def _asked(self, tool: str, args: bytes, timeout: float | None, flags: int) -> Asked:
        fields: dict[str, Any] = {"parent": self._call}
        if timeout is not None:
            fields["timeout_ms"] = max(1, int(timeout * 1000))
        if flags == BATCH:
            body = args[1:-1] if args.startswith(b"{") else b'"requests":' + args
        else:
            fields["tool_id"], body = tool, b"" if flags == DESCRIBE else b'"kwargs":' + (args or b"{}")
        return self._bridge.ask(_KINDS[flags], tool if flags != TASK else "", body, **fields)

    def call(self, tool: str, args: bytes, timeout: float | None, flags: int = 0) -> Any:
        return self._asked(tool, args, timeout, flags).result()

    async def acall(self, tool: str, args: bytes, timeout: float | None, flags: int = 0) -> Any:
        return await self._asked(tool, args, timeout, flags).aresult()

    def stream(self, tool: str, args: bytes, timeout: float | None) -> Iterator[Any]:
        return self._asked(tool, args, timeout, STREAM).items()

    def astream(self, tool: str, args: bytes, timeout: float | None) -> AsyncIterator[Any]:
        return self._asked(tool, args, timeout, STREAM).aitems()


def enter(bridge: Bridge, frame: dict[str, Any]) -> None:
    """Sets the current call in this context."""
    current.set(Served(bridge, frame["rpc_id"]))
    left = frame.get("timeout_ms")
    scope.set((frame.get("session_id"), None if left is None else time.monotonic() + left / 1000))
