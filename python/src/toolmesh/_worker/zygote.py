"""The process that imports an index's tools once and forks its workers.

Two processes come of one start. The first is the root of everything the index
runs: PID 1 of its own PID namespace where the agent could make one. It imports
nothing, reaps, and ends when its child ends or the agent is gone, taking all
others with it. The second, its child, is the zygote proper.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no stubs
import fcntl
import os
import signal
import struct
import sys
from select import POLLIN, poll

from . import confine, forking, keep, limits, strays
from .frames import (
    BECOME,
    DESCRIBED,
    EXITED,
    FAILED,
    FORK,
    FORKED,
    HANDLE,
    HEADER,
    HEADER_SIZE,
    IMPORTING,
    NUMBER,
    NUMBERS,
    SETUP,
)

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any, NoReturn

    from .binding import Tool
    from .values import JSON

CONTROL = 3  # socket to the agent
LIFELINE = 4  # pipe whose other end the agent holds: its end is ours
_DESCRIPTOR = struct.Struct("=i")  # as the system writes it


def main(mode: str, sandbox: str = "") -> NoReturn:
    """mode is "namespace" when we are PID 1 of our own, else "reaper". sandbox is
    the level that the setup will ask for, where that is known before."""
    child = os.fork()
    if child:
        os.close(CONTROL)
        _root(child, mode)
    os.close(LIFELINE)
    code = 70
    try:
        Zygote(_high(CONTROL), mode).run(sandbox)
        code = 0
    except BaseException:  # noqa: B036 - the last words of this process
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


# The root process.


def _root(child: int, mode: str) -> NoReturn:
    if mode == "reaper":
        _become_subreaper()
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
    if mode == "reaper":
        _kill_descendants()
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    os._exit(code)


def _become_subreaper() -> None:
    """Orphans of our descendants become our children (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def _kill_descendants() -> None:
    """Kills until nothing below us is left; without /proc, our process group."""
    if not os.path.isdir("/proc/self"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        return
    me = os.getpid()
    for _ in range(1000):
        below = _descendants(me)
        if not below:
            return
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        while True:
            try:
                pid, _ = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            if pid in below:
                below.discard(pid)
            if not below & _descendants(me):
                break


def _descendants(top: int) -> set[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    rest = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if rest[0] != b"Z":
                parents[int(name)] = int(rest[1])
    found: set[int] = set()
    grew = True
    while grew:
        more = {pid for pid, parent in parents.items() if parent == top or parent in found} - found
        grew = bool(more)
        found |= more
    return found


# The zygote.


def _high(fd: int) -> int:
    """Moves a descriptor out of the way of what tools open and close."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, keep.HIGH)
    os.close(fd)
    return moved


class Zygote:
    """Holds the imported tools; answers the agent, one request at a time."""

    def __init__(self, control: int, mode: str) -> None:
        import _socket

        self._mode = mode

        self._socket = _socket.socket(fileno=control)
        self._socket.settimeout(None)
        self._rights = _socket.SOL_SOCKET, _socket.SCM_RIGHTS
        self._room = _socket.CMSG_SPACE(16 * 4), getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
        self._buffer = b""
        self._fds: list[int] = []
        self._workers: dict[int, JSON] = {}  # pid -> the agent's id of the worker
        self._tools: list[Tool] = []

    def run(self, sandbox: str) -> None:
        """Imports the tools and serves; the process ends when the agent closes the index."""
        early = sandbox in (confine.NONE, confine.GUARD)  # they need no folder
        if early:
            self._confine(sandbox, "")
        self._prepare()
        if sandbox and not self._asked():
            self._rehearse(sandbox if early else "")
        kind, _, body = self._next()
        if kind != SETUP:
            raise RuntimeError(f"the agent began with frame type {kind} instead of a setup")
        import json

        self._json: ModuleType = json
        self._setup: dict[str, JSON] = json.loads(body)
        os.chdir(self._setup["cwd"])
        adopted = self._setup.pop("adopt", None)
        if adopted:
            from . import base

            base.set_environ(adopted["environ"])
        if not early:
            self._confine(self._setup["sandbox"], self._setup["folder"])
        if adopted:
            try:
                base.adopt(adopted, self._setup["paths"])
            except base.Unfit as failure:
                sys.stderr.write(f"{failure}\n")
                sys.stderr.flush()
                os._exit(base.UNFIT)
        self._settle()
        self._describe()
        self._serve()

    def _confine(self, sandbox: str, folder: str) -> None:
        try:
            self._notes = confine.zygote(sandbox, self._mode, folder)
        except confine.Refused as failure:
            sys.stderr.write(f"the sandbox level {sandbox} cannot be had: {failure}\n")
            sys.stderr.flush()
            os._exit(71)
        confine.become_subreaper()

    def _send(self, kind: int, value: JSON) -> None:
        self._write(kind, 0, 0, self._json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))

    def _write(self, kind: int, flags: int, number: int, body: bytes, fd: int = -1) -> None:
        """Sends a frame, and a descriptor with it."""
        data = HEADER.pack(len(body), kind, flags, 0, number) + body
        if fd < 0:
            self._socket.sendall(data)
            return
        sent = self._socket.sendmsg((data,), ((*self._rights, _DESCRIPTOR.pack(fd)),))
        if sent < len(data):
            self._socket.sendall(memoryview(data)[sent:])

    def _next(self) -> tuple[int, int, bytes]:
        """The agent's next request: type, worker's id, body. Its descriptors are in
        self._fds."""
        while True:
            if len(self._buffer) >= HEADER_SIZE:
                length, kind, _, _, number = HEADER.unpack_from(self._buffer)
                if len(self._buffer) >= HEADER_SIZE + length:
                    body = self._buffer[HEADER_SIZE : HEADER_SIZE + length]
                    self._buffer = self._buffer[HEADER_SIZE + length :]
                    return kind, number, body
            data, ancillary, _, _ = self._socket.recvmsg(65536, *self._room)
            for level, what, packed in ancillary:
                if (level, what) == self._rights:
                    for at in range(0, len(packed) - 3, 4):
                        self._fds.append(_DESCRIPTOR.unpack_from(packed, at)[0])
            if not data:
                os._exit(0)  # the agent closed the index
            self._buffer += data

    def _prepare(self) -> None:
        """What is the same for every index; before any code of one runs."""
        forking.tame()
        import atexit
        import gc
        import importlib  # noqa: F401
        import inspect  # noqa: F401
        import logging
        import mmap
        import typing  # noqa: F401

        from . import binding, failures, loop, mesh, output, redaction, schema, threads, values  # noqa: F401

        gc.disable()
        output.keep_ends()
        threads.watch()
        keep.watch()
        logging.raiseExceptions = False
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import faulthandler

        faulthandler.enable(2)
        # Looked up and made here: every page that a fork touches is copied for it.
        self._map, self._atexit, self._logging = mmap.mmap, atexit, logging
        self._plain = loop.Worker(self._tools)
        output.prepare()
        # It runs last, and has nothing to do where there are no handlers but these.
        atexit.unregister(logging.shutdown)
        self._handlers: list[Callable[[], object]] = logging._handlerList  # type: ignore[attr-defined]
        self._usual = [handler() for handler in self._handlers]
        strays.prepare()

    def _asked(self) -> bool:
        """Whether the agent has sent something."""
        waiting = poll()
        waiting.register(self._socket.fileno(), POLLIN)
        return bool(waiting.poll(0))

    def _rehearse(self, sandbox: str) -> None:
        """Uses the time until an index is known. A copy's pages are copied when they
        are first written, which is most of what a start costs: so this does what a
        start does, with nothing in it."""
        import gc
        import json

        from . import base

        setup = {"root": "/", "paths": ["/"], "tools": ["a.b"], "exclude": {}, "secrets": None, "adopt": {"argv": [""]}}
        json.loads(json.dumps(setup))
        base.set_environ(base.encode_environ(os.environb))
        base.rehearse()
        if sandbox:
            confine.prepare(sandbox)
        forking.unsafe(self._socket.fileno())
        keep.Keeper()
        gc.collect()

    def _settle(self) -> None:
        """Paths and secrets of the index, before any code of it runs."""
        from . import failures, redaction
        from .channel import Finder

        failures.set_root(self._setup["root"])
        # Before the index's own code can change them.
        redaction.add(os.environ.get(name, "") for name in self._setup.get("secrets") or ())
        sys.path[:0] = self._setup["paths"]
        Finder.root = self._setup["root"]
        sys.meta_path.append(Finder)
        sys.argv = [""]

    def _describe(self) -> None:
        tools: list[dict[str, JSON]] = []
        unavailable: list[dict[str, str]] = []
        excluded: dict[str, str] = self._setup.get("exclude") or {}
        broken: dict[str, tuple[str, str] | None] = {}
        for name in self._setup["tools"]:
            module, _, attribute = name.rpartition(".")
            if not module or not attribute:
                unavailable.append({"name": name, "reason": f"{name!r} is not of the form module.function"})
                continue
            if module in excluded:
                unavailable.append({"name": name, "reason": excluded[module]})
                continue
            if module not in broken:
                self._send(IMPORTING, {"module": module})
                broken[module] = _import(module) or _hidden(module, self._setup["paths"])
            failed = broken[module]
            if failed is not None:
                reason, traceback = failed
                unavailable.append({"name": name, "reason": reason, "traceback": traceback})
                continue
            tool, reason, traceback = _load(name, module, attribute)
            if tool is None:
                unavailable.append({"name": name, "reason": reason, "traceback": traceback})
                continue
            tool.slot = len(self._tools)
            self._tools.append(tool)
            signature = tool.described
            tools.append({
                "name": name,
                "description": signature.description,
                "input_schema": signature.input_schema,
                "output_schema": signature.output_schema,
                "kind": tool.kind,
                "positional": [p.name for p in signature.parameters if p.kind in ("positional", "normal")],
                "varargs": any(p.kind == "varargs" for p in signature.parameters),
                "warnings": signature.warnings,
            })
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
        import gc

        self._plain.install()
        self._starts: dict[str, Any] = {"sync": self._plain.start}
        if any(tool.kind.startswith("async") for tool in self._tools):
            from . import aloop

            self._starts["async"] = aloop.prepare(self._tools)
        confine.prepare(self._setup["sandbox"])
        self._keeper = keep.Keeper()
        gc.collect()
        gc.freeze()
        gc.enable()
        self._send(DESCRIBED, {
            "tools": tools,
            "unavailable": unavailable,
            "python": sys.version.split()[0],
            "fork_unsafe": forking.unsafe(self._socket.fileno()),
            "notes": self._notes,
        })
        if strays.extra(0):
            strays.kept.update(strays.children())  # what the imports have started is no call's

    def _serve(self) -> NoReturn:
        wake_r, wake_w = os.pipe()
        for fd in (wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        waiting = poll()
        waiting.register(self._socket.fileno(), POLLIN)
        waiting.register(wake_r, POLLIN)
        self._wake = (wake_r, wake_w)
        requests: dict[bytes, dict[str, JSON]] = {}  # by their text: there are a few kinds of workers
        while True:
            self._reap()
            ready = [fd for fd, _ in waiting.poll()]
            if wake_r in ready:
                os.read(wake_r, 4096)
                self._reap()
            if self._socket.fileno() in ready:
                kind, number, body = self._next()
                request = requests.get(body)
                if request is None:
                    request = requests[body] = self._json.loads(body)
                fds, self._fds = self._fds, []
                if kind == FORK:
                    self._fork(number, request, fds)
                elif kind == BECOME:
                    self._become(number, request, fds)
                else:
                    raise RuntimeError(f"the agent sent frame type {kind}, which this zygote does not know")

    def _reap(self) -> None:
        while self._workers:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            worker = self._workers.pop(pid, None)
            if worker is None:
                strays.kept.discard(pid)
            else:
                # What the worker started and left behind is our child now, and goes with it.
                if strays.extra(len(self._workers) + len(strays.kept)):
                    try:
                        os.killpg(pid, signal.SIGKILL)
                    except (ProcessLookupError, PermissionError):
                        pass
                    strays.kill(self._workers.keys() | strays.kept)
                signaled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                self._write(EXITED, 0, worker, NUMBERS.pack(-1 if signaled else os.WEXITSTATUS(status), signaled))

    def _fork(self, worker: int, request: dict[str, JSON], fds: list[int]) -> None:
        try:
            pid = forking.fork()
        except OSError as failure:
            for fd in fds:
                os.close(fd)
            self._write(FORKED, FAILED, worker, str(failure).encode())
            return
        if pid == 0:
            strays.begin()
            self._child(worker, request, fds)
        self._workers[pid] = worker
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
        self._write(FORKED, HANDLE if handle >= 0 else 0, worker, NUMBER.pack(pid), handle)
        if handle >= 0:
            os.close(handle)

    def _become(self, worker: int, request: dict[str, JSON], fds: list[int]) -> NoReturn:
        """For an index that must not be forked: this process is the worker."""
        self._forked(worker, os.getpid())
        self._child(worker, request, fds)

    def _child(self, worker: int, request: dict[str, JSON], fds: list[int]) -> NoReturn:
        """What the fork is from here on: a worker."""
        code = 70
        try:
            _signal.set_wakeup_fd(-1)
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            os.setsid()
            confine.worker(self._setup["sandbox"])
            self._socket.close()
            for fd in self._wake:
                os.close(fd)
            isolation = request["isolation"]
            keeper = None if isolation in ("fork", "fresh") else self._keeper
            inp, out, one, two, page = fds
            os.dup2(one, 1)
            os.dup2(two, 2)
            inp, out = _high(inp), _high(out)
            words = memoryview(self._map(page, 4096)).cast("Q")
            for fd in (one, two, page):
                os.close(fd)
            if keeper is not None:
                keeper.hold()
            forking.renew()
            _own_folder(self._setup["folder"], worker)
            limit = limits.apply(request["limits"], request["limit"])
            about = b'{"pid": %d}' % os.getpid()
            # A session's state is not thrown away for what one of its own calls has changed.
            self._keeper.retires = isolation != "session"
            fit = self._starts[request["kind"]](inp, out, words, limit, about, keeper)
            code = 0 if fit else keep.SPENT
            if self._atexit._ncallbacks():
                self._atexit._run_exitfuncs()
            if any(handler() not in self._usual for handler in self._handlers):
                self._logging.shutdown()
        except BaseException as failure:  # noqa: B036 - the last words of this process
            from .failures import trace

            try:
                os.write(2, (trace(failure) + "\n").encode("utf-8", "replace"))
            except OSError:
                pass
        finally:
            os._exit(code)


def _own_folder(parent: str, worker: int) -> None:
    """Where this worker's temporary files go; parent is empty where any place will do."""
    if parent:
        folder = os.path.join(parent, f"w{worker}")
        os.mkdir(folder, 0o700)
        os.environ["TMPDIR"] = folder
        tempfile = sys.modules.get("tempfile")
        if tempfile is not None:
            tempfile.tempdir = None  # type: ignore[attr-defined]  # a module of any name, to mypy


def _import(module: str) -> tuple[str, str] | None:
    """None, or why it cannot be imported: (reason, traceback)."""
    import importlib

    from . import failures

    try:
        importlib.import_module(module)
        return None
    except BaseException as failure:  # noqa: B036 - sys.exit at import is isolated too
        return failures.unavailable_reason(failure, module)


def _hidden(module: str, paths: Sequence[str]) -> tuple[str, str] | None:
    """Why the module that was imported is not the index's own: Python's one of
    the same name was loaded before any code of the index, by the worker itself."""
    first = module.partition(".")[0]
    loaded = os.path.realpath(getattr(sys.modules.get(first), "__file__", None) or "")
    for path in paths:
        for own in (f"{first}.py", os.path.join(first, "__init__.py")):
            file = os.path.realpath(os.path.join(path, own))
            if loaded == file:
                return None
            if os.path.isfile(file):
                return f"the module {first} is Python's own, loaded before the index's {own}; rename that file", ""
    return None


def _load(name: str, module: str, attribute: str) -> tuple[Tool | None, str, str]:
    """(Tool, "", "") or (None, reason, traceback)."""
    from . import binding, failures, schema

    namespace = sys.modules[module]
    try:
        found = getattr(namespace, attribute)
    except AttributeError:
        import difflib

        near = difflib.get_close_matches(attribute, [one for one in dir(namespace) if not one.startswith("_")], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return None, f"the module {module} has no {attribute}{hint}", ""
    except BaseException as failure:  # noqa: B036 - a module's __getattr__ may do anything
        return None, *failures.unreadable(failure, f"{name} cannot be read")
    function = _unwrap(found)
    if not callable(function):
        return None, f"{name} is of type {type(found).__name__}, not a function", ""
    try:
        return binding.Tool(name, function, schema.kind_of(function), schema.signature(function)), "", ""
    except BaseException as failure:  # noqa: B036 - one tool must not take the others along
        return None, *failures.unreadable(failure, f"{name} cannot be described")


def _unwrap(found: Any) -> Any:
    """The function inside what a framework's decorator made of it."""
    import inspect

    if inspect.isroutine(found) or inspect.isclass(found):
        return found
    for attribute in ("coroutine", "func", "fn"):
        inner = getattr(found, attribute, None)
        if callable(inner) and type(found).__name__ != "partial":
            return inner
    return found
