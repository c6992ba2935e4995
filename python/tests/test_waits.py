"""Waits for answers: one timer wakes them all, each at its time."""

import asyncio
from types import SimpleNamespace

from toolmesh._client import connection
from toolmesh._client.call import Pending
from toolmesh._client.connection import Connection


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
