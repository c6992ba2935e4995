"""When the call of a plain function may be interrupted, and the page shared with the agent."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, NoReturn

# Words of the control page, u64 each. The agent writes the first, the worker the others.
PAGE_CANCEL = 0  # id of the call to cancel
PAGE_STARTED = 1  # id of the last call that entered its function
PAGE_TAKEN = 2  # number of CALL frames that were taken
PAGE_HEARD = 3  # id of the last call that got its cancellation: the agent need not signal again
PAGE_RUNNING = 4  # id of a call seen running on an event loop; the agent clears it

SIGNAL = signal.SIGURG  # ignored by default: harmless should it ever arrive too early


class Cancelled(BaseException):
    """The caller cancelled the call, or it timed out. Not an Exception, so that `except Exception` in a tool does not
    swallow it."""


class Guard:
    """Decides whether a cancellation may be raised now.

    armed is the call whose function is on the stack. As a context manager it shields a write: a cancellation in the
    meantime is raised after the write.
    """

    __slots__ = ("armed", "page", "_held", "_late", "_raised", "_loop", "_task", "_told", "_upkeep")

    def __init__(self, page: memoryview[int]) -> None:
        self.armed = 0
        self.page = page
        self._held = 0
        self._late = False
        self._raised = 0
        self._loop: Any = None
        self._task: Any = None
        self._told = 0  # the call whose task was cancelled
        self._upkeep: tuple[str, ...] = ()

    def begin(self, call: int) -> None:
        """The function of call begins. A tool's own signal handler may have kept a shielded section from ending."""
        self._held, self._late, self.armed = 0, False, call
        if self.page[PAGE_CANCEL] == call:
            self.cancel(call)  # its signal came before the call

    def handle(self, _signum: int, frame: FrameType | None) -> None:
        """The signal handler: raises Cancelled in the call that the page names."""
        call = self.armed
        if call and self.page[PAGE_CANCEL] == call and self._raised != call:
            if self._held:
                self._late = True
            elif self._loop is None or self._loop.is_closed():
                self.cancel(call)
            elif self._told != call:
                self._told = call
                self._loop.call_soon_threadsafe(self._heard, call)
            elif frame is not None and not frame.f_code.co_filename.startswith(self._upkeep):
                self.cancel(call)  # signalled again: the loop is blocked

    def _heard(self, call: int) -> None:
        """Runs in the loop, between steps of the task."""
        if self._task is not None and self._raised != call:
            self._raised = self.page[PAGE_HEARD] = call
            self._task.cancel()

    def tasked(self, loop: Any, task: Any, upkeep: tuple[str, ...]) -> None:
        """From now on the function runs as a task of a loop and is cancelled as tasks are: an exception raised where it
        awaits would leave that unfinished. Only code that blocks its loop is interrupted at its current line, if that
        is neither in the loop's own code nor here."""
        self._loop, self._task, self._upkeep = loop, task, upkeep

    def untasked(self, call: int) -> bool:
        """The loop has ended; True if call was cancelled."""
        self._loop = self._task = None
        return self._raised == call

    def cancel(self, call: int) -> NoReturn:
        """Raises Cancelled in call. A late signal raises no second one while the function cleans up."""
        self._raised = self.page[PAGE_HEARD] = call
        raise Cancelled

    def __enter__(self) -> None:
        self._held += 1

    def __exit__(self, *_: object) -> None:
        self._held -= 1
        if self._late and not self._held:
            self._late = False
            if self.armed and self._raised != self.armed:
                self.cancel(self.armed)
