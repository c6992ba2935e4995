"""The time of the mesh, as nodes report it to clients that must not ask the NATS server: docs/protocol, section 8."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Awaitable
from typing import Any

FOREVER = 100 * 365 * 86400.0  # seconds: longer times count as this
_EVERY = 60.0  # seconds between two requests for the time
_AGAIN = 5.0  # the same, without an answer
_LAST = float(1 << 43)  # a time in milliseconds, in the year 2248, and the max error of one
_DRIFT = 1 / 5000  # max drift of two machines' clocks


def _boottime() -> float:
    """Seconds of a clock that continues while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock:
    """The time of the NATS servers, as nodes report it; deadlines use it."""

    def __init__(self) -> None:
        self._offset = 0.0  # the mesh's time minus ours
        self._bound = 0.0  # max error of the offset
        self._measured = self._asked = -_EVERY  # by our clock

    def asks(self) -> bool:
        """Whether to ask the mesh now; it counts as asked then."""
        now = _boottime()
        if now - self._measured < _EVERY or now - self._asked < _AGAIN:
            return False
        self._asked = now
        return True

    async def measure(self, question: Awaitable[dict[str, Any]]) -> None:
        """Asks for the time, when asks was true, and records the answer, if any."""
        with contextlib.suppress(Exception):
            answer = await question
            now, told, bound = _boottime(), float(answer["now_ms"]), float(answer["bound_ms"])
            if 0 < told < _LAST and 0 <= bound < _LAST:  # else it is not from a node of ours
                self._measured, self._bound = now, (now - self._asked) / 2 + bound / 1000
                self._offset = told / 1000 - (self._asked + now) / 2

    def deadline(self, left: float) -> int | None:
        """The deadline of a call with that many seconds left, in milliseconds; None if the time is unknown."""
        if not self._offset or left == math.inf:
            return None
        now = _boottime()
        return int((now + self._offset + left + self._bound + (now - self._measured) * _DRIFT) * 1000) + 1
