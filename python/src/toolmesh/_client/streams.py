"""A running stream: items in order, each once, despite gaps and lost connections.

Live delivery may lose items. Only Mesh-Seq defines the order, and missing items are read from the store: docs/protocol,
section 5.
"""

from __future__ import annotations

import asyncio
import json
import time
import typing

from .._core import errors, values
from . import names
from .answers import NoResponders, outdated, result, timed_out
from .call import SILENCE, STALLED, Pending, Ref, number
from .connection import TICK, subject
from .payloads import read

if typing.TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nats.aio.msg import Msg

    from .call import Call
    from .connection import Connection

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


class Stream:
    """One streaming call. Items that the reader takes give the tool credit."""

    def __init__(self, connection: Connection, call: Call) -> None:
        self.connection = connection
        self.call = call
        self.taken = 0  # items passed to the reader
        self._bytes = 0
        self._next = 1
        self._high = 0  # the highest known Mesh-Seq
        self._waiting: dict[int, tuple[str, bytes, Ref | None]] = {}
        self._arrived = 0.0
        self._away = 0.0  # when its own connection was lost
        self._acked = False
        self._bad: errors.MeshError | None = None
        self._granted = _FIRST
        self._replay: Pending | None = None
        self._replay_from = self._fruitless = 0
        self._one: Pending | None = None

    async def pages(self) -> AsyncGenerator[list[bytes], None]:
        """Lists of the next items, as JSON. Raises the stream's error. Leaving it early cancels the call."""
        queue: asyncio.Queue[list[bytes] | BaseException | None] = asyncio.Queue(1)
        # The attempts are those of any call: an attempt that is repeated has yielded nothing.
        async def run() -> None:
            try:
                await self.connection.attempts(self.call, lambda call: self._attempt(call, queue))
                await queue.put(None)
            except _Failed as failure:
                await queue.put(failure.error)
            except errors.MeshError as failure:
                await queue.put(failure)

        task = self.connection.loop.create_task(run())
        try:
            while True:
                page = await queue.get()
                if page is None:
                    return
                if isinstance(page, BaseException):
                    raise page
                yield page
        finally:
            while not task.done():  # before Python 3.12 wait_for loses a cancel that arrives together with the result
                task.cancel()
                await asyncio.wait([task], timeout=TICK)
            if not task.cancelled():
                task.exception()  # read, so that asyncio does not print it

    def _begun(self) -> bool:
        return self._acked or self._arrived > 0

    async def _attempt(self, call: Call, queue: asyncio.Queue[typing.Any]) -> None:
        where = subject(call)
        headers = {**self.connection.headers(call), "Mesh-Stream": "1", "Mesh-Credit": str(_FIRST)}
        end = await self.connection.subscribe(names.live(call.session, call.rpc_id), self._live)
        one = self._one = Pending(self.connection, where)
        one.call = call
        complete = False
        try:
            await self.connection.send(one, call, headers)
            await self._read(one, headers, queue)
            complete = True
        except errors.MeshError as failure:
            failure.tool = failure.tool or call.tool
            complete = failure.origin != "caller" or failure.started is False
            if self.taken or self._begun() and failure.code not in ("node_lost", "worker_crashed"):
                outdated(failure, call.described)
                raise _Failed(failure) from None
            raise
        except NoResponders:
            complete = True
            raise
        finally:
            end()
            one.close()
            self._end_replay()
            if not complete:
                await self.connection.cancel(call, one.node)

    def _live(self, message: Msg) -> None:
        self._add(message)
        self._arrived = time.monotonic()
        if self._one is not None:
            self._one.nudge()

    def _add(self, message: Msg) -> None:
        headers = message.headers or {}
        kind, text = headers.get("Mesh-Chunk", ""), headers.get("Mesh-Seq", "")
        seq = number(text)
        if kind not in ("data", "complete", "error") or seq is None:
            said = f"a chunk of the stream has Mesh-Chunk {kind!r} and Mesh-Seq {text!r}"
            self._bad = errors.error("protocol_error", said, origin="caller")
            return
        self._high = max(self._high, seq)
        if seq >= self._next:
            ref = None if message.data or kind != "data" else Ref.of(headers)
            self._waiting.setdefault(seq, (kind, message.data, ref))

    async def _hand_out(self, queue: asyncio.Queue[typing.Any]) -> bool:
        """Passes the available items on in order; True at the end. Waits for the reader, and sends keepalives to the
        node meanwhile."""
        page: list[bytes] = []
        end: tuple[str, bytes] | None = None
        while self._next in self._waiting:
            kind, body, ref = self._waiting.pop(self._next)
            self._next += 1
            if kind != "data":
                end = kind, body
                break
            if ref is not None:
                body = await self._large(ref)
            page.append(body)
            self._bytes += len(body)
        while page:
            try:
                await asyncio.wait_for(queue.put(page), _CREDIT) if queue.full() else queue.put_nowait(page)
            except asyncio.TimeoutError:
                await self._grant()
                continue
            self.taken += len(page)
            if self._granted - self.taken < self._window() // 2:
                await self._grant()
            break
        if end is None:
            return False
        if end[0] == "error":
            raise _ended(end[1])
        return True

    async def _large(self, ref: Ref) -> bytes:
        """An item in the store. It stays there until it expires, like its chunk."""
        node = self._one.node if self._one is not None else ""
        reading = self.connection.loop.create_task(
            read(self.connection, self.call.session, ref, node, self.call.deadline))
        try:
            while not reading.done():
                await asyncio.wait([reading], timeout=_CREDIT)
                if not reading.done():
                    await self._grant()
            return reading.result()
        finally:
            reading.cancel()

    def _window(self) -> int:
        if not self.taken:
            return _FIRST
        return min(max(_BYTES // max(self._bytes // self.taken, 1), _LEAST), _MOST)

    async def _grant(self) -> None:
        one = self._one
        if one is None or not one.node:
            return
        self._granted = self.taken + self._window()
        await self.connection.publish(names.control(self.call.session, self.call.rpc_id, one.node),
                                      json.dumps({"type": "credit", "seq": self._granted}).encode())

    async def _read(self, one: Pending, headers: dict[str, str], queue: asyncio.Queue[typing.Any]) -> None:
        call, connection = self.call, self.connection
        generation = connection.generation
        granted = looked = last_replay = time.monotonic()
        gap_since, gap_wait, before = 0.0, _GAP, 0
        while True:
            if await self._hand_out(queue):
                return
            if self._bad is not None:
                raise self._bad
            if self.taken > before:
                before, gap_since, gap_wait, self._fruitless = self.taken, 0.0, _GAP, 0
            self._high = max(self._high, one.high)
            missing = self._high >= self._next and self._next not in self._waiting or self._acked and self._next == 1
            left = None if call.timeout is None else call.deadline + 1 - time.monotonic()
            if left is not None and left <= 0:
                raise timed_out(call.tool, call.timeout or 0, None)
            wait = min(TICK if not missing else gap_wait, TICK if left is None else left)
            await one.wait(wait)
            now = time.monotonic()
            if now - looked > wait + STALLED:
                one.sign = now  # or the reader was slow
            looked = now
            if one.error is not None:
                raise one.error
            while one.messages:
                if await self._replied(one, queue):
                    return
            if now - granted > _CREDIT:
                granted = now
                await self._grant()
            ask = False
            if missing:
                gap_since = gap_since or now
                if now - gap_since >= gap_wait:
                    ask, gap_since, gap_wait = True, 0.0, min(2 * gap_wait, _GAP_MOST)
            if connection.generation != generation and connection.connected:
                generation, ask = connection.generation, True
                self._end_replay()
            if self._settled():
                last_replay = now
            if self._begun() and now - max(one.sign, self._arrived, last_replay) > _QUIET:
                ask = True
            if await self._lost(one, queue):
                return
            await connection.resend(one, call, headers, self._arrived)
            if ask and self._replay is None and (self._begun() or one.node) and connection.connected:
                last_replay = now
                await self._ask_store()

    async def _replied(self, one: Pending, queue: asyncio.Queue[typing.Any]) -> bool:
        """Handles an answer on the reply subject: the acknowledgement, or an error that ends the stream. After the
        acknowledgement such an error could not be stored."""
        message = one.messages.pop(0)
        try:
            result(message)
        except errors.MeshError:
            if self._acked and await self._rest(queue):
                return True
            raise
        self._acked = True
        if message.headers:
            one.heard(message.headers)
        return False

    async def _lost(self, one: Pending, queue: asyncio.Queue[typing.Any]) -> bool:
        """Whether the node is lost and the store had all of the stream; raises NodeLost if the store had less."""
        try:
            await self.connection.alive(one, max(one.asked, self._arrived))
        except errors.NodeLost:
            if not self._begun() or not await self._rest(queue):
                raise
            return True
        except errors.Unavailable:
            self._away = self._away or time.monotonic()
            if not self._begun() or time.monotonic() - self._away > _AWAY:
                raise  # else the stream continues after the reconnect
        else:
            self._away = 0.0
        return False

    async def _rest(self, queue: asyncio.Queue[typing.Any]) -> bool:
        """Yields the stored items of a stream that has ended; returns whether the end was among them."""
        self._end_replay()
        tries = 0
        while tries < _REST:
            if await self._hand_out(queue):
                return True
            before = self._next
            await self._ask_store()
            until = time.monotonic() + SILENCE / 5
            while self._replay is not None and time.monotonic() < until:
                await self._replay.wait(until - time.monotonic())
                self._settled()
            self._end_replay()
            tries = 0 if self._next > before or self._next in self._waiting else tries + 1
        return await self._hand_out(queue)

    # The store.

    async def _ask_store(self) -> None:
        where = names.replay(self.call.session, self.call.rpc_id)
        self._replay, self._replay_from = Pending(self.connection, where), self._next
        nc = await self.connection.ready()
        await nc.publish(where, json.dumps({"from_seq": self._next}).encode(), self._replay.inbox)

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    def _settled(self) -> bool:
        """Handles an answer of the store; returns whether it is complete."""
        asked = self._replay
        if asked is None:
            return False
        while asked.messages:
            message = asked.messages.pop(0)
            asked.sign = time.monotonic()
            headers = message.headers or {}
            if "Mesh-Chunk" in headers:
                self._add(message)
                continue
            self._end_replay()
            try:
                result(message)
            except NoResponders:
                return True
            except errors.Unavailable:
                return True
            high, _, terminal = headers.get("Mesh-High", "0").partition(";")
            last = number(high) or 0
            self._high = max(self._high, last + 1 if terminal else last)
            if self._next in self._waiting or self._next > self._replay_from:
                self._fruitless = 0
            elif terminal or not last and self.taken:
                # All of it had been stored. A gap in a running stream differs: its node sends again.
                self._fruitless += 1
                if self._fruitless >= _FRUITLESS:
                    raise errors.error("stream_expired", f"items from {self._next} on are no longer kept",
                                       origin="caller", started=True)
            return True
        if time.monotonic() - asked.sign > _REPLAY:
            self._end_replay()
        return False


def _ended(body: bytes) -> errors.MeshError:
    found = values.decode(body)
    told = found.get("error", found) if isinstance(found, dict) else {}
    return errors.rebuilt(told, "")
