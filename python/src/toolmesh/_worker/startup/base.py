"""The process that the zygotes of one interpreter are copies of.

It has imported the modules of most tools and of every worker, has no secret, and never runs code of an index. For each
start the agent sends the descriptors that a fresh interpreter would get. The copy gets its own namespaces, becomes a
child of the agent, and continues as the root process of an index. So it outlives the base, and the agent learns of its
end as of any other.

adopt turns the copy's interpreter into that of an environment, as if it had been started there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from ..sandbox import levels
from ..state import forking
from . import adopting, zygote

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import NoReturn

    from ..wire.frames import JSON

CONTROL = 3  # socket to the agent: one message per start, one answer each

# Modules that tools import. Excluded are modules that start threads, read the environment, ask for the environment's
# folder (sysconfig), or are large and rarely used.
PRELOADED = (
    "argparse", "asyncio", "base64", "concurrent.futures.thread", "contextlib", "copy", "csv", "ctypes",
    "dataclasses", "datetime", "decimal", "email.message", "encodings.ascii", "enum", "functools", "glob",
    "hashlib", "heapq", "hmac", "http.client", "inspect", "json", "logging", "mmap", "pathlib", "queue", "random",
    "resource", "secrets", "shutil", "sqlite3", "ssl", "string", "subprocess", "tempfile", "textwrap", "threading",
    "traceback", "typing", "urllib.request", "uuid", "xml.dom.minidom", "xml.etree.ElementTree",
)

_CLONE_PARENT = 0x8000
_SIGCHLD = 17
_CLONE = {"x86_64": 56, "aarch64": 220}
_SET_PDEATHSIG = 1


def main() -> NoReturn:
    """Serves until the agent has ended."""
    import gc

    _preload()
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in _CLONE:
        raise SystemExit(f"no process can be copied on {sys.platform} {machine}")
    if forking.threads() != 1:
        raise SystemExit(f"{forking.threads()} threads run after the imports")
    import _socket
    import json

    socket = _socket.socket(fileno=CONTROL)
    socket.settimeout(None)
    adopting.title(["toolmesh base", "python" + sys.version.split()[0]])
    gc.collect()
    gc.freeze()
    socket.send(json.dumps({"modules": len(sys.modules)}).encode())
    room = _socket.CMSG_SPACE(16 * 4)
    while True:
        data, ancillary, _, _ = socket.recvmsg(1 << 17, room, _socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)
        fds = zygote.descriptors(ancillary)
        request: dict[str, JSON] = json.loads(data)
        mapped, done = os.pipe()
        pid = _copy(request["flags"] | _CLONE_PARENT | _SIGCHLD, _CLONE[machine])
        if pid == 0:
            os.close(done)
            _begin(request, fds, mapped)
        if pid > 0 and _map(pid, request["maps"] or ()):
            os.write(done, b"y")
        for fd in (*fds, mapped, done):
            os.close(fd)
        socket.send(b'{"pid": %d}' % pid if pid > 0 else b'{"errno": %d}' % -pid)


def _preload() -> None:
    forking.omit_fork_handlers()
    import faulthandler  # noqa: F401
    import importlib
    import inspect  # noqa: F401
    import json  # noqa: F401
    import logging  # noqa: F401
    import typing  # noqa: F401

    from .. import mesh  # noqa: F401
    from ..calls import output, plain  # noqa: F401
    from . import loading  # noqa: F401

    usual = adopting.loaded()
    from ..calls import coroutines  # noqa: F401

    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # not built into this interpreter
    # Modules that one of them needed briefly, and those that cache folders.
    for name in [one for one in sys.modules if one == "sysconfig" or one.startswith("_sysconfigdata")]:
        del sys.modules[name]
    adopting.added = adopting.loaded() - usual
    adopting.with_site()


def _copy(flags: int, number: int) -> int:
    """Returns a process id here, 0 in the copy, or minus the error.

    It bypasses the C library, which is safe: the copy has one thread, and forks in the usual way before it runs any
    code.
    """
    import ctypes

    # A function that keeps the interpreter's lock: the copy has it, too.
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    pid: int = libc.syscall(ctypes.c_long(number), ctypes.c_ulong(flags), None, None, None, None)
    return pid if pid >= 0 else -ctypes.get_errno()


def _begin(request: dict[str, JSON], fds: list[int], mapped: int) -> NoReturn:
    """Continues as the root process of an index, in the copy. mapped signals that its user namespace has its users."""
    try:
        if request["maps"] and os.read(mapped, 1) != b"y":
            raise OSError("its user namespace knows no users")
        if request["death"]:
            levels._prctl(_SET_PDEATHSIG, 9)
        os.setsid()  # the copy shares no terminal with the agent
        if request["capabilities"] is not None:
            levels.reduce_capabilities(request["capabilities"])
        import fcntl

        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in fds]
        for at, fd in enumerate(high):
            os.dup2(fd, at + 1)  # standard output and error, control, lifeline
        os.closerange(len(high) + 1, 256)  # above all descriptors that were ever open
        os.chdir("/")
        zygote.main(request["mode"], request["adopts"])
    except BaseException as failure:  # noqa: B036 - the last words of this process
        try:
            os.write(2, f"the copy of the base process could not begin: {failure!r}\n".encode())
        except OSError:
            pass
    finally:
        os._exit(70)


def _map(pid: int, maps: Iterable[tuple[str, str]]) -> bool:
    """Maps the users of a copy's user namespace. From outside, as a process inside may name no user but its
    creator's."""
    try:
        for name, text in maps:
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                file.write(text)
    except OSError:
        return False
    return True
