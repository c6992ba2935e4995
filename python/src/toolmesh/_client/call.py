"""Types shared by the parts of the client: a call, a pending request, a node, a stored value."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import os
import time
import typing
from collections.abc import Coroutine, Mapping
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from .._core import errors
from .._core import files as _files
from . import names
from .answers import timed_out
from .broker import Broker
from .clock import FOREVER

T = typing.TypeVar("T")

SILENCE = 2.5  # seconds without a keepalive after which a node may be lost
STALLED = 0.5  # how late a wait may end before this process counts as frozen: then it waits anew
AGAIN = ".again"  # suffix of the inbox of a repeated request: a 503 to it is not one to the first


def number(text: str) -> int | None:
    """The number in a header, else None: str.isdigit also accepts digits that int refuses."""
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None


def new_rpc_id(prefix: str = "rpc_") -> str:
    """A new id for a call: a UUID of version 7, as in the mesh's other clients."""
    drawn, rest = divmod(int.from_bytes(os.urandom(10), "big"), 1 << 62)
    number = time.time_ns() // 1_000_000 << 80 | 7 << 76 | (drawn & 0xFFF) << 64 | 2 << 62 | rest
    return f"{prefix}{number:032x}"


class Ref(typing.NamedTuple):
    """The reference to a value in the store."""

    name: str
    digest: str

    @classmethod
    def of(cls, headers: Mapping[str, str] | None) -> Ref | None:
        """The reference in a message's headers."""
        name = (headers or {}).get("Mesh-Ref", "")
        return cls(name, (headers or {}).get("Mesh-Digest", "")) if name else None

    @property
    def ident(self) -> str:
        """The name without its session."""
        return self.name.partition(".")[2]


@dataclasses.dataclass(eq=False)
class Place:
    """A node that serves a tool."""

    node: str
    boot: str
    load: float  # the used share of its slots, as it reports
    slots: int
    weight: float
    ours: int = 0  # our own calls there
    full: float = 0.0  # until when it is busy, by time.monotonic

    def taken(self) -> float:
        """The used share of its slots, as far as known."""
        return max(self.load, self.ours / self.slots)


@dataclasses.dataclass
class Call:
    """A request and its options. Times are seconds."""

    session: str
    tool: str
    body: bytes
    rpc_id: str
    timeout: float | None = None
    idempotent: bool = False
    isolation: str | None = None
    revision: str | None = None
    no_cache: bool = False
    deadline: float = math.inf  # when the timeout ends, by time.monotonic
    batch: bool = False  # the body is a batch: it goes to no tool and no node
    key: str | None = None  # idempotency key
    place: Place | None = None  # the node to send it to; None: any that the server chooses
    queue: bool = False  # it goes to the queue group
    ref: Ref | None = None  # the reference to the body, if that is too large for a message
    files: list[tuple[str, _files.File]] = dataclasses.field(default_factory=list)  # by their marks in the body
    stored: list[Ref] = dataclasses.field(default_factory=list)  # those in the store
    ran: bool | None = False  # whether an attempt began, or None if unknown
    described: str = ""  # the revision of the caller's description

    def __post_init__(self) -> None:
        if self.timeout is not None:
            self.deadline = time.monotonic() + min(self.timeout, FOREVER)

    def left(self) -> float:
        """The remaining seconds; raises ToolTimeout if none are left."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise timed_out(self.tool, self.timeout or 0, False)
        return left

    def headers(self) -> dict[str, str]:
        found = {"Mesh-Rpc-Id": self.rpc_id, "Mesh-Keepalive": "1", "Mesh-Accept-Ref": "1"}
        if self.ref is not None:
            found["Mesh-Ref"], found["Mesh-Digest"] = self.ref
        if self.timeout is not None:
            found["Mesh-Timeout-Ms"] = str(max(1, int(self.left() * 1000)))
        if self.isolation:
            found["Mesh-Isolation"] = self.isolation
        if self.revision:
            found["Mesh-Revision"] = self.revision
        if self.tool or self.batch:
            found["Mesh-Read"] = "1"
        if self.no_cache:
            found["Mesh-Cache"] = "bypass"
        if self.key is not None:
            found["Mesh-Idempotency-Key"] = self.key
        if self.tool and names.hashed(names.tool(self.tool)):
            found["Mesh-Tool"] = self.tool
        if names.hashed(names.token(self.session)):
            found["Mesh-Session"] = self.session
        return found


@dataclasses.dataclass
class Node:
    """The latest heartbeats of a node."""

    boot: str = ""
    heard: float = 0.0  # time of its last heartbeat
    beats: int = 0  # heartbeats of this boot, in a row
    subscription: Subscription | None = None

    def beat(self, boot: str) -> None:
        now = time.monotonic()
        if boot != self.boot or now - self.heard > SILENCE:
            self.boot, self.beats = boot, 0
        self.heard = now
        self.beats += 1

    def well(self, boot: str) -> bool:
        """Whether its heartbeats say that this boot accepts calls."""
        return not self.boot or self.boot == boot and time.monotonic() - self.heard <= SILENCE


class Pending:
    """A pending request. Each message and each nudge wakes the coroutine that waits for it."""

    def __init__(self, connection: Link, subject: str) -> None:
        self.connection = connection
        self.subject = subject
        self.token = str(next(connection.numbers))
        self.call: Call | None = None
        self.messages: list[Msg] = []
        self.error: errors.MeshError | None = None
        self.node = self.boot = ""
        self.high = 0  # Mesh-High of the last keepalive
        self.sent = self.sign = self.asked = time.monotonic()
        self.sought = 0.0  # when the node of the call was last looked for
        self.quiet = False  # at the last check nothing had arrived, over a working connection
        self._waiter: asyncio.Future[None] | None = None
        self.due = math.inf  # when the wait ends, by the loop's clock
        connection.pending[self.token] = self

    @property
    def inbox(self) -> str:
        """The subject for answers, once connected."""
        return self.connection.inbox + self.token

    def close(self) -> None:
        self.connection.pending.pop(self.token, None)

    def take(self, message: Msg) -> None:
        headers = message.headers
        if headers is not None:
            if not message.data and "Mesh-Keepalive" in headers:
                self.heard(headers)
                return
            if message.subject.endswith(AGAIN) and headers.get("Status") == "503":
                return  # its node is leaving: the liveness check decides whether it ran the call
        self.messages.append(message)
        self.nudge()

    def heard(self, headers: dict[str, str]) -> None:
        """Handles a keepalive."""
        self.sign = time.monotonic()
        if not self.node and headers.get("Mesh-Node") and headers.get("Mesh-Boot"):
            self.node, self.boot = headers["Mesh-Node"], headers["Mesh-Boot"]
            self.connection.listen(self.node)
        self.high = max(self.high, number(headers.get("Mesh-High", "").partition(";")[0]) or 0)

    def fail(self, error: errors.MeshError) -> None:
        self.error = self.error or error
        self.nudge()

    def nudge(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Waits for a message, a nudge, or the end of the time. Silence starts anew if this process was frozen."""
        if self.messages or self.error is not None:
            return
        loop, began = self.connection.loop, time.monotonic()
        self._waiter, self.due = loop.create_future(), loop.time() + seconds
        self.connection.due(self.due)
        try:
            await self._waiter
        finally:
            self._waiter, self.due = None, math.inf
        if (now := time.monotonic()) - began > seconds + STALLED:
            self.sign = now

    async def next(self, until: float) -> Msg | None:
        """The next message; None at that time, by time.monotonic. Raises the request's failure."""
        while not self.messages:
            if self.error is not None:
                raise self.error
            if (left := until - time.monotonic()) <= 0:
                return None
            await self.wait(left)
        return self.messages.pop(0)


class Link(typing.Protocol):
    """A connection, as its parts see it."""

    loop: asyncio.AbstractEventLoop
    inbox: str
    nodes: dict[str, Node]
    pending: dict[str, Pending]
    numbers: itertools.count[int]

    def listen(self, node: str) -> None: ...
    def due(self, when: float) -> None: ...
    def beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]: ...
    async def ready(self) -> Broker: ...
    async def publish(
        self, subject: str, body: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None: ...
    async def registry(self, session: str, verb: str, question: dict[str, Any]) -> dict[str, Any]: ...
