"""The call of a thread: the call that started it.

A warm worker serves many sessions one after the other, and a thread may outlive its call. So a hook in
threading.Thread.start binds each new thread to its call. Work of a ThreadPoolExecutor is bound when it is submitted,
whichever call started the pool's threads. Threads started by C code or _thread belong to no call: no hook sees them
start.
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

_MARK = "_toolmesh_call"  # the attribute of a bound thread
_POOLS = "concurrent.futures.thread"
_working: dict[int, int] = {}  # thread -> the call of the pool's work on it
_active: dict[int, threading.Thread] = {}  # threading's own
_watched: list[object] = []  # objects that watch has patched
_block, _signals = _signal.pthread_sigmask, _signal.valid_signals()  # the originals: keep replaces signal's functions


def block_signals() -> None:
    """Blocks all signals on this thread, which is ours. A signal that a tool has blocked on the main thread must stay
    pending, and would end the worker here."""
    _block(_signal.SIG_BLOCK, _signals)


def owner() -> int:
    """The call of the code on this thread; 0 if unknown."""
    ident = get_ident()
    call = _working.get(ident) or running.get()
    if not call:
        thread = _active.get(ident)
        if thread is not None:
            call = thread.__dict__.get(_MARK, 0)
    return call


def watch() -> None:
    """Binds all threads from now on. Called before any code of the index is imported, which may replace or keep these
    functions."""
    import threading
    from functools import wraps

    global _active
    if _watched:
        return
    _active = threading._active  # type: ignore[attr-defined]  # current_thread would create an object
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
    """Waits until someone imports them: a module of the index may have the name of one that they need. Work that is
    submitted earlier runs on a new thread of the same call."""
    from functools import wraps

    executor: Any = getattr(sys.modules[_POOLS], "ThreadPoolExecutor", None)
    if executor is None:
        return  # the import is in progress
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
