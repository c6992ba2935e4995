"""The root of everything that an index runs: PID 1 of its own PID namespace where the agent could make one."""

from __future__ import annotations

import os
import signal
from select import POLLIN, poll

from ..confining import levels
from ..state import orphans

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import NoReturn

CONTROL = 3  # socket to the agent
LIFELINE = 4  # pipe whose other end the agent holds: its end is ours


def main(child: int, mode: str) -> NoReturn:
    """Reaps until child ends or the agent is gone, and takes what is left along."""
    if mode == levels.REAPER:
        levels.become_subreaper()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    os.set_blocking(wake_r, False)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting = poll()
    waiting.register(LIFELINE, POLLIN)
    waiting.register(wake_r, POLLIN)
    status = 0
    alive = True
    while alive:
        while True:
            try:
                pid, found = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                alive = False
                break
            if pid == 0:
                break
            if pid == child:
                status = found
                alive = False
        if not alive:
            break
        for fd, _ in waiting.poll():
            if fd == LIFELINE:
                alive = False  # nobody ever writes there: it is the end of the agent
            else:
                os.read(wake_r, 4096)
    if mode == levels.REAPER:
        orphans.kill_all()
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    os._exit(code)
