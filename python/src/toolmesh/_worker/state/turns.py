"""The end of a call's turn in a lane: then its worker is stopped, whether or not the agent runs.

Another call may have the turn after it. The agent moves the end while the turn is its
own; when it is frozen, or cut off, the end stays.
"""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable

PAGE_UNTIL = 5  # of the control page: when the worker must have stopped, by clock; 0 is never
PERIOD = 250  # milliseconds from one look to the next: an end is seconds ahead when it is set

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def clock() -> int:
    """Nanoseconds of the clock by which the agent says when a turn ends."""
    return time.time_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)


def over(until: int) -> bool:
    return until != 0 and clock() >= until


def check(until: int) -> None:
    """Before a call: the agent that sent it may have been frozen since it had the turn."""
    if over(until):
        os.kill(os.getpid(), signal.SIGKILL)


def timeout(until: int) -> int:
    """For how many milliseconds the end need not be looked at."""
    if until == 0:
        return PERIOD
    return max(0, min(PERIOD, (until - clock()) // 1_000_000 + 1))


def watch(until: Callable[[], int]) -> None:
    """Has a thread stop this process at the end, where no process above it does."""
    import _thread

    def look() -> None:
        while not over(until()):
            time.sleep(timeout(until()) / 1000)
        os.kill(os.getpid(), signal.SIGKILL)

    _thread.start_new_thread(look, ())
