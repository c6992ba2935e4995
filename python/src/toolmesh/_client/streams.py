"""A running stream: items in order, each once, despite gaps and lost connections.

Live delivery may lose items. Only Mesh-Seq defines the order, and missing items are read from the store: docs/protocol,
section 5.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable

import nats.errors
from nats.aio.msg import Msg

from .._core import errors
from . import names
from .answers import NoResponders, outdated, result
from .call import SILENCE, Call, Pending, Ref, number
from .connection import TICK, Connection, subject
from .payloads import read

Queue = asyncio.Queue[list[bytes] | Exception | None]

_MOST, _FIRST, _LEAST = 512, 128, 8  # items in flight: max, before their size is known, min
_BYTES = 4 << 20  # bytes in flight, approximately
_CREDIT = 2.0  # seconds after which credit is repeated
_QUIET = 1.25  # seconds of silence after which the store is asked: slightly more than between two keepalives
_GAP, _GAP_MOST = 0.03, 1.0  # seconds for live delivery to fill a gap; doubles
_REPLAY = 5.0  # max seconds of silence in a replay
_FRUITLESS = 8  # how often in a row the store may lack items that are known to exist
_AWAY = 60.0  # max seconds that a stream waits for its own connection
_REST = 3  # how often the store is asked without news after the node is lost


class _Failed(Exception):
    """A stream failed after it had begun: it is not repeated."""

    def __init__(self, error: errors.MeshError) -> None:
        self.error = error


async def pages(link: Connection, call: Call) -> AsyncGenerator[list[bytes], None]:
    """Lists of the next items of a streaming call, as JSON. Raises the stream's error. Leaving it early cancels the
    call."""
    queue: Queue = asyncio.Queue(1)

    async def run() -> None:
        end: Exception | None = None
        try:
            await link.attempts(call, lambda call: Attempt(link, call, queue).run())
        except _Failed as failure:
            end = failure.error
        except Exception as failure:
            end = failure
        await queue.put(end)

    task = link.loop.create_task(run())
    try:
        while True:
            page = await queue.get()
            if page is None:
                return
            if isinstance(page, Exception):
                raise page
            yield page
    finally:
        while not task.done():  # before Python 3.12 wait_for loses a cancel that arrives together with the result
            task.cancel()
            await asyncio.wait([task], timeout=TICK)
        if not task.cancelled():
            task.exception()  # read, so that asyncio does not print it


class Attempt:
    """One attempt of a streaming call. One that is followed by another has yielded nothing. Items that the reader takes
    give the tool credit."""

    def __init__(self, connection: Connection, call: Call, queue: Queue) -> None:
        self.connection = connection
        self.call = call
        self._queue = queue
        self._one = Pending(connection, subject(call))
        self._one.call = call
        self._taken = self._bytes = 0  # items passed to the reader, and their size
        self._next = 1
        self._high = 0  # the highest known Mesh-Seq
        self._waiting: dict[int, tuple[str, bytes, Ref | None]] = {}
        self._away = 0.0  # when its own connection was lost
        self._acked = False
        self._bad: errors.MeshError | None = None
        self._granted = _FIRST
        self._replay: asyncio.Task[None] | None = None
        self._replayed = 0.0  # when the store was last asked, or had answered
        self._fruitless = 0

    @property
    def _begun(self) -> bool:
        return self._acked or self._high > 0

    async def run(self) -> None:
        """Sends the call and passes on all of its items."""
        call, one = self.call, self._one
        granting: asyncio.Task[None] | None = None
        end: Callable[[], object] | None = None
        complete = False
        try:
            headers = {**self.connection.headers(call), "Mesh-Stream": "1", "Mesh-Credit": str(_FIRST)}
            end = await self.connection.subscribe(names.live(call.session, call.rpc_id), self._live)
            granting = self.connection.beside(self._keep_granting())
            await self.connection.send(one, call, headers)
            await self._read(headers)
            complete = True
        except errors.MeshError as failure:
            failure.tool = failure.tool or call.tool
            complete = failure.origin != "caller" or failure.started is False
            if self._begun and failure.started is None:
                failure.started = True
            if self._taken or self._begun and failure.code not in ("node_lost", "worker_crashed"):
                outdated(failure, call.described)
                raise _Failed(failure) from None
            raise
        except NoResponders:
            complete = True
            raise
        finally:
            one.close()
            self._end_replay()
            if end is not None:
                end()
            if granting is not None:
                granting.cancel()
                if not complete:
                    await self.connection.cancel(call, one.node)

    def _live(self, message: Msg) -> None:
        self._one.sign = time.monotonic()
        self._add(message)

    def _add(self, message: Msg) -> None:
        headers = message.headers or {}
        kind, text = headers.get("Mesh-Chunk", ""), headers.get("Mesh-Seq", "")
        seq = number(text)
        if kind not in ("data", "complete", "error") or seq is None:
            said = f"a chunk of the stream has Mesh-Chunk {kind!r} and Mesh-Seq {text!r}"
            self._bad = errors.error("protocol_error", said, origin="caller")
        else:
            self._high = max(self._high, seq)
            if seq >= self._next:
                ref = None if message.data or kind != "data" else Ref.of(headers)
                self._waiting.setdefault(seq, (kind, message.data, ref))
        self._one.nudge()

    async def _hand_out(self) -> bool:
        """Passes the available items on in order, and waits for the reader; True at the end."""
        page: list[bytes] = []
        end: tuple[str, bytes] | None = None
        while end is None and self._next in self._waiting:
            kind, body, ref = self._waiting.pop(self._next)
            self._next += 1
            if kind != "data":
                end = kind, body
                break
            if ref is not None:  # it stays in the store until it expires, like its chunk
                body = await read(self.connection, self.call.session, ref, self._one.node, self.call.deadline)
            page.append(body)
            self._bytes += len(body)
        if page:
            await self._queue.put(page)
            self._taken += len(page)
            if self._granted - self._taken < self._window() // 2:
                await self._grant()
        if end is not None and end[0] == "error":
            raise _ended(end[1])
        return end is not None

    def _window(self) -> int:
        if not self._taken:
            return _FIRST
        return min(max(_BYTES // max(self._bytes // self._taken, 1), _LEAST), _MOST)

    async def _grant(self) -> None:
        if self._one.node:
            self._granted = self._taken + self._window()
            await self.connection.publish(names.control(self.call.session, self.call.rpc_id, self._one.node),
                                          json.dumps({"type": "credit", "seq": self._granted}).encode())

    async def _keep_granting(self) -> None:
        """Repeats the credit, also while the reader takes nothing: without it the node would close the stream."""
        while True:
            await asyncio.sleep(_CREDIT)
            await self._grant()

    async def _read(self, headers: dict[str, str]) -> None:
        call, connection, one = self.call, self.connection, self._one
        generation = connection.generation
        gap_since, gap_wait, before = 0.0, _GAP, 0
        while not await self._hand_out():
            if self._bad is not None:
                raise self._bad
            if self._taken > before:
                before, gap_since, gap_wait, self._fruitless = self._taken, 0.0, _GAP, 0
            self._high = max(self._high, one.high)
            missing = self._high >= self._next and self._next not in self._waiting or self._acked and self._next == 1
            await connection.news(one, call, gap_wait if missing else TICK)
            while one.messages:
                if await self._replied():
                    return
            now = time.monotonic()
            ask = self._begun and now - max(one.sign, self._replayed) > _QUIET
            if missing:
                gap_since = gap_since or now
                if now - gap_since >= gap_wait:
                    ask, gap_since, gap_wait = True, 0.0, min(2 * gap_wait, _GAP_MOST)
            if connection.generation != generation and connection.connected:
                generation, ask = connection.generation, True
                self._end_replay()
            if await self._lost():
                return
            await connection.resend(one, call, headers)
            if ask and self._replay is None and (self._begun or one.node) and connection.connected:
                self._replay = connection.beside(self._ask_store())

    async def _replied(self) -> bool:
        """Handles an answer on the reply subject: the acknowledgement, or an error that ends the stream. After the
        acknowledgement such an error could not be stored."""
        message = self._one.messages.pop(0)
        try:
            result(message)
        except errors.MeshError:
            if self._acked and await self._rest():
                return True
            raise
        self._acked = True
        if message.headers:
            self._one.heard(message.headers)
        return False

    async def _lost(self) -> bool:
        """Whether the node is lost and the store had all of the stream; raises NodeLost if the store had less."""
        try:
            await self.connection.alive(self._one)
        except errors.NodeLost:
            if not self._begun or not await self._rest():
                raise
            return True
        except errors.Unavailable:
            self._away = self._away or time.monotonic()
            if not self._begun or time.monotonic() - self._away > _AWAY:
                raise  # else the stream continues after the reconnect
        else:
            self._away = 0.0
        return False

    async def _rest(self) -> bool:
        """Yields the stored items of a stream that has ended; returns whether the end was among them."""
        self._end_replay()
        tries = 0
        while tries < _REST:
            if await self._hand_out():
                return True
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ask_store(), SILENCE / 5)
            if self._bad is not None:
                raise self._bad
            tries = 0 if self._next in self._waiting else tries + 1
        return await self._hand_out()

    # The store.

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.cancel()
            self._replay = None

    async def _ask_store(self) -> None:
        """Adds the stored items from the next one on."""
        asked, first = Pending(self.connection, names.replay(self.call.session, self.call.rpc_id)), self._next
        try:
            self._replayed = time.monotonic()
            nc = await self.connection.ready()
            await nc.publish(asked.subject, json.dumps({"from_seq": first}).encode(), asked.inbox)
            while (message := await asked.next(time.monotonic() + _REPLAY)) is not None:
                if "Mesh-Chunk" not in (message.headers or {}):
                    self._settle(message, first)
                    return
                self._add(message)
        except (NoResponders, errors.Unavailable, errors.PermissionDenied, nats.errors.Error):
            pass  # live delivery may have all of it
        except errors.MeshError as failure:
            self._bad = failure
        finally:
            asked.close()
            self._replayed = time.monotonic()
            if self._replay is asyncio.current_task():
                self._replay = None
            self._one.nudge()

    def _settle(self, message: Msg, first: int) -> None:
        """Handles the end of the store's answer to a question for the items from the first one on."""
        result(message)
        high, _, terminal = (message.headers or {}).get("Mesh-High", "0").partition(";")
        last = number(high) or 0
        self._high = max(self._high, last + 1 if terminal else last)
        if self._next in self._waiting or self._next > first:
            self._fruitless = 0
        elif terminal or not last and self._taken:
            # All of it had been stored. A gap in a running stream differs: its node sends again.
            self._fruitless += 1
            if self._fruitless >= _FRUITLESS:
                self._bad = errors.error("stream_expired", f"items from {self._next} on are no longer kept",
                                         origin="caller", started=True)


def _ended(body: bytes) -> errors.MeshError:
    with contextlib.suppress(ValueError, AttributeError):  # it is no error object
        return errors.failure(body, "")
    return errors.error("protocol_error", "the error that ended the stream cannot be read", origin="caller")
