"""The client of nats-py with its shorter ways: what goes out, what comes in, and what it does with odd messages."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from toolmesh._client import broker
from toolmesh._client.broker import Broker, taking

INFO = b'INFO {"server_id":"s","version":"2.12.0","headers":true,"max_payload":200,"proto":1}\r\n'


class Server:
    """A NATS server of a few lines: what it was told, and messages to its one subscription."""

    def __init__(self) -> None:
        self.told = b""
        self._writer: Any = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        writer.write(INFO)
        while data := await reader.read(1 << 16):
            self.told += data
            writer.write(b"PONG\r\n" * data.count(b"PING\r\n"))
        writer.close()

    def give(self, *messages: bytes) -> None:
        for headers in messages:
            head = b"NATS/1.0" + headers
            self._writer.write(b"HMSG a.b 1 %d %d\r\n%b\r\n" % (len(head), len(head), head))


def connected(work: Callable[[Broker, Server], Awaitable[None]]) -> None:
    async def main() -> None:
        server = Server()
        listening = await asyncio.start_server(server.serve, "127.0.0.1")
        nc = Broker(False)
        await nc.connect(f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}", allow_reconnect=False)
        try:
            await work(nc, server)
        finally:
            await nc.close()
            listening.close()

    asyncio.run(asyncio.wait_for(main(), 15))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(("value", "written"), [
    ("plain", "plain"), ("é ü", "é ü"), ("a\r\nB: c", "a  B: c"), ("a\nPUB x 0", "a PUB x 0"), ("a\rB", "a B"),
])
def test_headers_are_written_on_one_line_each(monkeypatch, quick, value, written):
    monkeypatch.setattr(broker, "_QUICK", quick)

    async def work(nc: Broker, server: Server) -> None:
        headers = {"Mesh-Rpc-Id": "one", "Mesh-Isolation": value}
        await nc.flush()
        before = len(server.told)
        await nc.publish("a.b", b"{}", "in.box", headers)
        await nc.flush()
        plain = server.told[before:]
        await nc.post("a.b", b"{}", "in.box", headers)
        await nc.flush()
        assert server.told[before + len(plain):] == plain
        assert plain.count(b"HPUB a.b in.box ") == 1 and plain.count(b"PUB") == 1 + value.count("PUB")
        assert f"\r\nMesh-Isolation: {written}\r\n\r\n".encode() in plain

    connected(work)


def test_a_message_that_is_too_long_with_its_headers_is_refused():
    async def work(nc: Broker, server: Server) -> None:
        await nc.post("a.b", bytes(100), "in.box", {"Mesh-Rpc-Id": "one"})
        with pytest.raises(nats.errors.MaxPayloadError):
            await nc.post("a.b", bytes(190), "in.box", {"Mesh-Rpc-Id": "one"})
        await nc.flush()
        assert nc.is_connected

    connected(work)


@pytest.mark.parametrize(("raw", "read"), [
    (b"\r\nMesh-Node: n\r\nMesh-Boot: b: c\r\n\r\n", {"Mesh-Node": "n", "Mesh-Boot": "b: c"}),
    (b"\r\nMesh-Warning: \r\n\r\n", {"Mesh-Warning": ""}), (b" 503\r\n\r\n", {"Status": "503"}),
    (b" 100 Idle Heartbeat\r\nNats-Last: 3\r\n\r\n",
     {"Status": "100", "Description": "Idle Heartbeat", "Nats-Last": "3"}),
    (b"\r\n\r\n", None), (b"\r\nMesh-Node:n\r\n\r\n", {"Mesh-Node": "n"}),
    (b"\r\nMesh-Node: \xc3\xa9\r\n\r\n", {"Mesh-Node": "é"}),
    (b"\r\nMesh-Node: a\r\nMesh-Node: b\r\n\r\n", {"Mesh-Node": "b"}),
])
def test_headers_are_read_in_one_step(raw, read):
    assert asyncio.run(Broker(False)._process_headers(b"NATS/1.0" + raw)) == read


@pytest.mark.parametrize("raw", [b"\r\nMesh-Node: \xff\r\n\r\n", b"\r\nno colon\r\nMesh-Node: n\r\n\r\n"])
def test_headers_that_no_node_writes_are_read_as_nats_py_reads_them(raw):
    async def main() -> None:
        assert await Broker(False)._process_headers(b"NATS/1.0" + raw) == (
            await Client()._process_headers(b"NATS/1.0" + raw))

    asyncio.run(main())


def test_a_message_that_cannot_be_taken_ends_no_connection(caplog):
    async def work(nc: Broker, server: Server) -> None:
        last = asyncio.get_running_loop().create_future()

        def take(message: Msg) -> None:
            number = int((message.headers or {})["Mesh-Seq"])
            if number == 2:
                last.set_result(number)

        await nc.subscribe("a.b", future=taking(take))
        await nc.flush()
        server.give(b"\r\nMesh-Seq: 1\r\n\r\n", b"\r\nOther: 1\r\n\r\n", b"\r\nMesh-Seq: 2\r\n\r\n")
        assert await last == 2

    with caplog.at_level(logging.ERROR, "toolmesh"):
        connected(work)
    assert "a message on a.b cannot be read" in caplog.text
