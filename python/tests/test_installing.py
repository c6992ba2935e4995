"""What mesh install is given: by its command line and its environment."""

import subprocess

import pytest

import toolmesh
from toolmesh import binary
from toolmesh._client import installing


@pytest.mark.parametrize("paths", ["/data:rw", ["/data:rw"]])
def test_one_folder_is_one(monkeypatch, paths):
    seen = []

    def run(command, **_more):
        seen.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(binary, "find", lambda: "mesh")
    monkeypatch.setattr(subprocess, "run", run)
    toolmesh.Mesh("nats://localhost:1").install("someone/something", paths=paths)
    assert [one for one in seen[0] if one.startswith("--path")] == ["--path=/data:rw"]


def test_an_index_is_for_the_session_that_calls_go_to():
    mesh = toolmesh.Mesh("nats://localhost:1")
    assert "MESH_SESSION" not in installing._environment(mesh._links.settings, mesh.session_name)
    with toolmesh.scope("alice"):
        assert installing._environment(mesh._links.settings, mesh.session_name)["MESH_SESSION"] == "alice"
    assert installing._environment(mesh._links.settings, "bob")["MESH_SESSION"] == "bob"
