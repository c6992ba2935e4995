"""The client of nats-py with its shorter ways: what goes out, what comes in, and what it does with odd messages."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from toolmesh._client import connection
from toolmesh._client.broker import Broker, taking
from toolmesh._client.connection import Connection
from toolmesh._client.finding import Found
from toolmesh._core import errors


class Server:
    """A NATS server of a few lines: what it was told, and messages to its one subscription."""

    def __init__(self, max_payload: int = 200) -> None:
        self.told = b""
        self.connections = 0
        self.refuses = False
        self.frozen = False  # reads nothing more of the current connection
        self.subscribed: Callable[[bytes], Awaitable[bytes]] | None = None  # its answer to a subscription
        self.url = ""
        self._writer: Any = None
        self._info = (b'INFO {"server_id":"s","version":"2.12.0","headers":true,"max_payload":%d,"proto":1}\r\n'
                      % max_payload)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer, self.told, self.frozen = writer, b"", False
        self.connections += 1
        try:
            await self._read(reader, writer)
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._info)
        while data := await reader.read(1 << 16):
            if self._writer is not writer:
                return
            self.told += data
            if self.refuses:
                writer.write(b"-ERR 'Authorization Violation'\r\n")
                await writer.drain()
                return
            if self.subscribed is not None and b"SUB " in data:
                writer.write(await self.subscribed(data))
            writer.write(b"PONG\r\n" * data.count(b"PING\r\n"))
            while self.frozen and self._writer is writer:
                await asyncio.sleep(0.01)

    def give(self, *messages: bytes) -> None:
        for headers in messages:
            self.give_raw(b"NATS/1.0" + headers)

    def give_raw(self, head: bytes) -> None:
        self._writer.write(b"HMSG a.b 1 %d %d\r\n%b\r\n" % (len(head), len(head), head))

    def cut(self) -> None:
        self._writer.close()


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def served(work: Callable[[Server], Awaitable[None]], server: Server) -> None:
    async def main() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1")
        server.url = f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        try:
            await work(server)
        finally:
            listening.close()
            server.frozen = False
            await until(lambda: len(asyncio.all_tasks()) == 2)  # this one and its timeout's

    asyncio.run(asyncio.wait_for(main(), 15))


def connected(work: Callable[[Broker, Server], Awaitable[None]], max_payload: int = 200, **options: Any) -> None:
    async def main(server: Server) -> None:
        nc = Broker(False)
        await nc.connect(server.url, **{"allow_reconnect": False, **options})
        try:
            await work(nc, server)
        finally:
            await nc.close()

    served(main, Server(max_payload))


@pytest.mark.parametrize(("value", "written"), [
    ("plain", "plain"), ("é ü", "é ü"), ("a\r\nB: c", "a  B: c"), ("a\nPUB x 0", "a PUB x 0"), ("a\rB", "a B"),
])
def test_headers_are_written_on_one_line_each(value, written):
    async def work(nc: Broker, server: Server) -> None:
        headers = {"Mesh-Rpc-Id": "one", "Mesh-Isolation": value}
        await nc.flush()
        before = len(server.told)
        await nc.publish("a.b", b"{}", "in.box", headers)
        await nc.flush()
        plain = server.told[before:]
        await nc.post("a.b", b"{}", "in.box", headers)
        await nc.flush()
        if value == written:
            assert server.told[before + len(plain):] == plain
        plain = server.told[before + len(plain):]
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


@pytest.mark.parametrize("head", [b"X", b"NATS/1.0 \xff\xff\xff\r\n\r\n"])
def test_headers_that_nats_py_cannot_read_do_not_make_a_connection_deaf(head):
    async def work(nc: Broker, server: Server) -> None:
        arrived = asyncio.Event()
        await nc.subscribe("a.b", future=taking(lambda _: arrived.set()))
        await nc.flush()
        server.give_raw(head)
        await until(lambda: server.connections == 2 and b"SUB a.b" in server.told)
        server.give(b"\r\nMesh-Seq: 2\r\n\r\n")
        await asyncio.wait_for(arrived.wait(), 5)

    connected(work, allow_reconnect=True, reconnect_time_wait=0)


def test_a_reconnect_with_an_unexpected_error_closes_the_connection():
    """Such as that of a key's file which is being written: the next call makes another connection."""
    ended: list[object] = []

    async def closed() -> None:
        ended.append(1)

    async def work(nc: Broker, server: Server) -> None:
        def half() -> bytes:
            raise ValueError("no seed")

        nc._connect_command = half  # type: ignore[method-assign]
        server.cut()
        await until(lambda: nc.is_closed)
        await until(lambda: ended)

    connected(work, allow_reconnect=True, reconnect_time_wait=0, closed_cb=closed)


def frozen(work: Callable[[Broker, Server], Awaitable[None]]) -> None:
    """On a connection whose server does not read what is written."""
    async def main(nc: Broker, server: Server) -> None:
        server.frozen = True
        await nc.flush()
        for _ in range(24):
            await asyncio.wait_for(nc.post("a.b", bytes(1 << 20), "in.box", {"Mesh-Rpc-Id": "one"}), 2)
        await nc.publish("a.b")
        assert nc.crowded
        await work(nc, server)

    connected(main, 2 << 20, allow_reconnect=True, reconnect_time_wait=0, pending_size=2 << 20, flusher_queue_size=0)


def test_a_frozen_server_holds_up_no_close():
    async def work(nc: Broker, server: Server) -> None:
        await asyncio.wait_for(nc.close(), 5)

    frozen(work)


def test_a_frozen_server_holds_up_no_reconnect_and_old_requests_are_not_sent():
    async def work(nc: Broker, server: Server) -> None:
        await nc._process_op_err(nats.errors.StaleConnectionError())
        await until(lambda: nc.is_connected)
        await nc.flush()
        assert server.connections == 2 and b"PUB" not in server.told

    frozen(work)


def test_what_was_encrypted_and_not_written_counts_as_waiting():
    async def work(nc: Broker, server: Server) -> None:
        size, plain = (SimpleNamespace(transport=SimpleNamespace(get_write_buffer_size=lambda size=size: size))
                       for size in (1 << 20, 0))
        transport = nc._transport
        nc._transport = SimpleNamespace(_bare_io_writer=size, _io_writer=plain)  # type: ignore[assignment]
        assert nc.crowded
        nc._transport = transport
        assert not nc.crowded

    connected(work)


def test_a_link_that_brings_messages_is_not_dead():
    """Its pings wait behind requests of many megabytes."""
    async def work(nc: Broker, server: Server) -> None:
        nc._pings_outstanding = 2
        await nc._send_ping()
        assert nc._pings_outstanding == 2
        await nc.subscribe("a.b", future=taking(lambda _: None))
        await nc.flush()
        server.give(b"\r\nMesh-Seq: 1\r\n\r\n")
        await until(lambda: nc.stats["in_msgs"])
        nc._pings_outstanding = 2
        await nc._send_ping()
        assert nc._pings_outstanding == 1

    connected(work)


def linked(work: Callable[[Connection, Server], Awaitable[None]], server: Server, **found: Any) -> None:
    async def main(server: Server) -> None:
        link = Connection(lambda: Found([server.url], **found), "", "s")
        try:
            await work(link, server)
        finally:
            await link.close()

    served(main, server)


def test_a_connection_that_is_closed_while_it_opens_leaves_nothing():
    """However far it has come; served waits for the end of all tasks."""
    async def work(server: Server) -> None:
        for turns in range(60):
            link = Connection(lambda: Found([server.url]), "", "s")
            opening = asyncio.ensure_future(link.ready())
            for _ in range(turns):
                await asyncio.sleep(0)
            await link.close()
            await asyncio.gather(opening, return_exceptions=True)

    served(work, Server())


def test_calls_wait_for_the_inbox_that_a_key_allows(monkeypatch):
    monkeypatch.setattr(Broker, "_setup_nkeys_connect", lambda _: None)  # the library for signing is not installed
    asked, answer, server = asyncio.Event(), asyncio.Event(), Server()

    async def subscribed(data: bytes) -> bytes:
        asked.set()
        await answer.wait()
        subject = data.partition(b"SUB ")[2].split()[0]
        refusal = b"-ERR 'Permissions Violation for Subscription to \"%b\"'\r\n" % subject
        return refusal if subject.startswith(b"_INBOX_mesh_admin") else b""

    async def work(link: Connection, server: Server) -> None:
        first = asyncio.ensure_future(link.ready())
        await asked.wait()
        second = asyncio.ensure_future(link.ready())
        await asyncio.wait([second], timeout=0.1)
        assert not second.done(), link.inbox
        answer.set()
        assert await first is await second
        assert link.inbox.startswith("_INBOX_s.")

    server.subscribed = subscribed
    linked(work, server, creds="any")


def test_a_connection_that_is_lost_before_it_has_an_inbox_is_unavailable(monkeypatch):
    monkeypatch.setattr(Broker, "_setup_nkeys_connect", lambda _: None)
    monkeypatch.setattr(connection, "_CONNECTING", 0.5)
    server = Server()

    async def subscribed(_: bytes) -> bytes:
        server.cut()
        return b""

    async def work(link: Connection, _: Server) -> None:
        with pytest.raises(errors.Unavailable):
            await link.ready()

    server.subscribed = subscribed
    linked(work, server, creds="any")


def test_a_question_that_no_message_can_carry_is_too_large():
    async def work(link: Connection, _: Server) -> None:
        with pytest.raises(errors.PayloadTooLarge, match="300 bytes"):
            await link.ask("a.b", bytes(300))

    linked(work, Server())


def test_a_dead_link_is_noticed_as_soon_as_by_other_programs_of_the_mesh():
    async def work(link: Connection, _: Server) -> None:
        assert (await link.ready()).options["ping_interval"] == 10

    linked(work, Server())


def test_a_key_that_is_refused_after_a_cut_is_told():
    async def work(link: Connection, server: Server) -> None:
        nc = await link.ready()
        server.refuses = True
        server.cut()
        await until(lambda: nc.is_closed)
        with pytest.raises(errors.PermissionDenied):
            await link.ready()
        server.refuses = False
        assert (await link.ready()).is_connected

    linked(work, Server())
