"""Where the client looks for a mesh."""

import json
import os

import pytest

import toolmesh
from toolmesh._client import finding
from toolmesh._client.broker import Broker


@pytest.fixture(autouse=True)
def nothing(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(("MESH_", "NATS_")):
            monkeypatch.delenv(name)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))


def record(tmp_path, url, started="2026-01-01", **more):
    process = ""
    with open("/proc/self/stat") as stat, open("/proc/sys/kernel/random/boot_id") as boot:
        process = f"{boot.read().strip()}/{stat.read().rpartition(')')[2].split()[19]}"
    (tmp_path / "toolmesh").mkdir(exist_ok=True)
    said = {"url": url, "pid": os.getpid(), "process": process, "data_dir": str(tmp_path), "started": started, **more}
    (tmp_path / "toolmesh" / f"{started}.mesh.json").write_text(json.dumps(said))


def test_the_order(monkeypatch, tmp_path):
    assert finding.find().servers == ["nats://127.0.0.1:4222"]
    record(tmp_path, "nats://127.0.0.1:1")
    record(tmp_path, "nats://127.0.0.1:2", "2026-01-02")
    record(tmp_path, "nats://127.0.0.1:3", "2026-01-03", process="another/1")
    assert finding.find().servers == ["nats://127.0.0.1:2"], "the latest that lives"
    monkeypatch.setenv("NATS_URL", "nats://n:1")
    assert finding.find().servers == ["nats://n:1"]
    monkeypatch.setenv("MESH_NATS_URL", "")
    assert finding.find().servers == ["nats://127.0.0.1:2"], "as for the commands, an empty one switches NATS_URL off"
    monkeypatch.setenv("MESH_NATS_URL", "nats://m:1, nats://m:2")
    assert finding.find().servers == ["nats://m:1", "nats://m:2"]
    (tmp_path / "nats" / "context").mkdir(parents=True)
    (tmp_path / "nats" / "context" / "prod.json").write_text('{"url": "nats://p:1", "user": "u", "password": "hush"}')
    found = finding.find(context="prod")
    assert (found.servers, found.user, found.password) == (["nats://p:1"], "u", "hush")
    assert "hush" not in repr(found)
    assert finding.find("nats://a:1").servers == ["nats://a:1"]


@pytest.mark.parametrize(("settings", "expected"), [
    ({"servers": "http://x"}, ValueError), ({"servers": "nats://"}, ValueError),
    ({"context": "none"}, FileNotFoundError), ({"context": "../x"}, FileNotFoundError),
    ({"creds": "/nowhere"}, FileNotFoundError), ({"nkey": "/nowhere"}, FileNotFoundError),
])
def test_invalid_settings_are_refused(settings, expected):
    with pytest.raises(expected):
        finding.find(**settings)


def test_credentials_are_a_jwt_and_a_seed(tmp_path):
    """nats-py would read another file for ever."""
    file = tmp_path / "a.creds"
    for text in ("", "SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ", "-----BEGIN NATS USER JWT-----\nx\n"):
        file.write_text(text)
        with pytest.raises(ValueError, match="no NATS credentials"):
            finding.find(creds="~/a.creds")
        with pytest.raises(ValueError, match="no NATS credentials"):
            Broker(False)._read_creds_user_jwt(str(file))
    file.write_text("-----BEGIN NATS USER JWT-----\nx\n-----BEGIN USER NKEY SEED-----\ny\n")
    assert finding.find(creds="~/a.creds").creds == str(file)


@pytest.mark.parametrize("server", ["nats://bob:hush@127.0.0.1:1", "nats://hush@127.0.0.1:1", "bob:hush@127.0.0.1:1",
                                    "http://bob:hush@host", "nats://bob:hu/sh@h:1", "nats://bob:hush,hush@h:1",
                                    "http://bob:hush,hush@h"])
def test_errors_show_no_credentials_of_a_server(server):
    with pytest.raises(toolmesh.MeshError) as raised, toolmesh.Mesh(server) as mesh:
        mesh.call("a.b.c")
    assert "hush" not in str(raised.value) + repr(raised.value.details)
    assert "bob" not in str(raised.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of root's")
def test_a_group_may_read_a_key_of_root(tmp_path, monkeypatch):
    file = tmp_path / "a.nk"
    file.write_text("nothing")
    file.chmod(0o440)
    with pytest.raises(PermissionError, match="chmod 600"):
        finding.seed(str(file))
    monkeypatch.setattr(os, "geteuid", lambda: 65532)
    with pytest.raises(ValueError, match="no seed"):
        finding.seed(str(file))
    file.chmod(0o460)
    with pytest.raises(PermissionError, match="chmod 600"):
        finding.seed(str(file))


def test_keys(tmp_path):
    file = tmp_path / "a.nk"
    file.write_text("# a key\nSUAMRUTRFAZS456KZ4UCABTPM6TVJ246VTYZ3NS3IJ5M5KOZP7PJME3WUU\n")
    with pytest.raises(PermissionError, match="chmod 600"):
        finding.seed(str(file))
    file.chmod(0o600)
    if finding._signs():
        assert finding.seed(str(file)).startswith("SUAM")
    else:
        with pytest.raises(ValueError, match="toolmesh\\[keys\\]"):
            finding.seed(str(file))
    file.write_text("nothing")
    with pytest.raises(ValueError, match="no seed"):
        finding.seed(str(file))


def test_the_key_of_mesh_up_signs_for_its_server_alone(monkeypatch, tmp_path):
    """Another server of a list could pass the challenge on, and be logged in with the answer."""
    monkeypatch.setattr(finding, "_signs", lambda: True)
    ours = "nats://127.0.0.1:4333"
    record(tmp_path, ours, keys=True)
    (tmp_path / "keys").mkdir()
    key = tmp_path / "keys" / "admin.nk"
    key.write_text("SU" + "A" * 56)
    key.chmod(0o600)
    for servers in (ours, "localhost:4333", f"{ours},nats://localhost:4333"):
        assert finding.find(servers).nkey, servers
    for servers in (f"{ours},nats://elsewhere:4333", f"nats://127.0.0.1:9,{ours}"):
        assert finding.find(servers).nkey is None, servers
    monkeypatch.setenv("NATS_CONTEXT", "of another program")
    monkeypatch.setenv("MESH_NATS_URL", ours)
    assert finding.find().nkey, "the context is not used"
