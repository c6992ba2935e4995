"""Frames between agent and worker: a 16-byte header and a raw body.

Header, little-endian: u32 body length, u8 type, u8 flags, u16 tool slot, u64 call id. docs/worker-protocol.md describes
them, the Go package ``executor/internal/frame`` is the other side; a test there compares the numbers of all three.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    JSON: TypeAlias = Any  # None, bool, int, float, str, list[JSON] or dict[str, JSON]
    Frame: TypeAlias = tuple[int, int, int, int, bytes]  # type, flags, slot, call id, body
else:
    JSON = Frame = object

VERSION = 5  # of the protocol between the agent and its processes; each change increments it
HEADER = struct.Struct("<IBBHQ")
HEADER_SIZE = 16
NUMBER, NUMBERS = struct.Struct("<i"), struct.Struct("<ii")  # bodies of FORKED and EXITED

# Agent to worker.
CALL = 1  # body: arguments object, or with META a u32 length, a JSON object, the arguments
CANCEL = 2  # no body: cancel the call of this id
CREDIT = 3  # body: u32 more bytes that a stream may send
EXIT = 4  # no body: end when idle
PING = 5
NESTED_RESULT = 8  # terminal of a nested call; its id is the nested call's
NESTED_ERROR = 9  # likewise; body: the error object
NESTED_ITEM = 10  # one item of a nested stream
NESTED_END = 11  # terminal of a nested stream

# Worker to agent.
READY = 16  # body: JSON about the worker
RESULT = 17  # terminal; body: the result's JSON
ERROR = 18  # terminal; body: JSON, see failures.py
YIELD = 19  # one item of a stream
END = 20  # terminal of a stream
LOG = 21  # output of a call; flags say which kind
PONG = 22
NESTED_CALL = 24  # the id is the nested call's; body: u32 length, a JSON object, the arguments
NESTED_CANCEL = 25  # no body: its answer is no longer awaited
NESTED_CREDIT = 26  # body: u32 more bytes that a nested stream may send

# Between agent and zygote.
HELLO = 79  # the zygote's first; body: i32 VERSION
SETUP = 64
FORK = 65  # the id is the worker's; body: JSON, with the worker's descriptors
BECOME = 66  # likewise
IMPORTING = 80
DESCRIBED = 81
FORKED = 82  # the worker's id; body: i32 process id, or with FAILED the reason for the failure
EXITED = 83  # the worker's id; body: i32 exit code, i32 signal; the code is -1 with a signal
CONFINED = 84  # zygote to agent

# Flags of FORKED.
HANDLE = 1  # a pidfd comes with it
FAILED = 2

# Flags of CALL; of NESTED_CALL the first.
STREAM = 1
COLLECT = 2
META = 4
UNTIL = 8  # the body begins with the end of the call's time, u64 nanoseconds of CLOCK_BOOTTIME

# Flags of NESTED_CALL.
BATCH = 2  # no tool: the arguments are a list of calls
DESCRIBE = 4  # the result is the tool's description
TASK = 8  # the tool is a verb of durable tasks, the arguments its request
FILE = 16  # no tool: bytes of a file go to the agent, or with STREAM come from there

# Flags of a terminal.
RAW = 1  # output past sys.stdout to fd 1 or 2 waits in their pipes
SPENT = 2  # the worker can take no other call

# Flags of LOG.
LOG_STDOUT = 1
LOG_STDERR = 2
LOG_RECORD = 3  # body is JSON: level, logger, message
LOG_PROGRESS = 4  # body is JSON: message, fields


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Writes all of data, even if signals arrive."""
    sent = os.write(fd, data)
    size = len(data)
    while sent < size:
        data = memoryview(data)[sent:]
        size -= sent
        sent = os.write(fd, data)


_MANY = 1000  # pieces of a frame that are counted with each read: pipes may hold as little as a page


class Reader:
    """Splits a byte stream into frames. One thread at a time.

    A tool's own signal handlers may raise anywhere in it: the call that reads bytes keeps them, and a frame stays until
    it is passed on. So no handler can desynchronise the stream.
    """

    __slots__ = ("fd", "_chunks", "_need")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._chunks: list[bytes] = []  # what was read and not passed on
        self._need = HEADER_SIZE  # bytes of the next frame, as far as known

    def read(self, least: int = 1 << 16) -> bool:
        """Reads once, at most least bytes or what the next frame lacks; False at the end."""
        missing = self._need - sum(map(len, self._chunks))
        self._chunks.extend(map(os.read, (self.fd,), (max(least, min(missing, 1 << 20)),)))
        return self._chunks[-1] != b""

    def give(self, to: Callable[[Frame], None]) -> bool:
        """Passes the next frame on, if it was read."""
        chunks = self._chunks
        enough = sum(map(len, chunks)) >= self._need
        if len(chunks) > (1 if enough else _MANY):
            chunks[:] = [b"".join(chunks)]
        if not enough:
            return False
        data = chunks[0]
        length, kind, flags, slot, call = HEADER.unpack_from(data)
        end = HEADER_SIZE + length
        if len(data) < end:
            self._need = end
            return False
        self._need = HEADER_SIZE
        to((kind, flags, slot, call, data[HEADER_SIZE:end]))
        chunks[:] = [data[end:]] if len(data) > end else []
        return True

    def take(self, to: Callable[[Frame], None]) -> bool:
        """Waits for the next frame and passes it on; False at the end."""
        while not self.give(to):
            if not self.read():
                return False
        return True

    def next(self) -> Frame | None:
        """The next frame as (type, flags, slot, id, body), or None at the end. No tool's code runs meanwhile."""
        if not self._chunks:
            data = os.read(self.fd, 1 << 16)
            if int.from_bytes(data[:4], "little") == len(data) - HEADER_SIZE:  # most calls are one frame at a time
                _, kind, flags, slot, call = HEADER.unpack_from(data)
                return kind, flags, slot, call, data[HEADER_SIZE:]
            self._chunks.append(data)
        found: list[Frame] = []
        return found[0] if self.take(found.append) else None


class FrameError(Exception):
    """The agent sent a frame that this version does not know."""
