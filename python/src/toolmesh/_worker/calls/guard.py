"""When a call of a plain function may be interrupted, and the page that is shared with the agent."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from types import FrameType

# Words of the control page, u64 each. The agent writes the first, we the rest.
PAGE_CANCEL = 0  # id of the call that is to stop
PAGE_STARTED = 1  # id of the last call whose function was entered
PAGE_TAKEN = 2  # how many CALL frames were taken up
PAGE_HEARD = 3  # id of the last call that was told to stop: the agent need not signal it again
PAGE_RUNNING = 4  # id of a call that an event loop was seen to run; the agent clears it

SIGNAL = signal.SIGURG  # ignored by default: harmless should it ever arrive too early


class Cancelled(BaseException):
    """The caller gave up or the call's time is up. Not an Exception, so that
    `except Exception` in a tool does not swallow it."""


class Guard:
    """Decides whether a cancellation may be raised now.

    armed is the call whose function is on the stack. As a context manager it
    shields a write: what arrives meanwhile is raised when it is over.
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
        self._told = 0  # the call whose task was told
        self._upkeep: tuple[str, ...] = ()

    def handle(self, _signum: int, frame: FrameType | None) -> None:
        """The signal handler: raises Cancelled in the call that is meant."""
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
                self.cancel(call)  # signalled again: the loop hears of nothing

    def _heard(self, call: int) -> None:
        """Runs in the loop, when no step of the task does."""
        if self._task is not None and self._raised != call:
            self._raised = self.page[PAGE_HEARD] = call
            self._task.cancel()

    def tasked(self, loop: Any, task: Any, upkeep: tuple[str, ...]) -> None:
        """From here on the function's code is a task of a loop, and is cancelled as tasks are: what is raised where it
        awaits something would leave that behind, not cleaned up. Only code that keeps its loop from hearing of it is
        cut off where it stands, if that is neither in the loop's own upkeep nor here."""
        self._loop, self._task, self._upkeep = loop, task, upkeep

    def untasked(self, call: int) -> bool:
        """The loop has ended; True if call has been cancelled."""
        self._loop = self._task = None
        return self._raised == call

    def rearm(self, call: int) -> None:
        """Goes on with the function of call, which was disarmed for a while. Raises
        Cancelled if that was to be raised meanwhile and has not been before."""
        self.armed = call
        if self.page[PAGE_CANCEL] == call and self._raised != call:
            self.cancel(call)

    def cancel(self, call: int) -> NoReturn:
        """Raises Cancelled in call. Its signal, should it come yet, raises no second
        one while the function cleans up."""
        self._raised = self.page[PAGE_HEARD] = call
        raise Cancelled

    def __enter__(self) -> None:
        self._held += 1

    def __exit__(self, *_: object) -> None:
        self._held -= 1
        if self._late and not self._held:
            self._late = False
            if self.armed:
                self.cancel(self.armed)


class Disarmed:
    """Within it the call of a guard is not interrupted. What was to be raised meanwhile is raised at its end."""

    __slots__ = ("_guard", "_armed")

    def __init__(self, guard: Guard) -> None:
        self._guard, self._armed = guard, 0

    def __enter__(self) -> None:
        self._armed, self._guard.armed = self._guard.armed, 0

    def __exit__(self, *_: object) -> None:
        if self._armed:
            self._guard.rearm(self._armed)
