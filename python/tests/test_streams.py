"""Streams: one that is left ends, whatever its reading does with a cancel; numbers in headers."""

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from toolmesh._client import payloads
from toolmesh._client.call import Call, Pending
from toolmesh._client.connection import Connection
from toolmesh._client.streams import Stream
from toolmesh._core import errors


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


def test_a_lost_cancel_is_sent_again() -> None:
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


@pytest.mark.parametrize("text", ["²", "٣", "9" * 5000, "-1", "+1", "1_0", ""])
def test_headers_without_valid_numbers(text: str) -> None:
    """A node of somebody else's may write anything: it is an error of the protocol, not one of this program."""
    def message(**headers: str) -> Any:
        return SimpleNamespace(subject="a", data=b"", headers={f"Mesh-{key}": one for key, one in headers.items()})

    async def main() -> None:
        loop = asyncio.get_running_loop()
        connection: Any = SimpleNamespace(loop=loop, inbox="i.", pending={}, numbers=itertools.count(), listen=print)
        one = Pending(connection, "a")
        one.take(message(Keepalive="1", High=f"{text};terminal"))
        assert one.high == 0
        stream = Stream(connection, Call("s", "t", b"{}", "r"))
        stream._add(message(Chunk="data", Seq=text))
        assert stream._bad is not None and stream._bad.code == "protocol_error"
        stream._replay = one
        one.messages.append(message(High=text))
        assert stream._settled() and stream._high == 0

        async def ready() -> Any:
            return SimpleNamespace(publish=publish)

        async def publish(_subject: str, _body: bytes, reply: str, _headers: dict[str, str]) -> None:
            connection.pending[reply.removeprefix("i.")].take(message(Count="0", High=f"{text};terminal"))

        connection.ready = ready
        with pytest.raises(errors.Unavailable):
            await payloads._page(connection, "a", 0, 0, 0.0)

    asyncio.run(main())
