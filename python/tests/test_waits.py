"""Waits for answers: one timer wakes them all, each at its time."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from toolmesh._client import connection
from toolmesh._client.call import SILENCE, Call, Pending
from toolmesh._client.connection import Connection
from toolmesh._client.finding import Found
from toolmesh._core import errors


def test_each_wait_ends_at_its_time():
    async def main() -> None:
        link = Connection(lambda: None, "", "s")  # type: ignore[arg-type,return-value]
        ended = []

        async def wait(seconds: float) -> None:
            one = Pending(link, "a")
            began = link.loop.time()
            await one.wait(seconds)
            one.close()
            assert link.loop.time() - began >= seconds
            ended.append(seconds)

        await asyncio.gather(*[wait(one) for one in (0.3, 0.02, 0.2, 0.1, 0.0)])
        assert ended == [0.0, 0.02, 0.1, 0.2, 0.3]
        assert not link.pending

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_node_is_not_silent_while_its_request_waits_to_be_written(monkeypatch):
    """Requests of 90 MB, or a loop that stands, keep a request here for longer than a node may be silent."""
    async def main() -> None:
        now = [100.0]
        monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: now[0]))
        link = Connection(lambda: None, "", "s")  # type: ignore[arg-type,return-value]

        async def post(*_: object) -> None:
            now[0] += SILENCE + 1

        link._nc = SimpleNamespace(  # type: ignore[assignment]
            post=post, is_closed=False, is_connected=True, crowded=False, stats={"in_bytes": 0})
        one = Pending(link, "a")
        await link.send(one, Call("s", "a.b", b"{}", "r"), {})
        pinged: list[object] = []
        link._ping = pinged.append  # type: ignore[method-assign,assignment]
        await link.alive(one)
        assert not pinged and one.sent == 100
        for crowded, later in (True, SILENCE - 1), (False, SILENCE - 1):  # what is not written may be this request
            link._nc.crowded = crowded  # type: ignore[union-attr,misc]
            now[0] += later
            await link.alive(one)
        assert not pinged and one.sign == one.asked  # a refusal still finds it
        one.sign += 0.5  # a keepalive: from here on silence is the node's, however much else is written
        link._nc.crowded = True  # type: ignore[union-attr,misc]
        now[0] += SILENCE + 1
        with pytest.raises(TypeError):  # of this test's ping
            await link.alive(one)
        assert pinged

    asyncio.run(asyncio.wait_for(main(), 10))


def test_an_idle_question_has_no_timer():
    async def main() -> None:
        link = Connection(lambda: None, "", "s")  # type: ignore[arg-type,return-value]
        idle = Pending(link, "a")
        await Pending(link, "a").wait(0.01)
        assert idle.token in link.pending and link._alarm is None

    asyncio.run(asyncio.wait_for(main(), 10))


def test_many_waits_have_one_timer(monkeypatch):
    """A thousand waits that end at a thousand times are looked at some hundred times a second, not a thousand."""
    async def main() -> None:
        link = Connection(lambda: None, "", "s")  # type: ignore[arg-type,return-value]
        clock, timers = [0.0], []

        def call_at(when, wake):
            timers.append((when, wake))
            return SimpleNamespace(cancel=lambda: timers.remove((when, wake)))

        link.loop = SimpleNamespace(  # type: ignore[assignment]
            time=lambda: clock[0], call_at=call_at, create_future=link.loop.create_future)
        waiting = [asyncio.ensure_future(Pending(link, "a").wait(one / 1000)) for one in range(1000, 0, -1)]
        await asyncio.sleep(0)
        looks = 0
        while timers:
            assert len(timers) == 1
            clock[0], wake = timers.pop()
            wake()
            looks += 1
            await asyncio.sleep(0)
        assert all(one.done() for one in waiting)
        assert looks <= 1 / connection._SLACK + 1

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_call_that_no_node_has_ends_after_its_connection_was_cut(monkeypatch):
    """The question which node has a call takes as long as a frozen process is taken for one."""
    async def main() -> None:
        monkeypatch.setattr(connection, "SILENCE", 1.2)
        link = Connection(lambda: None, "", "s")  # type: ignore[arg-type,return-value]
        link._clock.asks = lambda: False  # type: ignore[method-assign]

        async def nothing(*_: object) -> None:
            pass

        async def post(*_: object) -> None:
            link.loop.call_soon(lambda: link.beside(link._connected()))  # the answer was lost with the old link

        link._nc = SimpleNamespace(  # type: ignore[assignment]
            post=post, publish=nothing, flush=nothing, is_closed=False, is_connected=True, crowded=False,
            stats={"in_bytes": 0}, max_payload=1 << 20, pending_data_size=0)
        with pytest.raises(errors.Unavailable) as failure:
            await link.unary(Call("s", "a.b", b"{}", "r"))
        assert failure.value.details == {"reason": "connection_cut"}

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_new_connection_subscribes_to_heartbeats(monkeypatch):
    """The broker closes a connection whose login expires. The next one needs subscriptions of its own."""
    async def main() -> None:
        brokers: list[Any] = []

        def broker(_only_tls: bool) -> Any:
            made = SimpleNamespace(secured=True, is_closed=False, is_connected=True, options={}, subjects=[])

            async def connect(**_: object) -> None:
                pass

            async def subscribe(subject: str, **_: object) -> None:
                made.subjects.append(subject)

            made.connect, made.subscribe = connect, subscribe
            brokers.append(made)
            return made

        monkeypatch.setattr(connection, "Broker", broker)
        link = Connection(lambda: Found(["nats://127.0.0.1"]), "", "s")
        for _ in range(2):
            await link.ready()
            link.listen("n")
            await asyncio.gather(*link._tasks)
            brokers[-1].is_closed = True
        assert [one.subjects[1:] for one in brokers] == [["mesh.hb.n"]] * 2

    asyncio.run(asyncio.wait_for(main(), 10))


def test_refused_subscriptions_are_not_kept():
    """Each stream of a caller without a right to live items asks for a subject of its own. That of the inbox is known,
    so that the next prefix is tried, though nats-py writes the server's text in small letters."""
    async def main() -> None:
        link = Connection(lambda: None, "", "s")  # type: ignore[arg-type,return-value]
        link.inbox = "_INBOX_mesh_admin.a."
        for one in ("_inbox_mesh_admin.a.>", *(f"mesh.live.s.{number}" for number in range(9))):
            await link._failed(Exception(f'nats: permissions violation for subscription to "{one}"'))
        assert link._denied == link.inbox

    asyncio.run(asyncio.wait_for(main(), 10))
