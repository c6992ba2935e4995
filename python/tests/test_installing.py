"""What mesh install is given: by its command line and its environment."""

import json
import pathlib
import subprocess
from typing import Any

import pytest

import toolmesh
from toolmesh import binary
from toolmesh._client import installing


def _given(monkeypatch, *source, **options):
    """The command line of an install, and what stdin says."""
    seen: list[Any] = []

    def run(command, input, **_more):
        seen.extend((command, json.loads(input)))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(binary, "find", lambda: "mesh")
    monkeypatch.setattr(subprocess, "run", run)
    toolmesh.Mesh("nats://localhost:1").install(*source, **options)
    return seen


def test_a_repository_is_not_a_folder(monkeypatch, tmp_path):
    (tmp_path / "owner" / "repo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for source, want in {
        "owner/repo": "owner/repo", "owner/repo@v1": "owner/repo@v1", "./owner/repo": f"{tmp_path}/owner/repo",
        pathlib.Path("owner/repo"): f"{tmp_path}/owner/repo", "owner": f"{tmp_path}/owner",
    }.items():
        assert _given(monkeypatch, source)[1]["source"] == want


@pytest.mark.parametrize("paths", ["/data:rw", ["/data:rw"]])
def test_one_folder_is_one(monkeypatch, paths):
    command = _given(monkeypatch, "someone/something", paths=paths)[0]
    assert [one for one in command if one.startswith("--path")] == ["--path=/data:rw"]


def test_an_index_is_for_the_session_that_calls_go_to():
    mesh = toolmesh.Mesh("nats://localhost:1")
    assert "MESH_SESSION" not in installing._environment(mesh._links.settings, mesh.session_name)
    with toolmesh.scope("alice"):
        assert installing._environment(mesh._links.settings, mesh.session_name)["MESH_SESSION"] == "alice"
    assert installing._environment(mesh._links.settings, "bob")["MESH_SESSION"] == "bob"
