"""The process that imports an index's tools once and forks its workers.

One start makes two processes. The first is the root of all processes of the index: PID 1 of its own PID namespace if
the agent could make one. It imports nothing, reaps, and ends when its child or the agent ends, and kills all others.
The second, its child, is the zygote.

Both start with the machine's interpreter alone. The zygote confines itself before it takes the variables, the
environment and the start-up files of the index. A copy of the base adopts them if possible. Otherwise the process
executes the environment's interpreter, which is then confined from its start.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no stubs
import fcntl
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from select import POLLIN, poll

from .. import FOLDER
from ..sandbox import levels
from ..state import forking, limits, orphans, snapshot, turns
from ..wire import frames
from . import adopting, root

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn

    from ..schemas.binding import Tool
    from ..wire.frames import JSON

_DESCRIPTOR = struct.Struct("=i")  # in the system's byte order


def main(mode: str, adopts: bool = False) -> NoReturn:
    """mode is "namespace" for PID 1 of its own namespace, else "reaper". adopts says that this process is a copy of a
    base and uses its modules."""
    child = os.fork()
    if child:
        os.close(root.CONTROL)
        root.main(child, mode)
    os.close(root.LIFELINE)
    _live(lambda: Zygote(_high(root.CONTROL) if adopts else root.CONTROL).begin(mode, adopts))


def confined() -> NoReturn:
    """main's child, in the environment's interpreter."""
    _live(lambda: Zygote(_high(root.CONTROL)).resume())


def _live(life: Callable[[], None]) -> NoReturn:
    code = 70
    try:
        life()
        code = 0
    except BaseException:  # noqa: B036 - the last words of this process
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _high(fd: int) -> int:
    """Moves a descriptor above those that tools open and close."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, snapshot.HIGH)
    os.close(fd)
    return moved


def descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that arrived with a message."""
    import _socket

    rights = _socket.SOL_SOCKET, _socket.SCM_RIGHTS
    return [fd for *kind, packed in ancillary if tuple(kind) == rights
            for fd, in _DESCRIPTOR.iter_unpack(packed[: len(packed) // 4 * 4])]


class Zygote:
    """Holds the imported tools; answers the agent, one request at a time."""

    def __init__(self, control: int) -> None:
        import _socket

        self._socket = _socket.socket(fileno=control)
        self._socket.settimeout(None)
        self._rights = _socket.SOL_SOCKET, _socket.SCM_RIGHTS
        self._room = _socket.CMSG_SPACE(16 * 4), getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
        self._fds: list[int] = []
        self._workers: dict[int, JSON] = {}  # pid -> the agent's id of the worker
        self._pages: dict[int, memoryview[int]] = {}  # pid -> the page of a worker whose calls hold lanes
        self._tools: list[Tool] = []

    def begin(self, mode: str, adopts: bool) -> None:
        """Confines this process, as the setup says. adopts is as for main."""
        try:
            if adopts:
                self._prepare()
            self._take_setup()
            setup, given = self._setup, [(one["path"], one["access"]) for one in self._setup.get("given") or ()]
            os.chdir(setup["root"])
            notes = levels.confine(setup["sandbox"], mode, setup.get("temp", ""), setup.get("user", ()), given)
        except levels.Refused as failure:
            sys.stderr.write(f"the sandbox cannot be had: {failure}\n")
            sys.stderr.flush()
            os._exit(71)
        levels.become_subreaper()
        # Of all processes of the index's user, before any code of the index runs.
        limits.bound(resource.RLIMIT_NPROC, setup.get("processes", 0))
        self._send(frames.CONFINED, {"notes": notes})
        if not adopts:
            self._become_own()
        adopted = setup["adopt"]
        adopting.set_environ(adopted["environ"])
        try:
            adopting.adopt(adopted, setup["paths"])
        except adopting.Unfit as failure:
            sys.stderr.write(f"the index starts an interpreter of its own: {failure}\n")
            sys.stderr.flush()
            self._become_own()
        self._serve_tools()

    def _become_own(self) -> NoReturn:
        """Makes this process the environment's interpreter, with the index's variables."""
        import base64

        adopted = self._setup["adopt"]
        lines = base64.b64decode(adopted["environ"]).split(b"\0")
        environ = dict(line.split(b"=", 1) for line in lines if b"=" in line[1:])
        if self._socket.fileno() != root.CONTROL:
            os.dup2(self._socket.fileno(), root.CONTROL)
        os.execve(adopted["executable"], adopted["argv"], environ)

    def resume(self) -> None:
        """Continues after _become_own."""
        self._prepare()
        self._take_setup()
        levels.undumpable(self._setup["sandbox"])
        self._serve_tools()

    def _take_setup(self) -> None:
        import json

        self._write(frames.HELLO, 0, 0, frames.NUMBER.pack(frames.VERSION))
        kind, _, _, body = self._next()
        if kind != frames.SETUP:
            raise RuntimeError(f"the agent began with frame type {kind} instead of a setup")
        self._json: ModuleType = json
        self._setup: dict[str, JSON] = json.loads(body)

    def _serve_tools(self) -> NoReturn:
        self._settle()
        self._describe()
        self._serve()

    def _send(self, kind: int, value: JSON) -> None:
        self._write(kind, 0, 0, self._json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))

    def _write(self, kind: int, flags: int, number: int, body: bytes, fd: int = -1) -> None:
        """Sends a frame, and a descriptor with it."""
        data = frames.HEADER.pack(len(body), kind, flags, 0, number) + body
        if fd < 0:
            self._socket.sendall(data)
            return
        sent = self._socket.sendmsg((data,), ((*self._rights, _DESCRIPTOR.pack(fd)),))
        if sent < len(data):
            self._socket.sendall(memoryview(data)[sent:])

    def _next(self) -> tuple[int, int, int, bytes]:
        """The agent's next request: type, number of the worker's folder, its id, body. Its descriptors are in
        self._fds."""
        length, kind, _, folder, number = frames.HEADER.unpack(self._read(frames.HEADER_SIZE))
        return kind, folder, number, self._read(length)

    def _read(self, size: int) -> bytes:
        """Reads exactly that much: the rest may be for the interpreter that this process becomes."""
        data = bytearray()
        while len(data) < size:
            more, ancillary, _, _ = self._socket.recvmsg(size - len(data), *self._room)
            self._fds += descriptors(ancillary)
            if not more:
                os._exit(0)  # the agent closed the index
            data += more
        return bytes(data)

    def _prepare(self) -> None:
        """Does the work that is the same for every index, before any of its code runs."""
        forking.omit_fork_handlers()
        import atexit
        import gc
        import importlib  # noqa: F401
        import inspect  # noqa: F401
        import logging
        import mmap
        import typing  # noqa: F401

        from .. import mesh  # noqa: F401
        from ..calls import output, plain, threads
        from . import loading  # noqa: F401

        gc.disable()
        output.keep_ends()
        threads.watch()
        snapshot.watch()
        logging.raiseExceptions = False
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import faulthandler

        faulthandler.enable(2)
        # Prepared here: the system copies every page that a worker writes to.
        self._map, self._atexit, self._logging = mmap.mmap, atexit, logging
        self._plain = plain.Worker(self._tools)
        output.prepare()
        # It runs last and has nothing to do if these are the only handlers.
        atexit.unregister(logging.shutdown)
        self._handlers: list[Callable[[], object]] = logging._handlerList  # type: ignore[attr-defined]
        self._usual = [handler() for handler in self._handlers]

    def _settle(self) -> None:
        """Sets paths and secrets of the index before any of its code runs."""
        from ..calls import failures, transfer
        from ..schemas import redaction
        from .finder import Finder

        failures.set_root(self._setup["root"])
        given = [one["path"] for one in self._setup.get("given") or () if one["access"] in (levels.WRITE, levels.READ)]
        transfer.roots = [self._setup["root"], *given]
        redaction.use(self._setup["secrets"])
        sys.path[:0] = self._setup["paths"]
        sys.path.append(FOLDER + "site")  # the last one: an installed toolmesh wins, and finds the channel here
        Finder.root = self._setup["root"]
        sys.meta_path.append(Finder)
        sys.argv = [""]
        self._temp = os.fsencode(self._setup.get("temp", ""))
        if self._setup["sandbox"] in (levels.STRICT, levels.OFFLINE):
            os.environ["TMPDIR"] = self._setup["temp"]

    def _describe(self) -> None:
        from ..schemas import static  # before code of the index may replace ast
        from . import loading

        tools: list[dict[str, JSON]] = []
        unavailable: list[dict[str, str]] = []
        excluded: dict[str, str] = self._setup.get("exclude") or {}
        broken: dict[str, str | None] = {}
        for name in self._setup["tools"]:
            module, _, attribute = name.rpartition(".")
            tool = None
            if not module or not attribute:
                reason = f"{name!r} is not of the form module.function"
            elif module in excluded:
                reason = excluded[module]
            else:
                if module not in broken:
                    self._send(frames.IMPORTING, {"module": module})
                    broken[module] = loading.load_module(module) or loading.hidden(module, self._setup["paths"])
                if failed := broken[module]:
                    reason = failed
                else:
                    tool, reason = loading.load_tool(name, module, attribute)
            if tool is None:
                said = static.documentation(self._setup["paths"], name)
                unavailable.append({"name": name, "reason": reason, "documentation": said})
                continue
            tool.slot = len(self._tools)
            self._tools.append(tool)
            tools.append(tool.described.as_dict(name, tool.kind))
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
        import gc

        self._plain.install()
        self._starts: dict[str, Any] = {"sync": self._plain.start}
        if any(tool.kind.startswith("async") for tool in self._tools):
            import functools

            from ..calls import coroutines

            self._starts["async"] = functools.partial(coroutines.start, self._tools)
        levels.prepare(self._setup["sandbox"])
        self._snapshot = snapshot.Snapshot()
        gc.collect()
        gc.freeze()
        gc.enable()
        self._putenv = snapshot.putenv
        self._environ: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        self._tempfile = sys.modules.get("tempfile")
        limits.inherit(*self._setup.get("open_files", ()))
        self._send(frames.DESCRIBED, {
            "tools": tools,
            "unavailable": unavailable,
            "fork_unsafe": forking.unsafe(self._socket.fileno()),
        })
        if orphans.extra(0):
            orphans.kept.update(orphans.children())  # processes started by imports belong to no call

    def _own_folder(self, folder: bytes) -> None:
        """The folder for this worker's temporary files. Uses the system's own functions and objects that the zygote has
        made: each page written to is copied."""
        self._putenv(b"TMPDIR", folder)
        self._environ[b"TMPDIR"] = folder
        if self._tempfile is not None:
            self._tempfile.tempdir = None  # type: ignore[attr-defined]  # a module of any name, to mypy

    def _serve(self) -> NoReturn:
        self._wake = root.wake()
        waiting = poll()
        waiting.register(self._socket.fileno(), POLLIN)
        waiting.register(self._wake[0], POLLIN)
        requests: dict[bytes, dict[str, JSON]] = {}  # by their text: there are few kinds of workers
        while True:
            self._reap()
            ready = [fd for fd, _ in waiting.poll(self._timeout() if self._pages else None)]
            if self._wake[0] in ready:
                os.read(self._wake[0], 4096)
                self._reap()
            if self._socket.fileno() in ready:
                kind, folder, number, body = self._next()
                request = requests.get(body)
                if request is None:
                    request = requests[body] = self._json.loads(body)
                fds, self._fds = self._fds, []
                if kind == frames.FORK:
                    self._fork(number, folder, request, fds)
                elif kind == frames.BECOME:
                    self._become(number, folder, request, fds)
                else:
                    raise RuntimeError(f"the agent sent frame type {kind}, which this zygote does not know")

    def _timeout(self) -> int:
        """Stops the workers that have lost their lane; milliseconds until the next check."""
        for pid, page in list(self._pages.items()):
            if turns.over(page[turns.PAGE_UNTIL]):
                os.kill(pid, signal.SIGKILL)  # the pid stays ours until it is reaped
                del self._pages[pid]
        return min((turns.timeout(page[turns.PAGE_UNTIL]) for page in self._pages.values()), default=turns.PERIOD)

    def _reap(self) -> None:
        while self._workers:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            worker = self._workers.pop(pid, None)
            self._pages.pop(pid, None)
            if worker is None:
                orphans.kept.discard(pid)
            else:
                # Processes left by the worker are our children now, and are killed.
                if orphans.extra(len(self._workers) + len(orphans.kept)):
                    try:
                        os.killpg(pid, signal.SIGKILL)
                    except (ProcessLookupError, PermissionError):
                        pass
                    orphans.kill(self._workers.keys() | orphans.kept)
                signaled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                code = -1 if signaled else os.WEXITSTATUS(status)
                self._write(frames.EXITED, 0, worker, frames.NUMBERS.pack(code, signaled))

    def _fork(self, worker: int, folder: int, request: dict[str, JSON], fds: list[int]) -> None:
        try:
            pid = forking.fork()
        except OSError as failure:
            for fd in fds:
                os.close(fd)
            self._write(frames.FORKED, frames.FAILED, worker, str(failure).encode())
            return
        if pid == 0:
            self._pages.clear()
            orphans.begin()
            self._child(folder, request, fds)
        self._workers[pid] = worker
        if request.get("turns"):
            self._pages[pid] = memoryview(self._map(fds[-1], 4096)).cast("Q")
        self._forked(worker, pid)
        for fd in fds:
            os.close(fd)

    def _forked(self, worker: int, pid: int) -> None:
        handle = -1
        if hasattr(os, "pidfd_open"):
            try:
                handle = os.pidfd_open(pid)
            except OSError:
                pass
        self._write(frames.FORKED, frames.HANDLE if handle >= 0 else 0, worker, frames.NUMBER.pack(pid), handle)
        if handle >= 0:
            os.close(handle)

    def _become(self, worker: int, folder: int, request: dict[str, JSON], fds: list[int]) -> NoReturn:
        """For an index that must not be forked: this process becomes the worker."""
        self._forked(worker, os.getpid())
        if request.get("turns"):
            page = memoryview(self._map(fds[-1], 4096)).cast("Q")
            turns.watch(lambda: page[turns.PAGE_UNTIL])
        self._child(folder, request, fds)

    def _child(self, folder: int, request: dict[str, JSON], fds: list[int]) -> NoReturn:
        """Continues as a worker, in the fork."""
        code = 70
        try:
            _signal.set_wakeup_fd(-1)
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            os.setsid()
            levels.become_subreaper()  # the worker keeps its descendants
            levels.domain(self._setup["sandbox"])
            self._socket.close()
            for fd in self._wake:
                os.close(fd)
            isolation = request["isolation"]
            before = None if isolation in ("fork", "fresh") else self._snapshot
            inp, out, one, two, page = fds
            os.dup2(one, 1)
            os.dup2(two, 2)
            inp, out = _high(inp), _high(out)
            words = memoryview(self._map(page, 4096)).cast("Q")
            for fd in (one, two, page):
                os.close(fd)
            if before is not None:
                before.hold()
            forking.renew()
            if folder:
                self._own_folder(self._temp + b"/w%d" % folder)
            limit = limits.apply(request["limits"], request["limit"])
            about = b'{"pid": %d}' % os.getpid()
            # A session's state is not discarded for changes of its own calls.
            self._snapshot.retires = isolation != "session"
            fit = self._starts[request["kind"]](inp, out, words, limit, about, before)
            code = 0 if fit else snapshot.SPENT
            if self._atexit._ncallbacks():
                self._atexit._run_exitfuncs()
            if any(handler() not in self._usual for handler in self._handlers):
                self._logging.shutdown()
        except BaseException as failure:  # noqa: B036 - the last words of this process
            from ..calls.failures import trace

            try:
                os.write(2, (trace(failure) + "\n").encode("utf-8", "replace"))
            except OSError:
                pass
        finally:
            os._exit(code)
