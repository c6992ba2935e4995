"""The limits of one call that a worker itself keeps.

Memory has two guards. The kernel refuses what exceeds the limit by far, as a
MemoryError in the tool; what the tool really touches, its children included,
is watched by the agent, and looked at once more when the call ends.
"""

from __future__ import annotations

import os
import resource
import sys

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from ..wire.frames import JSON

# What a tool may reserve beyond its limit without touching it: stacks of
# threads, mostly, and what allocators round up.
HEADROOM = 32 << 20

message = 64 << 20  # bytes of JSON that the agent takes at once, whatever the tool's own limit
cpu_time = 0.0  # seconds of processor time that a call may take, which the agent watches; 0: no limit
memory = 0  # bytes that a call may take; 0: no limit
open_files = 0  # that a call may open beyond those that are open before it; 0: no limit
_base = 0  # bytes that this process had before its first call


def apply(limits: dict[str, JSON], output: int) -> int:
    """Sets the limits of this worker. Returns the largest result in bytes."""
    global cpu_time, memory, message, open_files, _base
    message = output
    cpu_time = limits.get("cpu_time", 0.0)
    open_files = limits.get("open_files", 0)
    if open_files:
        _limit_files(open_files)
    memory = limits.get("memory", 0)
    if memory:
        _base = _status("VmHWM") or _peak()
        used = _status("VmData")
        if used:
            wanted = used + memory + memory // 4 + HEADROOM
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))
    own: int = limits.get("output", output)
    return min(output, own)


def exceeded() -> bool:
    """Whether the running call took more memory than it may: no call before it did,
    or this worker would be gone."""
    return memory > 0 and _peak() - _base > memory


def usage() -> dict[str, JSON]:
    """The details of a breach."""
    return {"limit": memory, "peak": max(0, _peak() - _base), "source": "rlimit"}


def _peak() -> int:
    """The most memory that this process ever had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _limit_files(files: int) -> None:
    """files more than are open now. Our own descriptors have high numbers, which
    the limit does not take away."""
    try:
        used = sum(1 for name in os.listdir("/proc/self/fd") if int(name) < files + 16) - 1
    except OSError:
        used = 3
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = files + used
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))


def _status(field: str) -> int:
    """A size of this process in bytes, 0 where the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
