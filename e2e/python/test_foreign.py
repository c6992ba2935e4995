"""A client in Python that knows the protocol's page and nats-py, and nothing of ours.

MESH_E2E_URL says where a mesh is that serves the example indexes lab and weather.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

Check = Callable[[Client], Awaitable[None]]


def connected(check: Check) -> Callable[[], None]:
    """Make an asynchronous check, which is given a connection, a test."""

    def test() -> None:
        async def main() -> None:
            connection = await nats.connect(os.environ["MESH_E2E_URL"])
            try:
                await asyncio.wait_for(check(connection), 30)
            finally:
                await connection.close()

        asyncio.run(main())

    test.__name__ = check.__name__
    test.__doc__ = check.__doc__
    return test


async def call(connection: Client, tool: str, arguments: Any = None, **headers: str) -> Msg:
    """A call in the plain form; Mesh_Rpc_Id="x" is the header Mesh-Rpc-Id."""
    return await connection.request(
        f"tools.default.{tool}",
        b"" if arguments is None else json.dumps(arguments).encode(),
        timeout=15,
        headers={name.replace("_", "-"): value for name, value in headers.items()} or None,
    )


async def envelope(connection: Client, tool: str, **parts: Any) -> dict[str, Any]:
    """A call in the envelope form."""
    body = {"type": "rpc_tool_call", "tool_id": tool, **parts}
    reply = await connection.request(f"tools.default.{tool}", json.dumps(body).encode(), timeout=15)
    return json.loads(reply.data)


async def to_inbox(connection: Client, tool: str, arguments: Any, **headers: str) -> AsyncIterator[Msg]:
    """What comes to the reply subject of a stream, up to the empty message."""
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox)
    await connection.publish(
        f"tools.default.{tool}",
        json.dumps(arguments).encode(),
        reply=inbox,
        headers={"Mesh-Stream": "inbox"} | {name.replace("_", "-"): value for name, value in headers.items()},
    )
    try:
        while True:
            message = await subscription.next_msg(timeout=15)
            if not message.data and "Mesh-Chunk" not in (message.headers or {}):
                return
            yield message
    finally:
        await subscription.unsubscribe()


async def replay(connection: Client, rpc_id: str, first: int) -> list[Msg]:
    """The stored chunks of a stream from one on, the terminal included."""
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox)
    await connection.publish(f"mesh.replay.default.{rpc_id}", json.dumps({"from_seq": first}).encode(), reply=inbox)
    chunks = []
    while True:
        message = await subscription.next_msg(timeout=15)
        if "Mesh-Chunk" not in message.headers:
            assert "Mesh-High" in message.headers
            await subscription.unsubscribe()
            return chunks
        chunks.append(message)


def failure(message: Msg) -> dict[str, Any]:
    """The error of a reply, whose headers say the same."""
    error = json.loads(message.data)["error"]
    assert message.headers["Mesh-Error-Code"] == error["code"]
    assert message.headers["Nats-Service-Error"] == error["message"]
    return error


@connected
async def test_plain_form(connection: Client) -> None:
    reply = await call(connection, "weather.forecast.today", {"city": "oslo"})
    assert json.loads(reply.data)["city"] == "Oslo"
    assert reply.headers["Mesh-Rpc-Id"].startswith("rpc_")
    assert reply.headers["Mesh-Node"]

    # No body means no arguments.
    assert "Tokyo" in json.loads((await call(connection, "weather.forecast.cities")).data)

    reply = await call(connection, "lab.timing.nap", {"seconds": 0}, Mesh_Rpc_Id="from-python")
    assert reply.headers["Mesh-Rpc-Id"] == "from-python"


@connected
async def test_envelope_form(connection: Client) -> None:
    assert await envelope(connection, "lab.bank.withdraw", rpc_id="p1", args=["alice"], kwargs={"amount": 20}) == {
        "type": "rpc_tool_response",
        "rpc_id": "p1",
        "status": "ok",
        "result": {"account": "alice", "amount": 20, "balance": 100},
    }
    answer = await envelope(connection, "lab.bank.withdraw", rpc_id=99, kwargs={"account": "bob", "amount": 20})
    assert (answer["rpc_id"], answer["status"]) == (99, "error")
    assert (answer["error"]["type"], answer["error"]["code"]) == ("InsufficientFunds", "tool_error")
    assert "bank.py" in answer["error"]["stacktrace"]


@connected
async def test_typed_errors(connection: Client) -> None:
    error = failure(await call(connection, "lab.bank.withdraw", {"account": "bob", "amount": 20}))
    assert (error["code"], error["type"], error["started"]) == ("tool_error", "InsufficientFunds", True)

    error = failure(await call(connection, "lab.bank.withdraw", {"account": "bob", "amount": "much"}))
    assert (error["code"], error["started"]) == ("invalid_arguments", False)
    assert [one["pointer"] for one in error["details"]["errors"]] == ["/amount"]

    error = failure(await call(connection, "lab.timing.slow", {"seconds": 60}, Mesh_Timeout_Ms="200"))
    assert (error["code"], error["details"]["limit"]) == ("deadline_exceeded", "time")

    with pytest.raises(NoRespondersError):
        await call(connection, "lab.bank.nothing")
    reply = await connection.request("mesh.registry.default.resolve", b'{"name":"lab.bank.withdrw"}', timeout=15)
    assert "lab.bank.withdraw" in failure(reply)["details"]["nearest"]


@connected
async def test_stream_to_the_inbox(connection: Client) -> None:
    chunks = [chunk async for chunk in to_inbox(connection, "weather.forecast.hours", {"city": "Lima"})]
    assert [chunk.headers["Mesh-Seq"] for chunk in chunks] == [str(n) for n in range(1, 26)]
    assert [json.loads(chunk.data)["hour"] for chunk in chunks[:-1]] == list(range(24))
    assert (chunks[-1].headers["Mesh-Chunk"], chunks[-1].headers["Mesh-Count"]) == ("complete", "24")

    chunks = [chunk async for chunk in to_inbox(connection, "lab.streams.breaks", {"after": 3})]
    assert [chunk.headers["Mesh-Chunk"] for chunk in chunks] == ["data", "data", "data", "error"]
    assert "broke after 3" in chunks[-1].data.decode()


@connected
async def test_live_stream_and_replay(connection: Client) -> None:
    rpc_id = f"python-{os.getpid()}-live"
    live = await connection.subscribe(f"mesh.live.default.{rpc_id}")
    await connection.flush()
    reply = await call(
        connection, "lab.streams.words", {"text": "one two three", "pause": 0.01}, Mesh_Stream="1", Mesh_Rpc_Id=rpc_id
    )
    assert json.loads(reply.data) == {"rpc_id": rpc_id, "node": reply.headers["Mesh-Node"]}
    chunks = [await live.next_msg(timeout=15) for _ in range(4)]
    assert [json.loads(chunk.data)["word"] for chunk in chunks[:3]] == ["one", "two", "three"]
    assert chunks[3].headers["Mesh-Chunk"] == "complete"

    for first in (1, 3, 4):
        again = await replay(connection, rpc_id, first)
        assert [chunk.data for chunk in again] == [chunk.data for chunk in chunks[first - 1 :]]
        assert [chunk.headers["Mesh-Seq"] for chunk in again] == [str(n) for n in range(first, 5)]


@connected
async def test_cancel(connection: Client) -> None:
    rpc_id = f"python-{os.getpid()}-cancel"
    kinds = []
    stream = to_inbox(connection, "lab.streams.countdown", {"start": 1000, "pause": 0.02}, Mesh_Rpc_Id=rpc_id)
    async for chunk in stream:
        kinds.append(chunk.headers["Mesh-Chunk"])
        if len(kinds) == 1:
            reply = await connection.request(f"mesh.ctl.default.{rpc_id}", b'{"type":"cancel"}', timeout=15)
            assert json.loads(reply.data) == {"cancelled": True}
    assert kinds[-1] == "error"
    assert json.loads(chunk.data)["code"] == "cancelled"
    assert len(kinds) < 100


@connected
async def test_many_calls_at_once(connection: Client) -> None:
    naps = [call(connection, "lab.timing.nap", {"seconds": n / 1000}) for n in range(50)]
    texts = [json.loads(reply.data) for reply in await asyncio.gather(*naps)]
    assert texts == [f"napped {n / 1000:g} s" for n in range(50)]


@connected
async def test_one_service_for_each_agent(connection: Client) -> None:
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox)
    await connection.publish("$SRV.PING.mesh-agent", b"", reply=inbox)
    service = json.loads((await subscription.next_msg(timeout=15)).data)
    assert service["name"] == "mesh-agent"
    assert service["metadata"]["node"]
    await call(connection, "lab.timing.nap", {"seconds": 0})
    assert subscription.pending_msgs == 0
