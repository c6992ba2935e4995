"""The root of all processes of an index: PID 1 of its own PID namespace if the agent could make one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from select import POLLIN, poll

from ..sandbox import levels
from ..state import orphans

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import NoReturn

CONTROL = 3  # socket to the agent
LIFELINE = 4  # pipe whose other end the agent holds: its end ends this process


def main(child: int, mode: str) -> NoReturn:
    """Reaps until child ends or the agent has ended, and kills the rest."""
    if mode == levels.REAPER:
        levels.become_subreaper()
    silence()
    status = until_end(child, wake()[0]) or 0
    if mode == levels.REAPER:
        orphans.kill_all()
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    os._exit(code)


def silence() -> None:
    """Closes the original 0, 1 and 2."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def wake() -> tuple[int, int]:
    """A pipe that becomes readable once a child has ended."""
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return ends


def until_end(
    child: int, wake: int, asked: Callable[[], bool] | None = None, timeout: Callable[[], int | None] = lambda: None
) -> int | None:
    """Reaps until child ends and returns its wait status; None if the agent ends first. asked handles a message of the
    agent and says whether to continue. timeout returns the milliseconds to wait; none left ends the wait, too."""
    waiting = poll()
    for fd in (LIFELINE, wake) if asked is None else (LIFELINE, wake, CONTROL):
        waiting.register(fd, POLLIN)
    while True:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                break
            if pid == child:
                return status
        left = timeout()
        if left == 0:
            return None
        for fd, _ in waiting.poll(left):
            if fd == wake:
                os.read(wake, 4096)
            elif fd == LIFELINE or asked is None or not asked():
                return None  # the lifeline is never written to: the agent has ended
