"""A stream that is left ends, whatever its reading does with a cancel."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from toolmesh._client.call import Call
from toolmesh._client.connection import Connection
from toolmesh._client.streams import Stream


class Deaf:
    """A connection whose attempt at a call loses the first cancel, as wait_for of Python 3.11 may."""

    def __init__(self) -> None:
        self.loop, self.begun, self.lost = asyncio.get_running_loop(), asyncio.Event(), 0

    async def attempts(self, _call: Call, _send: Callable[[Call], Any]) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.lost += 1
        await asyncio.Event().wait()


def test_a_cancel_that_is_lost_comes_again() -> None:
    async def main() -> None:
        link = Deaf()
        call = Call("default", "a.b", b"{}", "rpc_stream_1")
        pages = Stream(cast(Connection, link), call).pages()
        reading = asyncio.ensure_future(anext(pages))
        await link.begun.wait()
        reading.cancel()
        await asyncio.wait([reading], timeout=10)
        assert reading.cancelled() and link.lost == 1

    asyncio.run(main())
