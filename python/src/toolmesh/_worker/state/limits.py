"""The limits of one call that the worker itself enforces.

Memory has two guards. The kernel refuses a request far above the limit, as a MemoryError in the tool. The agent watches
the memory that the tool really uses, including its children, and the worker checks it once more at the end of the call.
"""

from __future__ import annotations

import os
import resource
import sys

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from ..wire.frames import JSON

# Memory that a tool may reserve above its limit without using it: stacks of threads, rounding of allocators.
HEADROOM = 32 << 20

ROOM = 32  # files that a worker may open before its first call, besides those of its zygote

message = 64 << 20  # max bytes of JSON that the agent accepts at once, whatever the tool's limit
cpu_time = 0.0  # max seconds of processor time of a call, watched by the agent; 0: no limit
memory = 0  # max bytes of memory of a call; 0: no limit
open_files = 0  # max files of a call besides those open before it
_base = 0  # bytes of this process before its first call


def apply(limits: dict[str, JSON], output: int) -> int:
    """Sets the limits of this worker. Returns the largest result in bytes."""
    global cpu_time, memory, message, open_files, _base
    message = output
    cpu_time = limits.get("cpu_time", 0.0)
    own_files = limits.get("open_files", 0)
    if own_files:
        open_files = own_files
        _limit_files(own_files, own_files, _opened(own_files))
    memory = limits.get("memory", 0)
    if memory:
        _base = _status("VmHWM") or _peak()
        used = _status("VmData")
        if used:
            wanted = used + memory + memory // 4 + HEADROOM
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))
    own: int = limits.get("output", output)
    return min(output, own)


def inherit(files: int = 0, most: int = 0) -> None:
    """Sets, in the zygote, the limits of its future workers: the open files, and the max that apply may set."""
    global open_files
    if files:
        open_files = files
        try:
            used = os.dup(1)  # the lowest free one: listing all is slow at an index's start
            os.close(used)
        except OSError:
            used = 3
        _limit_files(files, most + ROOM, used)


def bound(kind: int, most: int) -> None:
    """Limits a resource of the system, unless most is 0 or the limit is lower."""
    if most:
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def exceeded() -> bool:
    """Whether the running call exceeded its memory: no earlier call did, or this worker would have ended."""
    return memory > 0 and _peak() - _base > memory


def usage() -> dict[str, JSON]:
    """The details of an exceeded limit."""
    return {"limit": memory, "peak": max(0, _peak() - _base), "source": "rlimit"}


def _peak() -> int:
    """The peak memory of this process, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _opened(files: int) -> int:
    """How many of the lowest descriptors are open. Our own have high numbers, which a limit does not affect."""
    try:
        return sum(1 for name in os.listdir("/proc/self/fd") if int(name) < files + 16) - 1
    except OSError:
        return 3


def _limit_files(files: int, most: int, used: int) -> None:
    """Limits the files to those in use plus files; the process itself may raise that to most."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted, last = files + used, most + used
    if hard != resource.RLIM_INFINITY:
        wanted, last = min(wanted, hard), min(last, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, last))


def _status(field: str) -> int:
    """A size of this process in bytes, 0 if unknown."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
