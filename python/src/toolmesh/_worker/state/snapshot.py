"""State outside the index's own modules that calls of one worker share. After each call, changes are undone to the
state before the first call.

Between two calls same checks for changes, in about a microsecond and after the answer is written; only if it finds one,
mend undoes it. State that cannot be checked that quickly (timers, handlers, the signal mask, the working folder) is
recorded by wrappers of the functions that change it. Additions stay, such as folders in sys.path, modules and
variables: libraries add them at first use, once.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no stubs
import builtins
import fcntl
import json
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import Any

SPENT = 75  # exit status of a worker that ends because something cannot be put back; the Go side says the same

touched = False  # a function wrapped by watch was called
_assigned = False  # one that sets environment variables was called
_ALARMS = tuple(getattr(_signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"))
# Signals without Python handlers: faulthandler's, and those that cannot have any.
_FATAL = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGKILL, signal.SIGSTOP}
_OPEN_MAX = os.sysconf_names.get("SC_OPEN_MAX", -1)
_NEEDED = ("json", "os", "sys", "builtins", "signal", "threading")  # modules that all calls need unchanged
_PROXY = ("_outlet", "_flag", "_fd", "buffer")  # attributes of our own streams
_umask, putenv = os.umask, os.putenv  # the originals: watch replaces those of os
_fstat = os.fstat  # a tool may replace that of os
_fcntl = fcntl.fcntl
_F_GETSIG = getattr(fcntl, "F_GETSIG", -1)
HIGH = 200  # the worker's own descriptors start here, above a tool's


def watch() -> None:
    """Wraps the functions that change state of the system, to record their calls. Called before any code of the index
    is imported, which may bind them by name."""
    import faulthandler
    import functools

    def noting(flag: str, change: Callable[..., Any]) -> Callable[..., Any]:
        ours = globals()

        @functools.wraps(change)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            ours[flag] = True
            return change(*args, **kwargs)

        return wrapper

    system = os, sys.modules.get(os.name)
    for flag, modules, names in (
        ("touched", (signal, _signal), ("alarm", "setitimer", "set_wakeup_fd")),
        ("touched", (_signal,), ("signal", "pthread_sigmask")),  # signal's own of these names call them
        ("touched", system, ("chdir", "fchdir", "umask")),
        ("touched", (faulthandler,), ("dump_traceback_later",)),
        ("touched", (resource,), ("setrlimit", "prlimit")),
        ("_assigned", system, ("putenv", "unsetenv")),  # os.environ calls them, with each change
    ):
        for name in names:
            change = getattr(modules[0], name, None)
            if change is not None:
                wrapper = noting(flag, change)
                for module in modules:
                    setattr(module, name, wrapper)


class Snapshot:
    """The state of a worker between calls. Made in the zygote after all imports: each page that a worker writes to is
    copied."""

    def __init__(self) -> None:
        import threading

        mask = _umask(0o77)
        _umask(mask)
        self._umask = mask
        self.retires = True  # mend may report that this worker must end
        self._handlers = {int(one): _signal.getsignal(one) for one in signal.valid_signals() if one not in _FATAL}
        self._handlers[int(signal.SIGCHLD)] = _signal.SIG_DFL  # workers do not inherit the zygote's
        self._mask = set(map(int, _signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        self._timers: dict[int, float] = {}  # those of the worker itself
        self._folder = os.getcwd()
        self._lists = [
            (sys, name, getattr(sys, name), list(getattr(sys, name))) for name in ("path", "meta_path", "path_hooks")
        ]
        self._first_modules = dict(sys.modules)
        self._count = len(sys.modules)
        self._filters = list(warnings.filters)
        self._builtins = dict(vars(builtins))
        self._streams: list[Any] = [sys.stdout, sys.stderr]
        self._attributes: list[tuple[Any, dict[str, Any]]] = [
            (sys, {name: getattr(sys, name) for name in (
                "stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__", "modules",
                "excepthook", "unraisablehook",
            )}),
            (threading, {"excepthook": threading.excepthook}),
            (os, {"environ": os.environ}),
            (warnings, {"filters": warnings.filters}),
        ]
        for one in (json, json.decoder, json.encoder, json.JSONDecoder, json.JSONEncoder):
            own = {name: value for name, value in vars(one).items() if not name.startswith("__")}
            self._attributes.append((one, own))
        self._recursion = sys.getrecursionlimit()
        # Additions count for same, but are not undone.
        self._grown = [list(first) for _, _, _, first in self._lists]
        self._seen_filters = list(self._filters)
        self._environ: dict[Any, Any] = {}
        self._seen_environ: dict[Any, Any] = {}
        self._files = 0
        self._standard: list[tuple[int, int, tuple[int, int]]] = []  # 0, 1 and 2: a copy, and the identity of the file
        self._marks: list[tuple[int, int]] = []  # of those, by _mark
        self._same = self._look()
        self._exact = False  # same returns True while nothing has changed, whatever the index's imports have done

    def hold(self) -> None:
        """Keeps copies of descriptors 0, 1 and 2, in the worker and before its limits are set, which may forbid such
        numbers."""
        for fd in (0, 1, 2):
            try:
                self._standard.append((fd, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH), _file(fd)))
            except OSError:
                pass  # closed by the index's import
        self._marks = _mark([fd for fd, _, _ in self._standard])

    def begin(self) -> None:
        """Records the worker's own state before its first call."""
        global touched, _assigned
        touched = _assigned = False
        self._environ = dict(os.environ._data)  # type: ignore[attr-defined]  # the texts as the system has them
        self._seen_environ = self._environ
        if _OPEN_MAX >= 0:
            self._files = os.sysconf(_OPEN_MAX)
        try:
            self._exact = self._same()
        except Exception:
            self._exact = False

    def handle(self, number: int, handler: Any, interval: float = 0) -> None:
        """Records a handler that the worker itself has set, and the seconds of its timer."""
        self._handlers[int(number)] = handler
        if interval:
            self._timers[_signal.ITIMER_PROF] = interval

    def _look(self) -> Callable[[], bool]:
        """A function that checks quickly for changes. It binds all names: a tool may replace those of modules."""
        import threading

        watched = [(vars(holder), name, value) for holder, own in self._attributes
                   if holder in (sys, threading, os, warnings) for name, value in own.items()]
        for holder, names in (
            (json, ("loads", "dumps", "load", "dump", "JSONEncoder", "JSONDecoder")),
            (json.JSONEncoder, ("encode", "default")), (json.JSONDecoder, ("decode", "raw_decode")),
            (builtins, ("print", "open", "__import__", "str", "int", "list", "dict", "isinstance", "getattr", "len")),
        ):
            watched += [(vars(holder), name, vars(holder)[name]) for name in names]
        watched += [(sys.modules, name, sys.modules[name]) for name in _NEEDED]
        watched += [(vars(module), name, kept) for module, name, kept, _ in self._lists]
        lists, recursion, size = [kept for _, _, kept, _ in self._lists], sys.getrecursionlimit, len
        snapshot, modules, out, err, filters, limit = (
            self, sys.modules, sys.stdout, sys.stderr, warnings.filters, recursion())

        def same() -> bool:
            for where, name, value in watched:
                if where[name] is not value:
                    return False
            count = size(modules)
            if count != snapshot._count:
                if count < snapshot._count:
                    return False
                snapshot._count = count
            return (
                not touched
                and size(out.__dict__) == 4 and size(err.__dict__) == 4
                and lists == snapshot._grown and filters == snapshot._seen_filters
                and recursion() >= limit and snapshot._stands()
            )

        return same

    def _stands(self) -> bool:
        """Whether 0, 1 and 2 are still the same files. Asks the system each time: a file object closes its descriptor
        in C, where no wrapper sees it."""
        for fd, mark in self._marks:
            if _fcntl(fd, _F_GETSIG) != mark:
                return False
        return bool(self._marks) or all(_file(fd) == file for fd, _, file in self._standard)

    def mend(self) -> bool:
        """Undoes changes. False if that is impossible: this worker must end."""
        try:
            if self._same():
                if _assigned:
                    self._mend_environ()
                return True
        except Exception:
            pass  # something is missing
        for _ in range(3):
            try:
                return self._mend()
            except BaseException:  # noqa: B036 - a handler of the tool's may raise anywhere, until it is gone
                pass
        return not self.retires

    def _mend(self) -> bool:
        global touched
        for name, value in self._builtins.items():
            if builtins.__dict__.get(name) is not value:
                builtins.__dict__[name] = value
        self._mend_signals()
        for holder, own in self._attributes:
            for name, value in own.items():
                if vars(holder).get(name) is not value:
                    setattr(holder, name, value)
        for stream in self._streams:
            for name in [one for one in stream.__dict__ if one not in _PROXY]:
                del stream.__dict__[name]
        for index, (module, name, kept, first) in enumerate(self._lists):
            now = getattr(module, name)
            if now is not kept or now != self._grown[index]:
                kept[:] = _with_additions(first, now if isinstance(now, (list, tuple)) else ())
                setattr(module, name, kept)
                self._grown[index] = list(kept)
        for name, module in self._first_modules.items():
            # Modules imported anew are the tool's affair, except those that all calls need.
            if name not in sys.modules or name in _NEEDED:
                sys.modules[name] = module
        self._count = len(sys.modules)
        self._mend_filters()
        self._mend_environ()
        if sys.getrecursionlimit() < self._recursion:
            sys.setrecursionlimit(self._recursion)
        _umask(self._umask)
        try:
            folder = os.getcwd()
        except OSError:
            folder = ""  # it was removed
        fit = True
        if folder != self._folder:
            try:
                os.chdir(self._folder)
            except OSError:
                fit = False
        for fd, copy, file in self._standard:
            try:
                if _file(fd) == file and (not self._marks or (fd, _fcntl(fd, _F_GETSIG)) in self._marks):
                    continue
            except OSError:
                pass
            os.dup2(copy, fd)
        if self._files and os.sysconf(_OPEN_MAX) < self._files:
            fit = _allow_files(self._files) and fit
        touched = False
        return not self.retires or fit and (self._same() or not self._exact)

    def _mend_signals(self) -> None:
        for timer in _ALARMS:
            if _signal.getitimer(timer)[1] != (seconds := self._timers.get(timer, 0.0)) or not seconds:
                _signal.setitimer(timer, seconds, seconds)
        faulthandler = sys.modules.get("faulthandler")
        if faulthandler is not None:
            faulthandler.cancel_dump_traceback_later()
        for number in _signal.sigpending():
            if number in self._handlers and number != signal.SIGURG:
                _signal.signal(number, _signal.SIG_IGN)  # this discards pending signals
        for number, handler in self._handlers.items():
            if _signal.getsignal(number) is not handler and handler is not None:
                _signal.signal(number, handler)
        _signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _mend_filters(self) -> None:
        now = warnings.filters
        if now == self._seen_filters:
            return
        strict = [one for one in now if one[0] == "error" and one not in self._filters]
        self._seen_filters = _with_additions(self._filters, [one for one in now if one not in strict])
        now[:] = self._seen_filters  # type: ignore[index]  # it is a list
        with warnings.catch_warnings():
            pass  # leaving it discards decisions of removed filters

    def _mend_environ(self) -> None:
        global _assigned
        now: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
        if now == self._seen_environ:
            _assigned = False
            return
        for name, value in self._environ.items():
            found = now.get(name)
            # A longer value, as libraries make of PATH, is an addition, too.
            if found != value and not (found and set(value.split(b":")) <= set(found.split(b":"))):
                os.environ[os.fsdecode(name)] = os.fsdecode(value)
        self._seen_environ = dict(now)
        _assigned = False


def _mark(fds: list[int]) -> list[tuple[int, int]]:
    """Marks open files, which all their descriptors share, by the signal that they would send on request: nothing else
    sets it, and reading it takes a quarter of an fstat. None if the system lacks it."""
    try:
        for fd in fds:
            _fcntl(fd, fcntl.F_SETSIG, signal.SIGRTMAX - fd)
        return [(fd, _fcntl(fd, _F_GETSIG)) for fd in fds]
    except (AttributeError, OSError):
        return []


def _file(fd: int) -> tuple[int, int]:
    """The identity of a descriptor's file: inode and device."""
    found = _fstat(fd)
    return found.st_ino, found.st_dev


def _with_additions(first: list[Any], now: Any) -> list[Any]:
    """now, if it contains all of first. Otherwise first, with the additions of now in front of it or after it, as they
    are in now."""
    if all(one in now for one in first):
        return list(now)
    found = [one for one in now if one in first]
    ahead = list(now).index(found[0]) if found else 0
    before = list(now[:ahead])
    return before + first + [one for one in now[ahead:] if one not in first]


def _allow_files(wanted: int) -> bool:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY:
        hard = max(hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return False
    return True
