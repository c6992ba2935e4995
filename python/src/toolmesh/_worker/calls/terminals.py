"""The ends of calls, for both kinds of worker."""

from __future__ import annotations

import fcntl
import os
import termios
from collections.abc import Sequence
from typing import Any

from ..schemas.binding import Tool
from ..schemas.values import Mismatch, NotSerializable
from ..state import turns
from ..wire.frames import ERROR, JSON, META, RAW, UNTIL, Reader
from . import failures
from .output import Outlet


class TooLarge(Exception):
    """A result or an item is larger than the agent accepts."""

    def __init__(self, size: int, what: str) -> None:
        self.size = size
        self.what = what


class Late(Exception):
    """A call timed out before its worker took it: the worker, or the machine, was frozen."""


def bound(tool: Tool, flags: int, body: bytes) -> tuple[Sequence[Any], dict[str, Any], dict[str, JSON]]:
    """(positional, keyword, meta) of a CALL. unbound turns its exceptions into a body."""
    meta: dict[str, JSON] = {}
    if flags & UNTIL:
        if turns.over(int.from_bytes(body[:8], "little")):
            raise Late
        body = body[8:]
    if flags & META:
        size = 4 + int.from_bytes(body[:4], "little")
        meta, body = tool.decode(body[4:size]), body[size:]
    arguments = tool.decode(body) if body else {}
    if tool.direct and "varargs" not in meta and type(arguments) is dict:
        return (), arguments, meta
    return *tool.bind(arguments, meta.get("varargs"), body), meta


def unbound(failure: BaseException, tool: Tool) -> bytes:
    """The body for arguments that the tool's function cannot take."""
    if isinstance(failure, Late):
        return failures.body("deadline_exceeded", "the call's time was up before its worker began it", False)
    if isinstance(failure, Mismatch):
        return failures.invalid([failure])
    if isinstance(failure, ValueError):
        return failures.invalid(
            [Mismatch("a JSON object", "something else", f"the arguments are not JSON: {failure}")]
        )
    if isinstance(failure, RecursionError):
        return failures.invalid([Mismatch("less nesting", "deeper nesting", "the arguments are nested too deeply")])
    return failures.raised(failure, tool.name)  # raised by code of the tool, such as __post_init__


def forked_by_tool(outlet: Outlet, reader: Reader) -> None:
    """Closes the agent's channel in a process that a tool forked: its outlet has no descriptor any more."""

    def closed() -> None:
        if outlet.fd < 0:
            return  # the zygote forked it, or such a process did
        fds = reader.fd, outlet.fd
        outlet.abandon()
        for fd in fds:
            try:
                os.close(fd)
            except OSError:
                pass

    os.register_at_fork(after_in_child=closed)


def failed(
    failure: BaseException, tool: Tool, limit: int, keyword: dict[str, Any], positional: Sequence[Any]
) -> bytes:
    """The body for an exception of a tool's function or of its result, except a cancellation."""
    if isinstance(failure, NotSerializable):
        return failures.unserializable(failure, tool.name)
    if isinstance(failure, TooLarge):
        return failures.too_large(failure.size, limit, failure.what)
    if isinstance(failure, TypeError):
        step = failure.__traceback__
        while step is not None and step.tb_next is not None:
            step = step.tb_next
        # Raised by the call itself, not inside the tool.
        ours = step is not None and os.path.dirname(step.tb_frame.f_code.co_filename) == os.path.dirname(__file__)
        if ours and not positional and (problems := tool.problems(keyword)):
            return failures.invalid(problems)
    return failures.raised(failure, tool.name)


def no_memory(kind: int, body: bytes) -> bool:
    """Whether a call ended for lack of memory: its memory may never be freed."""
    return kind == ERROR and body.startswith(b'{"code": "worker_out_of_memory"')


def raw_pending() -> int:
    """RAW if output past sys.stdout still waits in the pipes of 1 and 2."""
    none = bytes(4)
    try:
        return RAW if any(fcntl.ioctl(fd, termios.FIONREAD, none) != none for fd in (1, 2)) else 0
    except OSError:
        return 0  # the tool closed it
