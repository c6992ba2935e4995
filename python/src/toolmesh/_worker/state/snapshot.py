"""State that calls of one worker share beyond the index's own modules, as it was before the first of them: what a call
changed of it is put back when the call is over.

Between two calls same looks whether anything differs, in about a microsecond and after the answer is written; only then
mend does the work. What can be seen in no such time (timers, handlers, the signal mask, the working folder) is noted by
the functions that change it. Additions stay, such as folders in sys.path, modules and variables: libraries make them on
first use, once.
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

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SPENT = 75  # exit status of a worker that ends because something cannot be put back; the Go side says the same

touched = False  # a function that watch has wrapped was called
_assigned = False  # one that sets variables of the environment was
_ALARMS = tuple(getattr(_signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"))
# Signals without handlers of Python: faulthandler's, and those that can have none.
_FATAL = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGKILL, signal.SIGSTOP}
_OPEN_MAX = os.sysconf_names.get("SC_OPEN_MAX", -1)
_NEEDED = ("json", "os", "sys", "builtins", "signal", "threading")  # modules that all calls need as they are
_PROXY = ("_outlet", "_flag", "_fd", "buffer")  # what a stream of ours has of its own
_umask, putenv = os.umask, os.putenv  # the system's own: watch replaces what os has
_fstat = os.fstat  # a tool may replace what os has
_fcntl = fcntl.fcntl
_F_GETSIG = getattr(fcntl, "F_GETSIG", -1)
HIGH = 200  # the worker's own descriptors have numbers from here on, out of a tool's way


def watch() -> None:
    """Has the functions that change what only the system knows note that they were
    called. Before any code of the index is imported, which may take them by name."""
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
    """The state of a worker as it is to be between calls. Made in the zygote, when
    all is imported: each page that a worker writes to is copied for it."""

    def __init__(self) -> None:
        import threading

        mask = _umask(0o77)
        _umask(mask)
        self._umask = mask
        self.retires = True  # mend may say that this worker is fit for no other call
        self._handlers = {int(one): _signal.getsignal(one) for one in signal.valid_signals() if one not in _FATAL}
        self._handlers[int(signal.SIGCHLD)] = _signal.SIG_DFL  # the zygote's is not for its workers
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
        # Additions count for same, and are not put back.
        self._grown = [list(first) for _, _, _, first in self._lists]
        self._seen_filters = list(self._filters)
        self._environ: dict[Any, Any] = {}
        self._seen_environ: dict[Any, Any] = {}
        self._files = 0
        self._standard: list[tuple[int, int, tuple[int, int]]] = []  # 0, 1 and 2: a copy, and which file it is
        self._marks: list[tuple[int, int]] = []  # of those, by _mark
        self._same = self._look()
        self._exact = False  # same says yes while nothing has changed, whatever the index's imports have done

    def hold(self) -> None:
        """Keeps copies of descriptors 0, 1 and 2, in the worker and before its limits
        are set, which may allow no such numbers."""
        for fd in (0, 1, 2):
            try:
                self._standard.append((fd, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH), _file(fd)))
            except OSError:
                pass  # the index's import has closed it
        self._marks = _mark([fd for fd, _, _ in self._standard])

    def begin(self) -> None:
        """In the worker, before its first call: what is its own."""
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
        """Takes a handler that the worker itself has set, and the seconds of its timer."""
        self._handlers[int(number)] = handler
        if interval:
            self._timers[_signal.ITIMER_PROF] = interval

    def _look(self) -> Callable[[], bool]:
        """A function that tells whether all is as it was, as far as that is quickly seen. It looks
        at names that it has itself: a tool may have replaced the modules'."""
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
        """Whether 0, 1 and 2 are the files that they were. Asked of the system each time: a file object closes its
        descriptor in C, where nothing can take note of it."""
        for fd, mark in self._marks:
            if _fcntl(fd, _F_GETSIG) != mark:
                return False
        return bool(self._marks) or all(_file(fd) == file for fd, _, file in self._standard)

    def mend(self) -> bool:
        """Puts back what is not as it was. False when that cannot be done: this worker is fit for no other call."""
        try:
            if self._same():
                if _assigned:
                    self._mend_environ()
                return True
        except Exception:
            pass  # something is not even there
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
            # One that was imported anew is the tool's affair, but for those that all need.
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
                _signal.signal(number, _signal.SIG_IGN)  # which forgets what waits
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
            pass  # leaving it forgets what was decided by the filters that are gone

    def _mend_environ(self) -> None:
        global _assigned
        now: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
        if now == self._seen_environ:
            _assigned = False
            return
        for name, value in self._environ.items():
            found = now.get(name)
            # One that was lengthened, as libraries do with PATH, is an addition too.
            if found != value and not (found and set(value.split(b":")) <= set(found.split(b":"))):
                os.environ[os.fsdecode(name)] = os.fsdecode(value)
        self._seen_environ = dict(now)
        _assigned = False


def _mark(fds: list[int]) -> list[tuple[int, int]]:
    """Marks open files, which all their descriptors share, by the signal that each would send if it were asked to send
    any: nothing else sets it, and a look at it takes a quarter of an fstat. None where the system has no such thing."""
    try:
        for fd in fds:
            _fcntl(fd, fcntl.F_SETSIG, signal.SIGRTMAX - fd)
        return [(fd, _fcntl(fd, _F_GETSIG)) for fd in fds]
    except (AttributeError, OSError):
        return []


def _file(fd: int) -> tuple[int, int]:
    """The file of a descriptor: inode and device."""
    found = _fstat(fd)
    return found.st_ino, found.st_dev


def _with_additions(first: list[Any], now: Any) -> list[Any]:
    """now, where all of first is in it; else first, with what else is in now: in
    front of it what was in front of all of it, behind it the rest."""
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
