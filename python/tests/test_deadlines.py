"""A call's time bounds all that is done for it: to connect, to ask the registry, to write its arguments."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

import toolmesh
from toolmesh import Mesh, ToolTimeout

INFO = b'INFO {"server_id":"x","version":"2.12.0","proto":1,"headers":true,"max_payload":1048576}\r\n'


def silent(connection: socket.socket) -> None:
    """A server that never says anything."""
    while connection.recv(1 << 16):
        pass


def without_registry(connection: socket.socket, registry: bytes = b"", heard: threading.Event | None = None) -> None:
    """A NATS server where no tool has a subscriber, and the registry's is frozen if it has no answer."""
    connection.sendall(INFO)
    lines, sid = connection.makefile("rb"), b""
    while line := lines.readline():
        words = line.split()
        if words[0] == b"PING":
            connection.sendall(b"PONG\r\n")
        elif words[0] == b"SUB" and words[1].startswith(b"_INBOX"):
            sid = words[-1]
        elif words[0] in (b"PUB", b"HPUB"):
            lines.read(int(words[-1]) + 2)
            if words[1].startswith(b"mesh.registry.") and registry:
                connection.sendall(b"MSG %s %s %d\r\n%s\r\n" % (words[2], sid, len(registry), registry))
            elif words[1].startswith((b"tools.", b"mesh.batch.")):
                if heard is not None:
                    heard.set()
                head = b"NATS/1.0 503\r\n\r\n"
                connection.sendall(b"HMSG %s %s %d %d\r\n%s\r\n" % (words[2], sid, len(head), len(head), head))


def with_registry(connection: socket.socket) -> None:
    without_registry(connection, b"{}")


@contextlib.contextmanager
def serving(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(server.accept()[0])
                    threading.Thread(target=one, args=(taken[-1],), daemon=True).start()

        def one(connection: socket.socket) -> None:
            with contextlib.suppress(OSError):
                talk(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield f"nats://127.0.0.1:{server.getsockname()[1]}"
        for connection in taken:
            connection.close()


CALLS: list[Callable[[Mesh], object]] = [
    lambda mesh: mesh.call("weather.forecast", {}, timeout=0.2),
    lambda mesh: mesh.call("weather.forecast", {"image": b"x"}, timeout=0.2),
    lambda mesh: list(mesh.stream("weather.forecast", {}, timeout=0.2)),
    lambda mesh: list(mesh.stream("weather.forecast", {"image": b"x"}, timeout=0.2)),
    lambda mesh: mesh.batch([("weather.forecast", {"image": b"x"})], timeout=0.2),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("talk", [silent, without_registry])
def test_a_calls_time_includes_connecting(
    talk: Callable[[socket.socket], None], call: Callable[[Mesh], object],
) -> None:
    with serving(talk) as url, Mesh(url) as mesh:
        with pytest.raises(ToolTimeout) as told:
            call(mesh)
        assert told.value.started is False, told.value


def test_calls_that_give_up_leave_the_connection_to_those_that_come() -> None:
    opened: list[socket.socket] = []
    given_up, asked = threading.Event(), threading.Event()

    def late(connection: socket.socket) -> None:
        opened.append(connection)
        given_up.wait()
        without_registry(connection, heard=asked)

    with serving(late) as url, Mesh(url) as mesh:
        for _ in range(4):
            with pytest.raises(ToolTimeout):
                mesh.call("weather.forecast", {}, timeout=0.1)
        given_up.set()
        with pytest.raises(ToolTimeout):
            mesh.call("weather.forecast", {}, timeout=1)
        assert asked.is_set()
        assert len(opened) == 1


def test_a_members_time_begins_at_a_node() -> None:
    """It is not spent by what is done for other members."""
    members = [("a.x", {"image": b"x"}, 5.0), ("b.x", {"image": b"x"}, 1e-6)]
    with serving(with_registry) as url, Mesh(url) as mesh:
        with pytest.raises(toolmesh.Unavailable, match="no node runs batches"):
            mesh.batch(members, timeout=30, return_exceptions=True)
