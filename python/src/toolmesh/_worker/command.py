"""The process above one run of a command: it starts the program, reaps, passes a
request to end on, and takes everything that the program left behind along.

The agent's one message on the control socket is a length and texts that end in
NUL: how many arguments there are, the arguments, the environment. It gets back
"exec ERRNO" or "exit STATUS", a wait status, once.
"""

from __future__ import annotations

import os
import signal
import sys
from select import POLLIN, poll

from .zygote import CONTROL, LIFELINE, _become_subreaper, _kill_descendants

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import NoReturn

_TERM = b"T"  # what the agent writes to have the program asked to end


def main(mode: str) -> NoReturn:
    """mode is "namespace" when we are PID 1 of our own, else "reaper"."""
    if mode == "reaper":
        _become_subreaper()
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
        _become(*request, trouble_w)
    os.close(trouble_w)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)  # the pipes end when the program has closed them
    trouble = os.read(trouble_r, 16)  # by its end the child has its group, for signals
    status = _until_end(child, wake_r)
    if mode == "reaper":
        _kill_descendants()
    if status is not None:
        said = b"exec " + trouble if trouble else b"exit %d" % status
        try:
            os.write(CONTROL, said)
        except OSError:
            pass
    os._exit(0)


def _request() -> tuple[list[bytes], dict[bytes, bytes]] | None:
    """(arguments, environment); None when the agent is gone."""
    data = b""
    need = 4
    while len(data) < need:
        more = os.read(CONTROL, 1 << 20)
        if not more:
            return None
        data += more
        if len(data) >= 4:
            need = 4 + int.from_bytes(data[:4], "little")
    parts = data[4:need].split(b"\0")[:-1]
    count = int(parts[0])
    return parts[1 : 1 + count], dict(pair.split(b"=", 1) for pair in parts[1 + count :])  # type: ignore[misc]


def _become(argv: list[bytes], env: dict[bytes, bytes], trouble: int) -> NoReturn:
    """What the child is: the program, in a session of its own."""
    try:
        os.setsid()
        for fd in (CONTROL, LIFELINE):
            os.close(fd)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)  # Python ignores the first two
        os.execvpe(argv[0], argv, env)
    except OSError as failure:
        os.write(trouble, b"%d" % (failure.errno or 0))
    finally:
        os._exit(127)


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
