"""Frames between agent and worker: a 16-byte header and a raw body.

Header, little-endian: u32 body length, u8 type, u8 flags, u16 tool slot, u64 call id. docs/worker-protocol.md describes
them, the Go package ``executor/internal/frame`` is the other side; a test there compares the numbers of all three.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    JSON: TypeAlias = Any  # None, bool, int, float, str, list[JSON] or dict[str, JSON]
    Frame: TypeAlias = tuple[int, int, int, int, bytes]  # type, flags, slot, call id, body

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


class Reader:
    """Splits a byte stream into frames. One reader, one thread."""

    __slots__ = ("fd", "_buffer", "_chunks")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._buffer = b""
        self._chunks: list[bytes] = []  # of take: bytes read after the buffer

    def next(self) -> Frame | None:
        """The next frame as (type, flags, slot, id, body), or None at the end.

        Never interrupted by an exception of our signal handlers: none raises while no tool runs.
        """
        buffer = self._buffer
        while len(buffer) < HEADER_SIZE:
            data = os.read(self.fd, 65536)
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
                data = os.read(self.fd, max(65536, min(end - have, 1 << 20)))
                if not data:
                    return None
                parts.append(data)
                have += len(data)
            buffer = b"".join(parts)
        self._buffer = buffer[end:]
        return kind, flags, slot, call, buffer[HEADER_SIZE:end]

    def take(self, give: Callable[[Frame], None]) -> bool:
        """Reads until there is a frame and passes it to give; False at the end.

        For reads while a tool's code is on the stack, whose own signal handlers may raise anywhere: the call that reads
        bytes keeps them, and a frame stays until it is passed on. So no handler can desynchronise the stream.
        """
        need = HEADER_SIZE
        while True:
            have = len(self._buffer) + sum(map(len, self._chunks))
            if have >= need:
                self.settle()
                length, kind, flags, slot, call = HEADER.unpack_from(self._buffer)
                need = end = HEADER_SIZE + length
                if have >= end:
                    give((kind, flags, slot, call, self._buffer[HEADER_SIZE:end]))
                    self._buffer = self._buffer[end:]
                    return True
            # In one step of the interpreter: read, and keep the bytes.
            self._chunks.extend(map(os.read, (self.fd,), (max(65536, min(need - have, 1 << 20)),)))
            if not self._chunks[-1]:
                return False

    def settle(self) -> None:
        """Moves the unconsumed bytes of take to the beginning of next's buffer."""
        if self._chunks:
            # Two stores without a call between them: no handler runs there.
            self._buffer, self._chunks = b"".join((self._buffer, *self._chunks)), []


class FrameError(Exception):
    """The agent sent a frame that this version does not know."""
