"""The process above one run of a command: it starts the program, reaps, passes a
request to end on, and takes everything that the program left behind along.

The agent's one message on the control socket is a length and texts that end in
NUL: the sandbox level, the folder that it leaves to be written, the bounds of
open files and of memory (0: none), how many arguments there are, the arguments,
the environment. It gets back "refused WHY", "exec ERRNO" or "exit STATUS", a
wait status, once.
"""

from __future__ import annotations

import os
import signal
import sys
from select import POLLIN, poll

from ..confining import levels
from ..state import orphans
from .root import CONTROL, LIFELINE

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import NoReturn

_TERM = b"T"  # what the agent writes to have the program asked to end


def main(mode: str) -> NoReturn:
    """mode is "namespace" when we are PID 1 of our own, else "reaper"."""
    if mode == levels.REAPER:
        levels.become_subreaper()
    request = _request()
    if request is None:
        os._exit(0)
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    os.set_blocking(wake_r, False)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    trouble_r, trouble_w = os.pipe()  # closed by a successful exec
    child = os.fork()
    if child == 0:
        _become(request, mode, trouble_w)
    os.close(trouble_w)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)  # the pipes end when the program has closed them
    trouble = os.read(trouble_r, 400)  # by its end the child has its group, for signals
    status = _until_end(child, wake_r)
    if mode == levels.REAPER:
        orphans.kill_all()
    if status is not None:
        said = trouble or b"exit %d" % status
        try:
            os.write(CONTROL, said)
        except OSError:
            pass
    os._exit(0)


class _Request:
    """What is to be run, and how."""

    def __init__(self, texts: list[bytes]) -> None:
        self.level, self.folder = os.fsdecode(texts[0]), os.fsdecode(texts[1])
        self.files, self.memory = int(texts[2]), int(texts[3])
        count = int(texts[4])
        self.argv = texts[5 : 5 + count]
        self.env: dict[bytes, bytes] = dict(pair.split(b"=", 1) for pair in texts[5 + count :])


def _request() -> _Request | None:
    """The agent's message; None when the agent is gone."""
    data = b""
    need = 4
    while len(data) < need:
        more = os.read(CONTROL, 1 << 20)
        if not more:
            return None
        data += more
        if len(data) >= 4:
            need = 4 + int.from_bytes(data[:4], "little")
    return _Request(data[4:need].split(b"\0")[:-1])


def _become(request: _Request, mode: str, trouble: int) -> NoReturn:
    """What the child is: the program, in a session of its own."""
    try:
        os.setsid()
        for fd in (CONTROL, LIFELINE):
            os.close(fd)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)  # Python ignores the first two
        try:
            levels.zygote(request.level, mode, request.folder)
            levels.domain(request.level)
        except levels.Refused as failure:
            os.write(trouble, b"refused " + str(failure).encode()[:300])
            os._exit(127)
        _bound(request)
        os.execvpe(request.argv[0], request.argv, request.env)
    except OSError as failure:
        os.write(trouble, b"exec %d" % (failure.errno or 0))
    finally:
        os._exit(127)


def _bound(request: _Request) -> None:
    if request.files or request.memory:
        import resource

        if request.files:
            files = request.files + 3  # its standard ones
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            if hard != resource.RLIM_INFINITY:
                files = min(files, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        if request.memory:
            resource.setrlimit(resource.RLIMIT_DATA, (request.memory, request.memory))


def _until_end(child: int, wake: int) -> int | None:
    """The child's wait status; None when the agent is gone before."""
    waiting = poll()
    for fd in (LIFELINE, CONTROL, wake):
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
        for fd, _ in waiting.poll():
            if fd == LIFELINE:
                return None  # nobody ever writes there
            if fd == wake:
                os.read(wake, 4096)
            elif os.read(CONTROL, 16)[:1] == _TERM:
                try:
                    os.killpg(child, signal.SIGTERM)
                except ProcessLookupError:
                    pass
            else:
                return None


if __name__ == "__main__":
    main(sys.argv[-1])
