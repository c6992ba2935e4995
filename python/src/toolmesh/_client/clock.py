"""The time of the mesh, as nodes tell it to those that must not ask the NATS server: docs/protocol, section 8."""

from __future__ import annotations

import contextlib
import time
import typing

if typing.TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any

FOREVER = 100 * 365 * 86400.0  # seconds: a longer time is this
_EVERY = 60.0  # seconds after which the mesh is asked again, and
_AGAIN = 5.0  # where no answer came
_LAST = float(1 << 43)  # a time in milliseconds, of the year 2248, and the largest error of one
_DRIFT = 1 / 5000  # how fast two machines' clocks may part


def _boottime() -> float:
    """Seconds of a clock that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock:
    """The time of the NATS servers, as nodes tell it; deadlines are in it."""

    def __init__(self) -> None:
        self._offset = 0.0  # the mesh's time, less ours
        self._bound = 0.0  # how far that may be off
        self._measured = self._asked = -_EVERY  # when, by our clock

    def asks(self) -> bool:
        """Whether the mesh is to be asked now; then it counts as asked."""
        now = _boottime()
        if now - self._measured < _EVERY or now - self._asked < _AGAIN:
            return False
        self._asked = now
        return True

    def dated(self, headers: dict[str, str], left: float | None) -> dict[str, str]:
        """The headers of a call that has so many seconds left, with its deadline where that is known."""
        deadline = None if left is None else self.deadline(left)
        return headers if deadline is None else {**headers, "Mesh-Deadline": str(deadline)}

    async def measure(self, question: Awaitable[dict[str, Any]]) -> None:
        """Takes the answer to a question that is asked now, if there is one."""
        with contextlib.suppress(Exception):
            self.told(await question)

    def told(self, answer: dict[str, Any]) -> None:
        """Takes an answer to a question that was asked when asks said so."""
        now, told, bound = _boottime(), float(answer["now_ms"]), float(answer["bound_ms"])
        if not (0 < told < _LAST and 0 <= bound < _LAST):
            return  # no node of ours says so
        self._measured, self._bound = now, (now - self._asked) / 2 + bound / 1000
        self._offset = told / 1000 - (self._asked + now) / 2

    def deadline(self, left: float) -> int | None:
        """The deadline of a call that has so many seconds left, in milliseconds; None where the time is not known."""
        if not self._offset:
            return None
        now = _boottime()
        return int((now + self._offset + left + self._bound + (now - self._measured) * _DRIFT) * 1000) + 1
