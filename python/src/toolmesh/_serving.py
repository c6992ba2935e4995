"""Which call of a host this code serves, if any: what it calls goes through the same bridge, one deeper."""

from __future__ import annotations

import contextvars
import time
import typing

from ._core import scope

if typing.TYPE_CHECKING:
    from typing import Any

    from ._bridge import Bridge

current: contextvars.ContextVar[tuple[Bridge, str] | None] = contextvars.ContextVar("serving", default=None)


def enter(bridge: Bridge, frame: dict[str, Any]) -> None:
    """In the context of a call: it is what is served here."""
    current.set((bridge, frame["rpc_id"]))
    left = frame.get("timeout_ms")
    scope.set((frame.get("session_id"), None if left is None else time.monotonic() + left / 1000))
