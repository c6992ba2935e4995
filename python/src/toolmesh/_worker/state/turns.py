"""The end of a call's hold on a lane: then its worker is stopped, even if the agent is frozen.

Another call may acquire the lane after that time. The agent extends it while it holds the lane; if the agent is frozen
or disconnected, the end stays.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

PAGE_UNTIL = 5  # of the control page: when the worker must have stopped, by clock; 0: never
PERIOD = 250  # milliseconds between checks: an end is seconds ahead when it is set

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def clock() -> int:
    """Nanoseconds of the clock of these ends."""
    return time.time_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)


def over(until: int) -> bool:
    return until != 0 and clock() >= until


def check(until: int) -> None:
    """Before a call: the agent may have been frozen since it acquired the lane."""
    if over(until):
        os.kill(os.getpid(), signal.SIGKILL)


def timeout(until: int) -> int:
    """Milliseconds until the next check."""
    if until == 0:
        return PERIOD
    return max(0, min(PERIOD, (until - clock()) // 1_000_000 + 1))


def watch(until: Callable[[], int]) -> None:
    """Starts a thread that stops this process at the end, if no parent process does."""
    import _thread

    def look() -> None:
        while not over(until()):
            time.sleep(timeout(until()) / 1000)
        os.kill(os.getpid(), signal.SIGKILL)

    _thread.start_new_thread(look, ())
