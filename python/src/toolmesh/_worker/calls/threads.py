"""The call of a thread: the one that it was started in.

A warm worker serves many sessions one after the other, and a thread may outlive its call. So a thread is bound to its
call when it is started, by a hook in threading.Thread.start; what a ThreadPoolExecutor is given is bound when it is
given, whatever call has started the threads that run it. Threads that C code or _thread starts belong to no call: no
hook tells when they were made.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no stubs
import sys
from _thread import get_ident
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading
    from concurrent.futures import Future

running: ContextVar[int] = ContextVar("toolmesh_call", default=0)
"""The call that the code of this context belongs to: a call's own, and its tasks'."""

_MARK = "_toolmesh_call"  # the attribute of a thread that is bound
_POOLS = "concurrent.futures.thread"
_working: dict[int, int] = {}  # thread -> the call whose work a pool has it do now
_active: dict[int, threading.Thread] = {}  # threading's own
_watched: list[object] = []  # what watch has changed already
_block, _signals = _signal.pthread_sigmask, _signal.valid_signals()  # the system's own: keep replaces what signal has


def block_signals() -> None:
    """Has no signal come to this thread, which is one of ours: what a tool blocks, on
    the main thread, is to wait there, and would end the worker here."""
    _block(_signal.SIG_BLOCK, _signals)


def owner() -> int:
    """The call that the code of this thread belongs to; 0 when nothing tells."""
    ident = get_ident()
    call = _working.get(ident) or running.get()
    if not call:
        thread = _active.get(ident)
        if thread is not None:
            call = thread.__dict__.get(_MARK, 0)
    return call


def watch() -> None:
    """Binds the threads that are started from here on. Before any code of the
    index is imported, which may replace or keep what this changes."""
    import threading
    from functools import wraps

    global _active
    if _watched:
        return
    _active = threading._active  # type: ignore[attr-defined]  # current_thread would make one where there is none
    start = threading.Thread.start

    @wraps(start)
    def bound(self: threading.Thread) -> None:
        if _POOLS not in _watched and _POOLS in sys.modules:
            _watch_pools()
        call = owner()
        if call:
            self.__dict__[_MARK] = call
        start(self)

    threading.Thread.start = bound  # type: ignore[method-assign]
    _watched.append(threading)


def _watch_pools() -> None:
    """Not before somebody has imported them: an index may have a module of the name of one that they need. What the
    first pool is given before this runs on a thread that it starts, for the same call."""
    from functools import wraps

    executor: Any = getattr(sys.modules[_POOLS], "ThreadPoolExecutor", None)
    if executor is None:
        return  # it is being imported
    _watched.append(_POOLS)
    submit: Callable[..., Future[Any]] = executor.submit

    @wraps(submit)
    def bound(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        call = owner()
        return submit(self, _work, call, fn, *args, **kwargs) if call else submit(self, fn, *args, **kwargs)

    executor.submit = bound


def _work(call: int, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    ident = get_ident()
    before = _working.get(ident, 0)
    _working[ident] = call
    try:
        return fn(*args, **kwargs)
    finally:
        if before:
            _working[ident] = before
        else:
            del _working[ident]
