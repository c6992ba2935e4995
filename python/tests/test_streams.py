"""Streams: one that is left ends, whatever its reading does with a cancel; numbers in headers."""

import asyncio
import io
import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from toolmesh._client import payloads
from toolmesh._client.call import Call, Pending
from toolmesh._client.connection import Connection
from toolmesh._client.streams import Attempt, pages
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
        reading = asyncio.ensure_future(anext(pages(cast(Connection, link), call)))
        await link.begun.wait()
        reading.cancel()
        await asyncio.wait([reading], timeout=10)
        assert reading.cancelled() and link.lost == 1

    asyncio.run(main())


def test_a_fault_ends_a_stream() -> None:
    async def main() -> None:
        async def attempts(*_: object) -> None:
            raise OSError("a fault")

        link = SimpleNamespace(loop=asyncio.get_running_loop(), attempts=attempts)
        with pytest.raises(OSError, match="a fault"):
            await anext(pages(cast(Connection, link), Call("s", "a.b", b"{}", "r")))

    asyncio.run(asyncio.wait_for(main(), 10))


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
        stream = Attempt(connection, Call("s", "t", b"{}", "r"), asyncio.Queue())
        stream._add(message(Chunk="data", Seq=text))
        assert stream._bad is not None and stream._bad.code == "protocol_error"
        stream._settle(message(High=text), 1)
        assert stream._high == 0
        stream._add(message(Chunk="error", Seq="1"))
        with pytest.raises(errors.ProtocolError):
            await stream._hand_out()

        async def ready() -> Any:
            return SimpleNamespace(publish=publish)

        async def publish(_subject: str, _body: bytes, reply: str, _headers: dict[str, str]) -> None:
            connection.pending[reply.removeprefix("i.")].take(message(Count="0", High=f"{text};terminal"))

        connection.ready = ready
        with pytest.raises(errors.Unavailable):
            await payloads._page(connection, "a", 0, 0, math.inf)

    asyncio.run(main())


def test_a_page_of_a_payload_without_pieces_is_lost() -> None:
    """A node that cannot send any piece says so by their number: asked again at once, it would be asked for ever."""
    async def main() -> None:
        connection: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(), inbox="i.", pending={}, numbers=itertools.count())

        async def publish(_subject: str, _body: bytes, reply: str, _headers: dict[str, str]) -> None:
            connection.pending[reply.removeprefix("i.")].take(
                SimpleNamespace(data=b"", subject="a", headers={"Mesh-Count": "0", "Mesh-High": "0"}))

        async def ready() -> Any:
            return SimpleNamespace(publish=publish)

        connection.ready = ready
        with pytest.raises(errors.Unavailable, match="was lost on its way"):
            await payloads._page(connection, "a", 0, 0, math.inf)

    asyncio.run(asyncio.wait_for(main(), 10))


@pytest.mark.parametrize("said", [b"", b"[]", b"{}", b'{"node":5}', b'{"node":""}'])
def test_a_store_that_names_no_node_violates_the_protocol(said: bytes) -> None:
    async def main() -> None:
        connection: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(), inbox="i.", pending={}, numbers=itertools.count(), listen=print)

        async def publish(_subject: str, body: bytes, reply: str, _headers: dict[str, str]) -> None:
            if body:
                connection.pending[reply.removeprefix("i.")].take(SimpleNamespace(data=said, subject="a", headers={}))

        async def ready() -> Any:
            return SimpleNamespace(publish=publish, max_payload=1 << 20)

        connection.ready, connection.publish = ready, publish
        with pytest.raises(errors.ProtocolError):
            await payloads.put(connection, "s", io.BytesIO(b"x"), 1)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_parts_of_a_payload_wait_for_room() -> None:
    """Those of many uploads would else wait so long to be written that their answers come too late."""
    async def main() -> None:
        loop, room, sent = asyncio.get_running_loop(), [3 << 20, 2 << 20, 0], []
        connection: Any = SimpleNamespace(loop=loop, inbox="i.", pending={}, numbers=itertools.count(), due=print)

        async def publish(_subject: str, body: bytes, reply: str, headers: dict[str, str]) -> None:
            kind = headers["Mesh-Payload"]
            sent.append((kind, len(room)))
            said = {"Mesh-Ref": "s.x", "Mesh-Digest": "d"} if kind == "end" else {}
            connection.pending[reply.removeprefix("i.")].take(
                SimpleNamespace(data=b'{"node":"n"}', subject="a", headers=said))

        async def ready() -> Any:
            return SimpleNamespace(publish=publish, max_payload=1 << 20,
                                   pending_data_size=room.pop(0) if sent and len(room) else 0)

        connection.ready = ready
        await payloads.put(connection, "s", io.BytesIO(b"x"), 1)
        assert sent == [("put", 3), ("piece", 0), ("end", 0)]

    asyncio.run(asyncio.wait_for(main(), 10))


def _items(
    attempts: list[list[tuple[int, bytes, str]]], headers: dict[str, str], idempotent: bool,
) -> list[list[bytes]]:
    """The pages of a stream whose attempts bring these chunks, and all but the last of them this answer then."""
    async def main() -> list[list[bytes]]:
        link = Connection(lambda: None, "", "s")  # type: ignore[arg-type,return-value]
        link._clock.asks = lambda: False  # type: ignore[method-assign]
        live: list[Callable[[Any], None]] = []

        async def subscribe(_subject: str, future: Any) -> Any:
            live.append(future.set_result)
            return SimpleNamespace(unsubscribe=publish)

        async def publish(*_: object) -> None:
            pass

        async def post(_subject: str, _body: bytes, reply: str, _headers: dict[str, str]) -> None:
            for seq, data, kind in attempts[len(live) - 1]:
                live[-1](SimpleNamespace(data=data, headers={"Mesh-Chunk": kind, "Mesh-Seq": str(seq)}))
            if len(live) < len(attempts) or len(attempts) == 1:
                link.pending[reply].take(SimpleNamespace(subject=reply, data=b"", headers=headers))  # type: ignore[arg-type]

        link._nc = SimpleNamespace(  # type: ignore[assignment]
            post=post, publish=publish, subscribe=subscribe, is_closed=False, is_connected=True, max_payload=1 << 20)
        return [page async for page in pages(link, Call("s", "a.b", b"{}", "rpc_stream_1", idempotent=idempotent))]

    return asyncio.run(asyncio.wait_for(main(), 10))


_LOST = {"Mesh-Error-Code": "node_lost"}
_WHOLE = [(1, b'"new"', "data"), (2, b'"new"', "data"), (3, b"", "complete")]


def test_an_attempt_has_no_items_of_an_earlier_one() -> None:
    """The second item of a node came before its first one, and the node was lost: another one makes its own items."""
    assert _items([[(2, b'"old"', "data")], _WHOLE], _LOST, True) == [[b'"new"', b'"new"']]


def test_a_lost_call_that_had_not_begun_is_sent_again() -> None:
    assert _items([[], _WHOLE], {**_LOST, "Mesh-Started": "false"}, False) == [[b'"new"', b'"new"']]


def test_a_lost_stream_of_which_an_item_came_has_started() -> None:
    with pytest.raises(errors.NodeLost) as raised:
        _items([[(1, b'"old"', "data")]], _LOST, False)
    assert raised.value.started is True
