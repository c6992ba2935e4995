"""Frames between agent and worker: a 16-byte header and a raw body.

Header, little-endian: u32 body length, u8 type, u8 flags, u16 tool slot,
u64 call id. The Go side is the package ``executor/frame``; both hold the same
numbers, and a test of the executor compares them.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import TypeAlias

    Frame: TypeAlias = tuple[int, int, int, int, bytes]  # type, flags, slot, call id, body

HEADER = struct.Struct("<IBBHQ")
HEADER_SIZE = 16

# Agent to worker.
CALL = 1  # body: arguments object, or with META a u32 length, a JSON object, the arguments
CANCEL = 2  # no body: the call of this id is to stop
CREDIT = 3  # body: u32 bytes that a stream may send on top
EXIT = 4  # no body: end when idle
PING = 5

# Worker to agent.
READY = 16  # body: JSON about the worker
RESULT = 17  # terminal; body: the result's JSON
ERROR = 18  # terminal; body: JSON, see failures.py
YIELD = 19  # one item of a stream
END = 20  # terminal of a stream
LOG = 21  # output of a call; flags say which kind
PONG = 22

# Between agent and zygote.
SETUP = 64
FORK = 65
BECOME = 66
IMPORTING = 80
DESCRIBED = 81
FORKED = 82
EXITED = 83

# Flags of CALL.
STREAM = 1
COLLECT = 2
META = 4

# Flags of a terminal.
RAW = 1  # something was written past sys.stdout to fd 1 or 2 and waits in their pipes
SPENT = 2  # the worker is not fit for another call

# Flags of LOG.
LOG_STDOUT = 1
LOG_STDERR = 2
LOG_RECORD = 3  # body is JSON: level, logger, message


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Writes all of data, whatever signals arrive."""
    sent = os.write(fd, data)
    size = len(data)
    while sent < size:
        data = memoryview(data)[sent:]
        size -= sent
        sent = os.write(fd, data)


class Reader:
    """Cuts a byte stream into frames. One reader, one thread."""

    __slots__ = ("_fd", "_buffer")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""

    def next(self) -> Frame | None:
        """The next frame as (type, flags, slot, id, body), or None at the end.

        Never raises from a signal handler of ours: none of them raises while
        no tool runs.
        """
        buffer = self._buffer
        while len(buffer) < HEADER_SIZE:
            data = os.read(self._fd, 65536)
            if not data:
                return None
            buffer = buffer + data if buffer else data
        length, kind, flags, slot, call = HEADER.unpack_from(buffer)
        end = HEADER_SIZE + length
        have = len(buffer)
        if have == end:
            self._buffer = b""
            return kind, flags, slot, call, buffer[HEADER_SIZE:]
        if have < end:
            parts = [buffer]
            while have < end:
                data = os.read(self._fd, max(65536, min(end - have, 1 << 20)))
                if not data:
                    return None
                parts.append(data)
                have += len(data)
            buffer = b"".join(parts)
        self._buffer = buffer[end:]
        return kind, flags, slot, call, buffer[HEADER_SIZE:end]


class FrameError(Exception):
    """The agent sent what this version does not know."""
