"""One connection of one event loop: requests out, answers in, liveness of nodes.

All answers come to one inbox, each with its own token. A call is one message out and one in. Keepalives, and heartbeats
of the nodes that run long calls, serve to detect a lost node: docs/protocol, sections 4, 6 and 7. Nothing here is for
other threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import importlib
import io
import itertools
import json
import logging
import math
import random
import re
import secrets
import time
import typing
from collections.abc import Callable, Coroutine
from typing import Any

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from .._core import errors
from . import finding, names, payloads, routes
from .answers import NoResponders, outdated, refused, result, timed_out, told, unreachable, unserved
from .broker import Broker, taking
from .call import AGAIN, SILENCE, Call, Node, Pending, Ref
from .clock import Clock
from .finding import Found

T = typing.TypeVar("T")

_log = logging.getLogger("toolmesh")
MISSING = 1.3  # seconds after which a keepalive is missed
TICK = 0.1
_MUCH = 64 << 10  # bytes that take some time to be written
_PING = 0.4  # seconds of one wait for the answer to a ping
_NEVER = 10**6  # seconds after which a ping is given up
_MUTE = 3 * SILENCE  # max silence about a call on a connection that brings messages, but no answer to a ping
_WAIT = 10.0  # seconds that a request about a task may wait for its end
_REST = 0.2  # seconds before an unanswered one is repeated
_ANSWER = 5.0  # max seconds of a request to the registry
_OTHERS = 0.3  # seconds before other nodes are asked, too
_LOST = 0.4  # max seconds for which a call with a lost node waits for what the registry says of its tool
_SLACK = 0.005  # max delay of waking a wait
_GRACE = 1.0  # how much longer than its time a call's own answer is awaited
_CONNECTING = 5.0  # seconds
_ATTEMPTS = 6  # max attempts of a call that did not start
_LOSSES = 2  # those of them after a lost node
_BUSY = 0.005  # first pause before an attempt; doubles
_SEEK = 1.0  # seconds between two searches for the node of a call
_CUT = "connection_cut"  # the reason if a call's answer is lost
_NODES = 1024
_ALIASES = 10_000
_DENIED = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE)


class Connection:
    """The connection of one event loop, made at first use."""

    def __init__(self, find: Callable[[], Found], name: str, session: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.pending: dict[str, Pending] = {}
        self.numbers = itertools.count(1)
        self.inbox = ""
        self.generation = 0  # of the link to the server
        self.since = 0.0  # when that was made
        self._find, self._name, self._session = find, name, session
        self._nc: Broker | None = None
        self._opening: asyncio.Task[None] | None = None
        self._denied = ""  # the inbox that we may not subscribe to
        self.nodes: dict[str, Node] = {}
        self._aliases: dict[tuple[str, str], str] = {}
        self._routes = routes.Routes(self)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pinging: asyncio.Task[None] | None = None
        self._began = 0.0  # when the last ping began
        self._last_error: BaseException | None = None
        self._warned: set[str] = set()  # tools with results that did not fit
        self.closed, self._clock = False, Clock()
        self._alarm: asyncio.TimerHandle | None = None  # wakes waits whose time has ended
        self._alarm_at = self._alarmed = 0.0  # its next and its last time, by the loop's clock

    # The link.

    def keep(self) -> None:
        """Closes the connection when its event loop ends without closing it, as in asyncio.run."""
        async def guard() -> None:
            try:
                await self.loop.create_future()
            except asyncio.CancelledError:
                await self.close()

        self.beside(guard())

    def drop(self) -> None:
        self.beside(self.close())

    async def ready(self) -> Broker:
        """The NATS client; Unavailable while there is no link."""
        nc = self._nc
        if self.closed:
            raise refused("unavailable", "the mesh was closed")
        if nc is None or nc.is_closed:
            nc = await self._opened()
        if not nc.is_connected:
            raise refused("unavailable", "the connection to the mesh is lost, and being made again: nothing was sent",
                          retryable=True)
        return nc

    async def _opened(self) -> Broker:
        """The link being made, shared by all waiting coroutines: it continues if one of them is cancelled."""
        opening = self._opening
        if opening is None or opening.done():
            opening = self._opening = self.beside(self._open())
            opening.add_done_callback(_read)
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            if not self.closed:
                raise
            raise refused("unavailable", "the mesh was closed") from None
        except errors.MeshError as failure:
            raise copy.copy(failure) from None  # each gets its own copy
        assert self._nc is not None
        return self._nc

    async def _open(self) -> None:
        try:
            found = self._find()
        except (OSError, ValueError) as failure:
            code = "invalid_request" if isinstance(failure, ValueError) else "unavailable"
            raise refused(code, str(failure)) from None
        where = finding.shown(found.servers)
        nc = Broker(found.tls is not None)
        try:
            try:
                await asyncio.wait_for(self._link(nc, found), _CONNECTING)
                if self.closed:  # before Python 3.12 wait_for loses a cancel that arrives together with the result
                    raise refused("unavailable", "the mesh was closed")
            except errors.MeshError:
                raise
            except Exception as failure:
                cause = self._last_error if isinstance(failure, nats.errors.NoServersError) else failure
                raise unreachable(where, cause or failure) from None
        except BaseException:
            await nc.close()
            raise
        self.nodes.clear()  # an earlier connection heard them
        self._nc = nc  # only now, as a call needs the inbox
        await self._connected()

    async def _link(self, nc: Broker, found: Found) -> None:
        await nc.connect(
            servers=list(found.servers), name=self._name or "toolmesh", user=found.user, password=found.password,
            token=found.token, user_credentials=found.creds, nkeys_seed_str=found.nkey, tls=found.tls,
            tls_handshake_first=found.tls_first,
            # A request that cannot be sent now is refused, not queued: it would run after its caller has left.
            pending_size=2 << 20, flusher_queue_size=0, connect_timeout=2, max_reconnect_attempts=1,
            ping_interval=10, reconnect_time_wait=0.1,  # type: ignore[arg-type]  # seconds
            error_cb=self._failed, disconnected_cb=self._disconnected, reconnected_cb=self._connected,
            closed_cb=self._closed,
        )
        if not nc.secured:  # for another nats-py that does not ask
            raise refused("unavailable", "this version of nats-py cannot be made to use TLS: take another")
        await self._subscribe_inbox(nc, bool(found.creds or found.nkey), _mark(found.nkey))
        nc.options["max_reconnect_attempts"] = -1

    async def _subscribe_inbox(self, nc: Broker, key: bool, mark: str) -> None:
        """Subscribes to the first inbox that the credentials allow. The mark in its name is for audits."""
        prefixes = ["_INBOX"]
        if key:
            prefixes = ["_INBOX_mesh_admin", f"_INBOX_{names.token(self._session)}", "_INBOX_mesh_node", *prefixes]
        for prefix in prefixes:
            self.inbox = f"{prefix}.{mark}{secrets.token_hex(11)}."
            subscription = await nc.subscribe(self.inbox + ">", future=taking(self._receive))
            if key:
                # nats-py may write the PING of a flush before the subscription, whose refusal comes after its PONG
                # then. That of the next one is behind it.
                await nc.flush()
                await nc.flush()
                if self._denied == self.inbox:
                    with contextlib.suppress(nats.errors.Error):
                        await subscription.unsubscribe()
                    continue
            return
        raise refused("permission_denied", f"the key may subscribe to none of the inboxes {', '.join(prefixes)}: "
                                           "the key of a session is used with that session")

    async def close(self) -> None:
        """Closes the connection for good; pending calls fail."""
        if self.closed:
            return
        self.closed = True
        for one in list(self.pending.values()):
            one.fail(errors.error("unavailable", "the mesh was closed while the call ran", origin="caller"))
        try:
            for _ in range(3):
                await asyncio.sleep(0)  # cancels of pending calls are written, and sent below
        finally:  # a loop that ends cancels this task, too
            nc, self._nc = self._nc, None
            if self._alarm is not None:
                self._alarm.cancel()
            others = [task for task in self._tasks if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            if nc is not None and not nc.is_closed:
                await nc.close()
            await asyncio.gather(*others, return_exceptions=True)

    async def _failed(self, failure: Exception) -> None:
        self._last_error = failure
        if self._nc is not None and not self._nc.is_connected and "authorization" in str(failure).lower():
            self.beside(self._nc.close())  # it would try this key for ever; the next call reads its file again
        denied = _DENIED.search(str(failure))
        if denied is None:
            return
        what, subject = (one.lower() for one in denied.groups())  # as newer versions of nats-py write them anyway
        if what == "subscription" and subject == f"{self.inbox}>".lower():
            self._denied = self.inbox
        sent = [one for one in self.pending.values()
                if one.subject.lower() == subject and one.error is None and not one.messages and one.sign == one.asked]
        if len({one.subject for one in sent}) == 1:  # else it may mean another one than the first
            # It refuses one by one, in the order in which they were sent.
            sent[0].fail(refused("permission_denied", "the NATS server does not permit publishing to "
                                                      f"{sent[0].subject}: another session needs its own key"))

    async def _disconnected(self) -> None:
        if self._pinging is not None:
            self._pinging.cancel()  # it gets no answer any more
        for one in list(self.pending.values()):
            one.nudge()

    async def _connected(self) -> None:
        self.generation += 1
        self.since = time.monotonic()
        for one in list(self.pending.values()):
            one.nudge()

    async def _closed(self) -> None:
        for one in list(self.pending.values()):
            one.fail(errors.error("unavailable", f"the connection to the mesh has ended: {self._last_error}",
                                  origin="caller", retryable=True))

    @property
    def connected(self) -> bool:
        return self._nc is not None and self._nc.is_connected

    def _receive(self, message: Msg) -> None:
        one = self.pending.get(message.subject[len(self.inbox):].partition(".")[0])
        if one is not None:
            one.take(message)

    async def publish(self, subject: str, body: bytes = b"", reply: str = "",
                      headers: dict[str, str] | None = None) -> None:
        """Sends a message without an answer, if connected."""
        if self.connected:
            assert self._nc is not None
            with contextlib.suppress(nats.errors.Error):
                await self._nc.publish(subject, body, reply, headers)

    async def subscribe(self, subject: str, take: Callable[[Msg], None]) -> Callable[[], object]:
        """Passes each message to take; the returned function unsubscribes."""
        nc = await self.ready()
        subscription = await nc.subscribe(subject, future=taking(take))
        return lambda: self.beside(_ended(subscription))

    def due(self, when: float) -> None:
        """Wakes a wait at that time, by the loop's clock, or some milliseconds later. All waits share one timer: a
        timer per call would cost more than the call's arguments."""
        when = max(when, self._alarmed + _SLACK)
        if self._alarm is None or when < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm, self._alarm_at = self.loop.call_at(when, self._wake), when

    def _wake(self) -> None:
        self._alarm, self._alarmed = None, self.loop.time()
        for one in list(self.pending.values()):
            if one.due <= self._alarmed:
                one.nudge()
            elif one.due < math.inf:  # it waits
                self.due(one.due)

    def beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Nodes.

    def listen(self, node: str) -> None:
        """Subscribes to a node's heartbeats."""
        if node in self.nodes:
            return
        if len(self.nodes) >= _NODES:
            self._forget(next(iter(self.nodes)))
        self.nodes[node] = heard = Node()
        self.beside(self._listen(node, heard))

    async def _listen(self, name: str, node: Node) -> None:
        def beat(message: Msg) -> None:
            with contextlib.suppress(ValueError):
                body = json.loads(message.data)
                if isinstance(body, dict) and body.get("boot"):
                    node.beat(str(body["boot"]))

        with contextlib.suppress(nats.errors.Error, errors.MeshError):
            assert self._nc is not None
            node.subscription = await self._nc.subscribe(names.heartbeat(name), future=taking(beat))
            if self.nodes.get(name) is not node:  # it was forgotten meanwhile
                await _ended(node.subscription)

    def _forget(self, name: str) -> None:
        node = self.nodes.pop(name, None)
        if node is not None and node.subscription is not None:
            self.beside(_ended(node.subscription))

    async def alive(self, one: Pending) -> None:
        """Raises NodeLost once the node of a call, silent since it was asked, counts as lost, or Unavailable if our own
        connection is lost."""
        if one.sign <= one.asked and self._nc is not None and self._nc.is_connected and self._nc.crowded:
            one.sign = one.asked = time.monotonic()  # the request may not have been written yet
        last = max(one.sign, one.asked)
        node = self.nodes.get(one.node)
        if node is not None:
            if node.boot and node.boot != one.boot and node.beats > 1:
                raise self._lost(one, "has restarted")
            if node.boot == one.boot:
                last = max(last, node.heard)
        last = max(last, self.since)  # earlier messages went to the old link
        if (quiet := time.monotonic() - last) < SILENCE:
            one.quiet = False
            if quiet > MISSING and one.call is not None:
                self._routes.learn(one.call)  # whether it may be repeated, should its node be lost
            return
        generation, nc = self.generation, self._nc
        assert nc is not None
        arrived = nc.stats["in_bytes"]
        try:
            if not self.connected:
                raise ConnectionError("not connected")
            await self._ping(nc)
        except (nats.errors.Error, OSError, asyncio.TimeoutError) as failure:
            # On a busy connection the answer to the ping waits behind other messages.
            if one.messages or self.connected and nc.stats["in_bytes"] != arrived and quiet < _MUTE:
                return
            raise errors.error("unavailable", f"the connection to the mesh was lost while the call ran: {failure}",
                               tool="", origin="caller") from None
        # Messages sent before the ping arrive before its answer; they are read first.
        if self._began < last + SILENCE or generation != self.generation or one.messages or one.sign > last:
            return
        if node is not None and node.heard > last:
            return
        if one.quiet:
            raise self._lost(one, f"has been silent for {SILENCE} s")
        one.quiet = True

    async def _ping(self, nc: Broker) -> None:
        """Waits until the server has answered a ping. A late ping continues and is awaited again: if it were given up,
        nats-py would take its answer for an error and stop reading."""
        if self._pinging is None or self._pinging.done():
            self._began = time.monotonic()
            self._pinging = self.beside(nc.flush(_NEVER))
            self._pinging.add_done_callback(_read)
        ping = self._pinging
        if not (await asyncio.wait([ping], timeout=_PING))[0]:
            raise asyncio.TimeoutError("no answer to a ping")
        if ping.cancelled():
            raise ConnectionError("not connected")
        ping.result()

    async def seek(self, one: Pending, call: Call) -> None:
        """Finds the unknown node of a call after a lost connection, so that the request can be repeated."""
        now = time.monotonic()
        if one.node or call.batch or self.since <= one.sent or not self.connected or now - one.sought < _SEEK:
            return
        one.sought = now
        with contextlib.suppress(NoResponders, errors.MeshError):
            at = await self.ask(names.control(call.session, call.rpc_id), {"type": "where"}, wait=_SEEK / 2)
            one.heard({"Mesh-Node": str(at.get("node", "")), "Mesh-Boot": str(at.get("boot", ""))})

    def _lost(self, one: Pending, why: str) -> errors.MeshError:
        if not one.node and self.since > one.sent:
            return errors.error(
                "unavailable", "the connection to the mesh was cut while the call ran, and no node says that it has "
                "the call: whether the tool ran is not known. A NATS server cuts a connection that does not read what "
                "waits for it, by default 64 MiB or for 10 s", origin="caller", details={"reason": _CUT})
        name = f"node {one.node}" if one.node else "the call's node"
        self._forget(one.node)
        if one.call is not None:
            self._routes.elsewhere(one.call)
        return errors.error("node_lost", f"{name} {why}: whether the tool ran is not known", origin="caller",
                            details={"node": one.node} if one.node else {})

    async def resend(self, one: Pending, call: Call, headers: dict[str, str]) -> None:
        """Repeats a call's request to its node, which is alive and has been silent about the call: the request or its
        answer was lost. The node knows the call's id and runs it at most once."""
        node = self.nodes.get(one.node)
        now = time.monotonic()
        if (node is None or not self.connected or now - max(one.sign, one.asked) < SILENCE
                or node.boot != one.boot or node.beats * 1.0 < SILENCE or now - node.heard > SILENCE):
            return
        assert self._nc is not None
        one.asked = now
        again = {**headers, "Mesh-Boot": one.boot, "Mesh-Again": str(int((now - one.sent) * 1000) + 1)}
        with contextlib.suppress(nats.errors.Error):
            where = one.subject if call.batch else names.node_call(one.node, call.session, call.tool)
            await self._nc.post(where, call.body, one.inbox + AGAIN, again)

    # Calls.

    def headers(self, call: Call) -> dict[str, str]:
        """The headers of a request, with its deadline once the mesh's time is known. Asks for the time if needed."""
        if self._clock.asks():
            self.beside(self._clock.measure(self.ask(names.registry(call.session, "time"), {}, wait=2)))
        headers, deadline = call.headers(), self._clock.deadline(call.left())
        if deadline is not None:
            headers["Mesh-Deadline"] = str(deadline)
        return headers

    async def send(self, one: Pending, call: Call, headers: dict[str, str]) -> None:
        """Sends a call for the first time."""
        nc = await self.ready()
        one.sent = time.monotonic()
        try:
            await nc.post(one.subject, call.body, one.inbox, headers)
            # The time in which it waited to be written is not the node's.
            one.sign = one.asked = time.monotonic()
        except nats.errors.Error as failure:
            raise _unsent(failure, nc, len(call.body), call.tool) from None

    async def fit(self, call: Call) -> None:
        """Stores arguments that are too large for a message."""
        nc = self._nc if self.connected else await self.within(call, self.ready())
        assert nc is not None
        if len(call.body) + payloads.ROOM > nc.max_payload:
            call.ref = await payloads.put(self, call.session, io.BytesIO(call.body), len(call.body), call.deadline)
            call.body = b""

    async def attempts(self, call: Call, send: Callable[[Call], typing.Awaitable[Any]]) -> Any:
        """Sends a call until it has an answer."""
        await self.fit(call)
        try:
            return await self._attempts(call, send)
        except BaseException as failure:
            if isinstance(failure, errors.MeshError) and failure.started is False:
                failure.started = call.ran  # not only the last attempt
            if call.ref is not None:
                self.beside(payloads.delete(self, call.session, call.ref))  # the call may never have begun
            raise
        finally:
            for one in call.stored:
                self.beside(payloads.delete(self, call.session, one))

    async def _attempts(self, call: Call, send: Callable[[Call], typing.Awaitable[Any]]) -> Any:
        """Sends a call until it has a final answer. It repeats only calls that provably did not start, and idempotent
        ones."""
        asked_for, first = call.tool, call.rpc_id
        call.tool = self._aliases.get((call.session, asked_for), asked_for)
        resolved, lost, waits = False, 0, 0
        until = time.monotonic() + routes.ROOM if call.timeout is None else call.deadline
        for number in itertools.count(1):
            try:
                return await send(call)
            except NoResponders:
                if self._routes.elsewhere(call):
                    continue
                if call.batch:
                    raise refused("unavailable", "no node runs batches: that needs an agent, or a router that serves "
                                                 "functions") from None
                if resolved:
                    raise unserved(call.tool, "") from None
                resolved = True
                answer = await self.within(call, self.registry(call.session, "resolve", {"name": asked_for}))
                other = str(answer.get("id", ""))
                if other == call.tool:
                    raise unserved(call.tool, str(answer.get("reason", ""))) from None
                if len(self._aliases) >= _ALIASES:
                    self._aliases.clear()
                self._aliases[call.session, asked_for] = call.tool = other
            except errors.MeshError as failure:
                failure.tool = failure.tool or call.tool
                outdated(failure, call.described)
                if failure.started is not False and not call.ran:
                    call.ran = failure.started
                pause = routes.room(failure, waits)
                if pause is not None:
                    if self._routes.refused(call, failure, pause) and number - waits < _ATTEMPTS:
                        continue  # on another node
                    if (left := until - time.monotonic()) <= pause:
                        raise
                    waits += 1
                    await asyncio.sleep(pause + random.uniform(0, min(pause, left - pause) / 2))
                    continue
                if (number - waits >= _ATTEMPTS or "waited_ms" in failure.details  # it waited for long enough
                        or failure.details.get("reason") == "session_worker_unavailable"):  # the next has a new worker
                    raise
                gone = failure.started is False and failure.code in ("unavailable", "tool_not_found")
                if gone and self._routes.elsewhere(call):
                    continue
                if failure.started is False and (
                    failure.code == "busy" or failure.code == "unavailable" and failure.origin != "caller"
                ):
                    pause = _BUSY * 2 ** min(number - waits - 1, 5) * random.uniform(0.5, 1)
                    if call.deadline - time.monotonic() < pause:
                        raise
                    await asyncio.sleep(pause)
                elif (
                    ((failure.code == "node_lost" or failure.details.get("reason") == _CUT) and lost < _LOSSES
                     or failure.code == "worker_crashed" and not lost)
                    and not call.batch
                    and (failure.started is False or call.idempotent or call.key
                         or await self._routes.idempotent(call, _LOST if failure.code == "node_lost" else None))
                ):
                    lost += 1
                    self._routes.elsewhere(call)
                    call.rpc_id = names.again(first, lost)
                else:
                    raise
        raise AssertionError

    async def within(self, call: Call, step: Coroutine[Any, Any, T]) -> T:
        """Runs a step that a call needs before it is sent, within the call's time."""
        if call.timeout is None:
            return await step
        try:
            return await asyncio.wait_for(step, call.deadline - time.monotonic())
        except errors.MeshError:
            raise  # a timeout is a TimeoutError, too
        except asyncio.TimeoutError:
            raise timed_out(call.tool, call.timeout, False) from None

    async def news(self, one: Pending, call: Call, seconds: float) -> None:
        """Waits for an answer to a call, at most that long. Raises its failure, and ToolTimeout after its time."""
        left = call.deadline + _GRACE - time.monotonic()
        if left <= 0:
            raise timed_out(call.tool, call.timeout or 0, None)
        await one.wait(min(seconds, left))
        if one.error is not None and not one.messages:
            raise one.error

    async def unary(self, call: Call) -> bytes:
        """One attempt of a unary call: its result's JSON."""
        place = self._routes.choose(call)
        one = Pending(self, subject(call))
        one.call = None if call.batch else call
        if place is not None:
            one.node, one.boot = place.node, place.boot
            self.listen(place.node)
            place.ours += 1
        try:
            headers = self.headers(call)
            await self.send(one, call, headers)
            slow = self._nc is not None and self._nc.pending_data_size > _MUCH
            await self.news(one, call, TICK if slow else MISSING)
            while not one.messages:
                await self.seek(one, call)
                await self.alive(one)
                await self.resend(one, call, headers)
                await self.news(one, call, TICK)
            value = await self._value(call, one.messages[0])
            if place is None and not call.batch:
                self._routes.learn(call)
            return value
        except (asyncio.CancelledError, errors.MeshError) as failure:
            # A lost call gets no cancel: that would reach its repetition, too.
            if (not one.messages and getattr(failure, "started", None) is not False
                    and getattr(failure, "code", "") not in ("node_lost", "unavailable")):
                await self.cancel(call, one.node)  # its answer is no longer awaited
            raise
        finally:
            one.close()
            if place is not None:
                place.ours -= 1

    async def _value(self, call: Call, message: Msg) -> bytes:
        """The result in an answer, or the payload that it refers to, which is then deleted."""
        headers = message.headers or {}
        if "Mesh-Read" in headers:  # its node sends no more until then
            where = names.control(call.session, call.rpc_id, headers.get("Mesh-Node", ""))
            await self.publish(where, b'{"type":"read"}')
        body = result(message)
        if "Mesh-Warning" in headers:
            self._warn(call.tool, headers["Mesh-Warning"])
        ref = None if body else Ref.of(message.headers)
        if ref is None:
            return body
        return await payloads.take(self, call.session, ref, headers.get("Mesh-Node", ""), call.deadline)

    def _warn(self, tool: str, warning: str) -> None:
        """Logs, once per tool, that a result does not fit its schema. The details contain values, which belong to the
        caller: they are logged at debug level only."""
        if tool not in self._warned:
            _log.warning("tool %s: a result does not fit its output schema", tool)
        _log.debug("tool %s: %s", tool, "".join(one if one.isprintable() else " " for one in warning))
        if len(self._warned) < _ALIASES:
            self._warned.add(tool)

    async def cancel(self, call: Call, node: str) -> None:
        """Tells the node of a call, or all nodes, to stop it, if connected."""
        await self.publish(names.control(call.session, call.rpc_id, node))

    async def cancelled(self, session: str, rpc_id: str) -> bool:
        """Stops a call wherever it runs; False if no node had it."""
        try:
            answer = await self.ask(names.control(session, rpc_id), {"type": "cancel"}, wait=1)
        except (NoResponders, errors.ToolTimeout):
            return False
        return bool(answer.get("cancelled"))

    # Requests.

    async def ask(self, where: str, question: dict[str, Any] | bytes, wait: float = _ANSWER,
                  others: float = math.inf) -> dict[str, Any]:
        """A request to the mesh and its answer; raises NoResponders. After each interval in seconds other nodes are
        asked, too."""
        nc = await self.ready()
        one = Pending(self, where)
        until = time.monotonic() + wait
        try:
            body = question if isinstance(question, bytes) else json.dumps(question).encode()
            try:
                await nc.publish(where, body, one.inbox)
            except nats.errors.Error as failure:
                raise _unsent(failure, nc, len(body)) from None
            while (message := await one.next(min(until, time.monotonic() + others))) is None:
                if time.monotonic() >= until:
                    raise errors.error("deadline_exceeded", f"no answer on {where} within {wait:g} s", origin="caller")
                for _ in range(2):
                    await self.publish(where, body, one.inbox)
            return told(message, where)
        finally:
            one.close()

    async def registry(
        self, session: str, verb: str, question: dict[str, Any], wait: float = _ANSWER,
    ) -> dict[str, Any]:
        """A request to the registry. Raises Unavailable without an answer."""
        try:
            return await self.ask(names.registry(session, verb), question, wait, _OTHERS)
        except NoResponders:
            raise refused("unavailable", "a NATS server answers, but no mesh: run mesh up, or an agent") from None
        except errors.ToolTimeout as failure:
            raise refused("unavailable", f"the registry does not answer: {failure.message}") from None

    async def task(self, session: str, verb: str, request: bytes) -> dict[str, Any]:
        """A request about durable tasks. It may be sent twice, and is repeated until it is answered."""
        wait = _ANSWER + _WAIT if verb == "wait" else _ANSWER
        for again in (True, True, False):
            try:
                return await self.ask(names.task(session, verb), request, wait)
            except NoResponders:
                failure = refused("unavailable", "no node runs tasks: that needs an agent or a router")
            except errors.ToolTimeout as late:
                failure = errors.error("unavailable", f"the request about a task is not answered: {late.message}",
                                       tool="", origin="caller", retryable=True)
            if not again:
                raise failure
            await asyncio.sleep(_REST)
        raise AssertionError


def subject(call: Call) -> str:
    """The subject of a call; InvalidRequest for invalid names."""
    try:
        if call.place is not None:
            return names.node_call(call.place.node, call.session, call.tool)
        return names.batch(call.session) if call.batch else names.call(call.session, call.tool)
    except ValueError as failure:
        raise refused("invalid_request", str(failure), call.tool) from None


def _unsent(failure: nats.errors.Error, nc: Broker, size: int, tool: str = "") -> errors.MeshError:
    """The error of a request of so many bytes that nats-py refused."""
    if isinstance(failure, nats.errors.MaxPayloadError):
        return refused("payload_too_large", f"the arguments are {size} bytes, the broker takes messages of "
                                            f"{nc.max_payload}", tool)
    return refused("unavailable", f"the request could not be sent: {failure}", tool)


def _mark(seed: str | None) -> str:
    """The part of an inbox for the connection's key: its digest, as for tokens."""
    if seed is None:
        return ""
    nkeys = importlib.import_module("nkeys")  # nats-py has imported it by now
    return f"k-{hashlib.sha256(nkeys.from_seed(bytearray(seed.encode())).public_key).hexdigest()[:16]}."


def _read(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # so that asyncio does not print it: those that wait for the task get it


async def _ended(subscription: Subscription) -> None:
    with contextlib.suppress(nats.errors.Error, ValueError):
        await subscription.unsubscribe()
