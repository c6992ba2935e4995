"""Processes that a tool leaves behind when its call ends.

Workers and the zygote are subreapers: all processes that a call started, daemons with a new session included, stay
below its worker, and move to the zygote when the worker dies. So both can find and kill them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from os import WNOHANG, waitpid

SHORTEST = 50e-6  # seconds in which no call can start a process: that takes several times as long
PERIOD = 10e-3  # seconds after which to check all the same: a thread may have started one
LONGEST = 3.0  # seconds that processes may keep forking while they are killed

kept: set[int] = set()  # children that the index's import started: they belong to no call


class StillForking(Exception):
    """They fork faster than they can be killed: only ending their whole namespace helps."""


def _reap() -> int:
    """Reaps an ended child: its process id, 0 if none has ended, -1 without children."""
    try:
        return waitpid(-1, WNOHANG)[0]
    except ChildProcessError:
        return -1


def sweep() -> None:
    """Kills and reaps processes left by the call that has just ended. Without children this is one system call."""
    if (found := _reap()) < 0:
        return
    while found > 0:
        found = _reap()
    if found == 0:
        kill(kept)
    _forget_helpers()


def children() -> set[int]:
    """The current child processes."""
    return {pid for pid, ours in _below(()) if ours}


def extra(known: int) -> bool:
    """Whether this single-threaded process may have other children than known."""
    try:
        file = os.open("/proc/thread-self/children", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # If it is no shorter than this, the rest does not matter.
            return len(os.read(file, 16 * (known + 1)).split()) > known
        finally:
            os.close(file)
    except OSError:
        return True


def begin() -> None:
    """In a process that was just forked: its parent's children are not its own. Processes started by fork handlers
    belong to no call."""
    kept.clear()
    if _reap() >= 0:
        kept.update(children())


def kill(known: Collection[int]) -> None:
    """Kills and reaps all processes below this one, except the children in known and their descendants. The parent
    process must kill those that this process may not. Raises StillForking."""
    end = time.monotonic() + LONGEST
    refused: set[int] = set()
    while True:
        found = [(pid, ours) for pid, ours in _below(known) if pid not in refused]
        if not found:
            return
        for pid, _ in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                refused.add(pid)
        for pid, ours in found:
            if ours and pid not in refused:
                try:
                    waitpid(pid, 0)  # its children are ours now
                except ChildProcessError:
                    pass
        if time.monotonic() > end:
            raise StillForking(f"{len(found)} processes are left after {LONGEST:g} s")


def kill_all() -> None:
    """Kills all known processes below this one; if they are unknown, the process group."""
    if not os.path.isdir("/proc/self"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        return
    try:
        kill(())
    except StillForking:
        pass


def _forget_helpers() -> None:
    """Tells multiprocessing that its fork server and its resource tracker have ended. Otherwise it would wait for a
    reaped server, which fails, in this call and all later ones. Then it starts new ones."""
    for name, attribute, fields in (
        ("forkserver", "_forkserver", ("_forkserver_pid", "_forkserver_alive_fd", "_forkserver_address")),
        ("resource_tracker", "_resource_tracker", ("_pid", "_fd")),
    ):
        helper = getattr(sys.modules.get(f"multiprocessing.{name}"), attribute, None)
        pid, open_end = (getattr(helper, field, None) for field in fields[:2])
        if pid is None or open_end is None:
            continue
        try:
            os.kill(pid, 0)
            continue  # started by the import
        except ProcessLookupError:
            pass
        except OSError:
            continue  # alive, but a child of the process that this one was copied from
        for field in fields:
            setattr(helper, field, None)
        try:
            os.close(open_end)
        except OSError:
            pass


def _below(known: Collection[int]) -> Iterator[tuple[int, bool]]:
    """(process id, whether it is our child) of all processes below this one. Ids are those of our namespace: /proc may
    belong to an outer one with other numbers."""
    if sys.platform != "linux":
        return
    try:
        me = int(os.readlink("/proc/self"))
    except (OSError, ValueError):
        return
    depth = 0 if me == os.getpid() else len(_numbers(me))
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    rest = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            below.setdefault(int(rest[1]), []).append(int(name))
    waiting: list[tuple[int, bool]] = [(pid, True) for pid in below.get(me, ())]
    while waiting:
        pid, ours = waiting.pop()
        number = pid
        if depth:
            numbers = _numbers(pid)
            if len(numbers) < depth:
                continue  # it has ended
            number = numbers[depth - 1]
        if ours and number in known:
            continue
        waiting.extend((one, False) for one in below.get(pid, ()))
        yield number, ours


def _numbers(pid: int) -> list[int]:
    """The ids of a process, from the namespace of /proc down to its own."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    return [int(one) for one in line.split()[1:]]
    except OSError:
        pass
    return []
