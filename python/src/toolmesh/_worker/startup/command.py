"""The process above one run of a command: it starts the program, reaps, passes a request to end on, and takes
everything that the program left behind along.

The agent's one message on the control socket is a length and texts that end in NUL: the sandbox level, the folder that
it leaves to be written, the user and the group to be (empty: none), the bounds of open files, of memory, of a file's
size and of the user's processes (0: none), how many folders are given and how many arguments there are, the folders
(each after the letter of levels for what of it is given), the arguments, the environment. It gets back "refused WHY",
"exec ERRNO" or "exit STATUS", a wait status, once. Later it says "T", to have the program asked to end, and "U" with
eight bytes, which may also stand behind the first message: when the call's turn in a lane ends, at which nothing of it
is left.
"""

from __future__ import annotations

import os
import resource
import signal

from ..sandbox import levels
from ..state import limits, orphans, turns
from . import root
from .root import CONTROL, LIFELINE

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import NoReturn

_TERM = b"T"[0]
_UNTIL = b"U"[0]


def main(mode: str) -> NoReturn:
    """mode is "namespace" for PID 1 of its own namespace, else "reaper"."""
    if mode == levels.REAPER:
        levels.become_subreaper()
    request = _request()
    if request is None:
        os._exit(0)
    agent = _Agent(request.rest)
    if agent.timeout() == 0:
        os._exit(0)  # the agent was frozen until now
    wake, _ = root.wake()
    trouble_r, trouble_w = os.pipe()  # closed by a successful exec
    child = os.fork()
    if child == 0:
        _become(request, mode, trouble_w)
    os.close(trouble_w)
    root.silence()  # the pipes end when the program has closed them
    trouble = os.read(trouble_r, 400)  # its end means that the child has its process group, for signals
    agent.child = child
    status = root.until_end(child, wake, agent.asked, agent.timeout)
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
    """The program to run and its limits."""

    def __init__(self, texts: list[bytes], rest: bytes) -> None:
        self.rest = rest
        self.level, self.folder = os.fsdecode(texts[0]), os.fsdecode(texts[1])
        self.user = [int(number) for number in texts[2].split()]
        self.files, self.memory, self.size, self.processes = map(int, texts[3:7])
        folders, argv = 9 + int(texts[7]), 9 + int(texts[7]) + int(texts[8])
        self.given = [(os.fsdecode(one[1:]), os.fsdecode(one[:1])) for one in texts[9:folders]]
        self.argv = texts[folders:argv]
        self.env: dict[bytes, bytes] = dict(pair.split(b"=", 1) for pair in texts[argv:])


def _request() -> _Request | None:
    """The agent's message; None if the agent has ended."""
    data = bytearray()
    need = 4
    while len(data) < need:
        more = os.read(CONTROL, 1 << 20)
        if not more:
            return None
        data += more
        if len(data) >= 4:
            need = 4 + int.from_bytes(data[:4], "little")
    return _Request(bytes(data[4:need]).split(b"\0")[:-1], bytes(data[need:]))


def _become(request: _Request, mode: str, trouble: int) -> NoReturn:
    """Becomes the program, in a new process session."""
    try:
        os.setsid()
        for fd in (CONTROL, LIFELINE):
            os.close(fd)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)  # Python ignores the first two
        try:
            levels.confine(request.level, mode, request.folder, request.user, request.given)
            levels.domain(request.level)
        except levels.Refused as failure:
            os.write(trouble, b"refused " + str(failure).encode()[:300])
            os._exit(127)
        limits.bound(resource.RLIMIT_NOFILE, request.files and request.files + 3)  # the standard ones in addition
        limits.bound(resource.RLIMIT_DATA, request.memory)
        limits.bound(resource.RLIMIT_FSIZE, request.size)
        limits.bound(resource.RLIMIT_NPROC, request.processes)
        os.execvpe(request.argv[0], request.argv, request.env)
    except OSError as failure:
        os.write(trouble, b"exec %d" % (failure.errno or 0))
    finally:
        os._exit(127)


class _Agent:
    """Messages of the agent while the program runs."""

    child = 0  # 0 until it has started

    def __init__(self, said: bytes) -> None:
        self._said = said
        self._until = 0
        self._read()

    def asked(self) -> bool:
        """Handles messages of the agent; False if it has ended."""
        more = os.read(CONTROL, 4096)
        self._said += more
        return self._read() and more != b""

    def _read(self) -> bool:
        while self._said:
            if self._said[0] == _TERM:
                self._said = self._said[1:]
                try:
                    if self.child:
                        os.killpg(self.child, signal.SIGTERM)
                except ProcessLookupError:
                    pass
            elif self._said[0] == _UNTIL and len(self._said) >= 9:
                self._until, self._said = int.from_bytes(self._said[1:9], "little"), self._said[9:]
            elif self._said[0] == _UNTIL:
                break
            else:
                return False
        return True

    def timeout(self) -> int | None:
        """Milliseconds until the call loses its lane; None for a call without one."""
        if self._until == 0:
            return None
        return 0 if turns.over(self._until) else max(1, turns.timeout(self._until))
