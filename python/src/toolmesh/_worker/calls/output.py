"""Output and log records of a tool as LOG frames of its call.

sys.stdout and sys.stderr become proxies that know the running call; a handler on the root logger does the same for
logging. Direct writes to the file descriptors 1 and 2 (C code, child processes) go to pipes that the agent reads. This
module never blocks for long and never grows: the agent always reads, and output above a call's rate is dropped here:
reading it would take the agent's processor.
"""

from __future__ import annotations

import io
import json
import os
import sys
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter as _clock
from time import sleep as _sleep
from typing import TYPE_CHECKING, Any

from ..schemas import redaction
from ..wire.frames import HEADER, JSON, LOG, LOG_RECORD, LOG_STDERR, LOG_STDOUT, write_all
from . import failures, threads

if TYPE_CHECKING:
    import logging

    from _typeshed import ReadableBuffer

# Bound now: a tool may replace functions of json.
_text = json.JSONEncoder(ensure_ascii=False, default=repr).encode
_loads = json.JSONDecoder().decode
_LINE = 8 * 1024  # max text in one frame
_BURST, _RATE = 256 * 1024, 64 * 1024  # bytes of output that a call may write at once, and per second after that

# Items that arrive faster than they can be written one by one are written together.
_QUICK = 100e-6  # seconds between quick items
_STREAK = 16  # quick items in a row before they are held back
_PACKED = 16 * 1024  # max bytes held back
_HELD = 1e-3  # max seconds held back while more arrive
_LOOK = 5e-3  # seconds between two looks of the flusher: each takes the interpreter from the tool
_PARTING = 0.5  # seconds that the end waits for another thread's write
_IDLE = 4  # idle looks before the flusher ends


UNSHIELDED: AbstractContextManager[None, None] = nullcontext()  # where writes are never interrupted


class Outlet:
    """The only writer of the pipe to the agent, shared by loop and output.

    shield is entered around each write while a tool's code is on the stack: a cancellation must not cut a frame in two.
    """

    def __init__(self, fd: int, current: Callable[[], int], shield: AbstractContextManager[None, None]) -> None:
        self.begin(fd)
        self.lock = allocate_lock()
        self._current = current  # () -> call id or 0
        self._shield = shield
        self.partial: dict[tuple[int, int], str] = {}  # (call, flag) -> text of an unfinished line
        self.budgets: dict[int, tuple[float, float, int]] = {}  # call -> bytes it may write, since when; dropped
        self._main = get_ident()
        self.held: list[bytes] = []  # held frames of items; with the lock
        self._size = 0  # bytes in held
        self._since = 0.0  # when the first one of held arrived
        self._last = 0.0  # when the last item was handled
        self._quick = 0  # quick items in a row
        self._flushing = False  # the flusher is running; with the lock

    def begin(self, fd: int) -> None:
        """Writes to fd from now on, in this process."""
        self.fd = fd
        self._process = os.getpid()

    def send(self, data: bytes) -> None:
        with self.lock:
            if self.fd >= 0:
                write_all(self.fd, self.released() + data if self.held else data)

    def released(self) -> bytes:
        """Takes the held frames for the caller to write. The lock is held."""
        held, self.held, self._size = self.held, [], 0
        return b"".join(held)

    def item(self, data: bytes) -> None:
        """Writes an item's frame. Holds it back for some milliseconds when items arrive faster than they can be
        written."""
        now = _clock()
        if now - self._last > _QUICK:
            self._quick = 0
        self._quick += 1
        if self._quick <= _STREAK or not self._hold(data, now):
            self.send(data)
            now = _clock()
        self._last = now

    def gather(self, data: bytes) -> bool:
        """Takes a frame of an event loop, which calls settle_items after the ready callbacks. True if the frame is held
        back."""
        if not self._hold(data, _clock()):
            self.send(data)
        return bool(self.held)

    def _hold(self, data: bytes, now: float) -> bool:
        """Holds a frame back, or writes it with all held ones. False if it did neither."""
        with self.lock:
            if not self.held:
                if not self._flushes():
                    return False
                self._since = now
            self.held.append(data)
            self._size += len(data)
            if self._size >= _PACKED or now - self._since >= _HELD:
                data = self.released()
                if self.fd >= 0:
                    write_all(self.fd, data)
        return True

    def _flushes(self) -> bool:
        """Whether a thread writes what is held back."""
        if not self._flushing:
            try:
                start_new_thread(self._flush_held, ())
            except RuntimeError:
                return False  # the tool has reached its limit of threads
            self._flushing = True
        return True

    def _flush_held(self) -> None:
        """A thread that runs while items are held back: the thread that makes them may pause for long."""
        threads.block_signals()
        idle = 0
        while True:
            _sleep(_LOOK)
            if self.held and _clock() - self._since < _LOOK:
                idle = 0
                continue  # more keep arriving: the tool's own thread writes
            with self.lock:
                if self.held and self.fd >= 0:
                    idle = 0
                    write_all(self.fd, self.released())
                    continue
                idle += 1
                if idle > _IDLE:
                    self._flushing = False
                    return

    def settle_items(self) -> None:
        if self.held:
            self.send(b"")

    def part(self) -> None:
        """Writes held frames before the process may end, on any thread. It does not wait long: a signal handler may
        have interrupted the thread with the lock."""
        if self.held and os.getpid() == self._process:
            with self._shielded():
                self._say(b"", _PARTING)

    def _say(self, data: bytes, wait: float = 0) -> None:
        """Writes a frame of output, or holds it back while another write is in progress: a signal handler or a
        finalizer may have interrupted that on this very thread."""
        if self.lock.acquire(wait > 0, wait or -1):
            try:
                if self.fd >= 0:
                    write_all(self.fd, self.released() + data)
            finally:
                self.lock.release()
        elif data:
            self.held.append(data)
            self._flushes()

    def _shielded(self) -> AbstractContextManager[None, None]:
        """The context of a write: only the main thread is ever interrupted."""
        return self._shield if get_ident() == self._main else UNSHIELDED

    def text(self, flag: int, text: str) -> None:
        """Takes what a tool wrote to stdout or stderr."""
        with self._shielded():
            call = self._current()
            key = (call, flag)
            text = self.partial.pop(key, "") + text
            cut = text.rfind("\n") + 1
            if len(text) - cut >= _LINE + redaction.longest:
                cut = redaction.apart(text, len(text) - redaction.longest)  # a secret may continue in the next piece
            if cut < len(text):
                self.partial[key] = text[cut:]
            if cut:
                self._emit(call, flag, text[:cut])

    def flush(self, flag: int) -> None:
        """Sends the running call's unfinished lines."""
        call = self._current()
        text = self.partial.pop((call, flag), "")
        if text:
            with self._shielded():
                self._emit(call, flag, text)

    def _emit(self, call: int, flag: int, text: str) -> None:
        data = redaction.text(text).encode("utf-8", "replace")
        for start in range(0, len(data), _LINE):
            self._log(call, flag, data[start : start + _LINE])

    def _log(self, call: int, flag: int, data: bytes) -> None:
        now = _clock()
        left, since, dropped = self.budgets.get(call, (_BURST, now, 0))
        left = min(_BURST, left + (now - since) * _RATE)
        if len(data) > left:
            self.budgets[call] = left, now, dropped + len(data)
            return
        self.budgets[call] = left - len(data), now, dropped
        self._say(HEADER.pack(len(data), LOG, flag, 0, call) + data)

    def record(self, fields: dict[str, JSON], flag: int = LOG_RECORD) -> None:
        call = self._current()
        said = _text(fields)
        if redaction.text(said) != said:
            said = _text(redaction.tree(_loads(said)))
        with self._shielded():
            self._log(call, flag, said.encode("utf-8", "replace"))

    def settle(self, call: int) -> None:
        """Sends the unfinished lines of a call, and how much was dropped."""
        for flag in (LOG_STDOUT, LOG_STDERR):
            text = self.partial.pop((call, flag), "")
            if text:
                self._emit(call, flag, text)
        dropped = self.budgets.pop(call, (0, 0, 0))[2]
        if dropped:
            data = b"[%d bytes of output left out]" % dropped
            self.send(HEADER.pack(len(data), LOG, LOG_STDERR, 0, call) + data)

    def abandon(self) -> None:
        """For a process that a tool forked: from now on output goes to 1 and 2."""
        self.fd = -1
        self.lock = allocate_lock()
        self.held = []
        self._size = 0
        self._flushing = False


class _Bytes(io.RawIOBase):
    """The .buffer of a proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        data = bytes(data)
        self._proxy.write(data.decode("utf-8", "replace"))
        return len(data)

    def flush(self) -> None:
        self._proxy.flush()

    def fileno(self) -> int:
        return self._proxy.fileno()


class Proxy(io.TextIOBase):
    """sys.stdout or sys.stderr of a worker."""

    encoding = "utf-8"
    errors = "replace"
    mode = "w"
    line_buffering = True

    def __init__(self, outlet: Outlet, flag: int, fd: int) -> None:
        self._outlet = outlet
        self._flag = flag
        self._fd = fd
        self.buffer = _Bytes(self)

    @property
    def name(self) -> str:
        return "<stdout>" if self._fd == 1 else "<stderr>"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._fd

    def reconfigure(self, **_: object) -> None:
        """Changes nothing."""

    def close(self) -> None:
        pass  # a tool that closes stdout must not close it for the next call

    def write(self, text: str) -> int:
        if type(text) is not str:
            if not isinstance(text, str):
                raise TypeError(f"write() argument must be str, not {type(text).__name__}")
            text = str(text)
        if self._outlet.fd >= 0:
            self._outlet.text(self._flag, text)
        else:
            os.write(self._fd, text.encode("utf-8", "replace"))
        return len(text)

    def flush(self) -> None:
        if self._outlet.fd >= 0:
            self._outlet.flush(self._flag)


_installed = [Outlet(-1, int, UNSHIELDED)]  # the outlet of log records
_proxies = Proxy(_installed[0], LOG_STDOUT, 1), Proxy(_installed[0], LOG_STDERR, 2)
_handlers: list[logging.Handler] = []  # the one of log records, until it is installed


def install(outlet: Outlet) -> None:
    """Points sys.stdout, sys.stderr and logging at outlet."""
    for proxy in _proxies:
        proxy._outlet = outlet
    _installed[0] = outlet
    if sys.stdout is _proxies[0] and sys.stderr is _proxies[1]:
        return
    old = {id(sys.stdout), id(sys.stderr), id(sys.__stdout__), id(sys.__stderr__)}
    sys.stdout, sys.stderr = _proxies
    if not _handlers:
        return
    import logging

    root = logging.getLogger()
    for handler in list(root.handlers):
        # A handler that basicConfig added at import would log everything twice.
        if type(handler) is logging.StreamHandler and id(handler.stream) in old:
            root.removeHandler(handler)
    if root.level == logging.WARNING:
        root.setLevel(logging.INFO)
    root.addHandler(_handlers.pop())


def keep_ends() -> None:
    """Makes functions that end the process at once write held frames first. Called before any code of the index is
    imported, which may bind these functions."""
    import functools
    import signal

    def parting(end: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(end)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for outlet in _installed:
                outlet.part()
            return end(*args, **kwargs)

        return wrapper

    for module, below, names in (
        (os, sys.modules.get(os.name), ("_exit", "abort", "kill", "killpg", "execv", "execve")),
        (signal, sys.modules.get("_signal"), ("raise_signal",)),
    ):
        for name in names:
            end = getattr(module, name, None)
            if end is not None:
                wrapper = parting(end)
                setattr(module, name, wrapper)
                setattr(below, name, wrapper)


def prepare() -> None:
    """Makes the handler of log records for the first install, before any code of the index runs."""
    import logging

    plain = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                fields: dict[str, JSON] = {
                    "level": record.levelname.lower(),
                    "logger": record.name,
                    "message": failures.cut(record.getMessage(), _LINE),
                }
                extra = {key: value for key, value in vars(record).items() if key not in plain}
                if record.exc_info and record.exc_info[1] is not None:
                    extra["exception"] = failures.trace(record.exc_info[1])[:_LINE]
                if extra:
                    fields["fields"] = extra
                _installed[0].record(fields)
            except Exception:
                self.handleError(record)

    _handlers.append(Handler())
