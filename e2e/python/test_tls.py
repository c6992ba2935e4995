"""NATS contexts that say how TLS is done, on servers that MESH_E2E_TLS has: e2e/tls_test.go."""

import json
import os
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hosting import until, works

import toolmesh
from toolmesh import Host, Mesh
from toolmesh._client import connection

FILES = pathlib.Path(os.environ["MESH_E2E_TLS"])
LOCKED = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgR+PeJE/EEggICA+gw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEAQIEEOvx+ZECmhUE8/uwisdJOCIEgZAd
ZkB8gzsNFy7+l5ZHnW4Wr3KrPj6px5dQl5uuRnTVDckPWn+WarazzRJs/6sq6SbF
q/pvlQhj4XYrNhKuY3HiXMriLYTs3N4cnvL3XLUmUsx6Wl1bfeH/guvfTnQUHCrt
zLNjOvMHeOngq9h8A4yM79bsDkvrB43ppaje+H61t/T9kY/w8hgvlZMGsLdEZXY=
-----END ENCRYPTED PRIVATE KEY-----
"""


@pytest.fixture(autouse=True)
def contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(FILES))


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Callable[..., str]:
    """The name of a context like "tls" but for what is given; None leaves it out."""
    def change(**more: Any) -> str:
        said = json.loads((FILES / "nats" / "context" / "tls.json").read_text())
        said = {key: value for key, value in {**said, **more}.items() if value is not None}
        (tmp_path / "nats" / "context").mkdir(parents=True)
        (tmp_path / "nats" / "context" / "changed.json").write_text(json.dumps(said))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        return "changed"

    return change


def test_a_context_with_tls() -> None:
    with Mesh(context="tls") as mesh:
        assert mesh.call("lab.double", {"n": 4}) == 8
        assert [one.id for one in mesh.tools()] == ["lab.double"]


def test_a_server_with_tls_from_the_first_byte() -> None:
    with Mesh(context="first") as mesh, pytest.raises(toolmesh.Unavailable, match="answers, but no mesh"):
        mesh.tools()


@pytest.mark.usefixtures("binary")
def test_a_host() -> None:
    host = Host(context="tls", index="secret")

    @host.tool
    def three() -> int:
        return 3

    with host, Mesh(context="tls") as mesh:
        until(lambda: works(mesh, "secret.three") == 3)


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
def test_a_file_that_is_missing(changed: Callable[..., str], name: str) -> None:
    with Mesh(context=changed(**{name: "/nowhere/at.pem"})) as mesh:
        with pytest.raises(toolmesh.Unavailable, match=r"no file /nowhere/at\.pem"):
            mesh.call("lab.double", {"n": 1})


@pytest.mark.parametrize(("more", "message"), [
    ({"key": None}, "one of cert and key"), ({"cert": None}, "one of cert and key"),
    ({"ca": str(FILES / "client-key.pem")}, "client-key.pem holds no certificates"),
    ({"key": str(FILES / "ca-key.pem")}, "is not the certificate of"),
    ({"url": "ws://127.0.0.1:1"}, "in the clear"),
])
def test_invalid_tls_files_are_refused(changed: Callable[..., str], more: dict[str, Any], message: str) -> None:
    with Mesh(context=changed(**more)) as mesh, pytest.raises(toolmesh.InvalidRequest, match=message):
        mesh.call("lab.double", {"n": 1})


def test_a_key_with_a_password(changed: Callable[..., str], tmp_path: pathlib.Path) -> None:
    locked = tmp_path / "locked.pem"
    locked.write_text(LOCKED)
    with Mesh(context=changed(key=str(locked))) as mesh, pytest.raises(toolmesh.InvalidRequest, match="has a password"):
        mesh.call("lab.double", {"n": 1})


@pytest.mark.parametrize("more", [{"ca": None}, {"cert": None, "key": None}])
def test_an_untrusted_certificate(
    changed: Callable[..., str], more: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_CONNECTING", 1.0)
    with Mesh(context=changed(**more)) as mesh, pytest.raises(toolmesh.Unavailable, match="no mesh at"):
        mesh.call("lab.double", {"n": 1})


@pytest.fixture
def stranger() -> Iterator[tuple[str, list[bytes]]]:
    """Whoever is between: a server without TLS, and what it is told first."""
    heard: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                one, _ = listening.accept()
            except OSError:
                return
            with one:
                one.settimeout(30)
                one.sendall(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"headers":true}\r\n')
                heard.append(one.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", heard
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(("scheme", "more"), [("nats", {}), ("tls", {"ca": None, "cert": None, "key": None})])
def test_a_server_that_does_not_speak_tls_hears_no_password(
    changed: Callable[..., str], stranger: tuple[str, list[bytes]], scheme: str, more: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_CONNECTING", 1.0)
    where, heard = stranger
    with Mesh(context=changed(url=f"{scheme}://{where}", **more)) as mesh, pytest.raises(toolmesh.Unavailable):
        mesh.call("lab.double", {"n": 1})
    assert heard and all(one[:1] == b"\x16" for one in heard), heard  # a handshake's first byte
