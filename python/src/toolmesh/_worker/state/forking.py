"""Whether a process may be forked, and which state a fork must renew."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

# Modules whose state does not survive a fork, and what breaks. Importing them is enough: they start threads, open
# devices or take locks on their own, at unknown times. A name includes all modules below it.
UNSAFE_MODULES = (
    ("grpc._cython", "its channels hang in a forked process"),
    ("tensorflow.python", "its thread pools are gone in a forked process"),
    ("jaxlib", "it is multithreaded, and deadlocks in a forked process"),
    ("cupy", "CUDA cannot be used in a forked process"),
    ("pycuda", "CUDA cannot be used in a forked process"),
    ("numba.cuda.cudadrv.driver", "CUDA cannot be used in a forked process"),
    ("pyopencl", "its contexts are invalid in a forked process"),
    ("paddle", "CUDA cannot be used in a forked process"),
    ("mxnet", "its engine's threads are gone in a forked process"),
    ("polars", "its thread pool is gone in a forked process"),
    ("ray", "its connections are shared with the forked process"),
    ("objc", "the system forbids a fork after its frameworks were used"),
)


def unsafe(ours: int) -> str:
    """Why this process must not be forked, for people; empty if it may. ours is the descriptor of the agent's
    socket."""
    count = threads()
    if count > 1:
        return f"{count} threads run after the imports"
    for name, reason in UNSAFE_MODULES:
        if name in sys.modules:
            return f"{name.partition('.')[0]} is imported: {reason}"
    torch = sys.modules.get("torch")
    if torch is not None:
        try:
            if torch.cuda.is_initialized():
                return "torch has initialised CUDA, which cannot be used in a forked process"
        except Exception:
            pass
    peer = _connection(ours)
    if peer:
        return f"a connection to {peer} was opened at import: forked processes would share it"
    return ""


def threads() -> int:
    """The number of threads of this process, including our own."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        import threading

        return threading.active_count()


def _connection(ours: int) -> str:
    """The peer of a connection that this process holds; empty if it has none. Unnamed socket pairs, as event loops have
    them, do not count."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return ""
    import _socket
    import stat

    for name in names:
        fd = int(name)
        try:
            if fd == ours or not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            copy = _socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        try:
            peer = copy.getpeername()
        except OSError:
            peer = ""
        finally:
            copy.close()
        if isinstance(peer, tuple) and peer:
            return f"{peer[0]} port {peer[1]}" if len(peer) > 1 else str(peer[0])
        if peer and not isinstance(peer, tuple):
            return os.fsdecode(peer)
    return ""


_forks = False  # fork is under way


def omit_fork_handlers() -> None:
    """Imports threading and logging so that their fork handlers can be left out of forks by fork: they are half of the
    cost. Call it before any other import of them; later it changes nothing."""
    register = os.register_at_fork

    def registered(**hooks: Callable[[], object]) -> None:
        register(**{when: _unless_ours(hook) for when, hook in hooks.items()})

    os.register_at_fork = registered  # type: ignore[assignment]  # of these two, which name their arguments
    try:
        import logging  # noqa: F401
        import threading  # noqa: F401
    finally:
        os.register_at_fork = register


def _unless_ours(hook: Callable[[], object]) -> Callable[[], None]:
    def unless() -> None:
        if not _forks:
            hook()

    return unless


def fork() -> int:
    """os.fork for a process with one thread that holds no lock of threading or logging: the child needs no new ones."""
    global _forks
    _forks = True
    try:
        return os.fork()
    finally:
        _forks = False


def renew() -> None:
    """Renews, in the child, the state that fork copied. Copies of one process must not draw the same random numbers:
    the random module renews itself, and the system's source has no state. numpy's global generator and the names of
    temporary files must be renewed."""
    main = getattr(sys.modules.get("threading"), "_main_thread", None)
    if main is not None and hasattr(main, "_native_id"):
        main._native_id = os.getpid()
    random = sys.modules.get("numpy.random")
    if random is not None:
        try:
            random.seed()
        except Exception:
            pass
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None and hasattr(tempfile, "_name_sequence"):
        tempfile._name_sequence = None  # type: ignore[attr-defined]  # private to it
