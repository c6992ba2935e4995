"""Files as arguments and results: by path on both sides, and no path travels."""

import asyncio
import hashlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import HERE, Started
from test_client import Async, Sync

import toolmesh
from toolmesh import File

MB = 1 << 20


@pytest.fixture(scope="module")
def filed(rich: Started) -> Started:
    """The mesh with the tools of indexes/files."""
    rich.run("install", str(HERE / "indexes" / "files"))
    return rich


@pytest.fixture(params=[Sync, Async])
def both(request: pytest.FixtureRequest, filed: Started) -> Iterator[Any]:
    one = request.param(filed.url)
    yield one
    one.close()


@pytest.fixture
def document(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file of a few megabytes."""
    path = tmp_path / "some report.txt"
    path.write_bytes(b"0123456789abcdef" * (3 * MB // 16) + b"end")
    return path


@pytest.mark.parametrize("name", ["copy", "acopy"])
def test_there_and_back(both: Any, document: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    sent = File(document, type="text/plain")
    told = both.call("files.files.digest", {"document": sent})
    assert told == {"sha256": hashlib.sha256(document.read_bytes()).hexdigest(), "size": 3 * MB + 3,
                    "name": "some report.txt", "type": "text/plain"}
    back = both.call(f"files.files.{name}", {"document": File(document)})
    assert back["name"] == "copy of some report.txt" and back["size"] == 3 * MB + 3
    folder = tmp_path / "back"
    folder.mkdir()
    saved = both.run("save", back, folder)
    assert saved == str(folder / "copy of some report.txt")
    assert pathlib.Path(saved).read_bytes() == document.read_bytes()
    with pytest.raises(toolmesh.InvalidRequest, match="does not exist"):
        for _ in range(100):  # deleting it waits for no answer
            both.run("save", back, tmp_path / "again")
    assert [one.name for one in folder.iterdir()] == ["copy of some report.txt"]


def test_small_and_empty(both: Any, tmp_path: pathlib.Path) -> None:
    for size in (0, 1, 512 << 10):
        made = both.call("files.files.make", {"size": size, "name": "m"})
        assert (made["size"], made["name"], made["type"]) == (size, "m", "application/x-made")
        saved = pathlib.Path(both.run("save", made, tmp_path / "x"))
        assert saved.stat().st_size == size


def test_many_and_nested(both: Any, document: pathlib.Path, tmp_path: pathlib.Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"12345")
    assert both.call("files.files.listed", {"documents": [File(document), File(small), File(small)]}) == 3 * MB + 13
    assert both.call("files.files.inside", {"size": 2 * MB})["size"] == 2 * MB
    made = both.call("files.files.make", {"size": 7})
    assert both.call("files.files.digest", {"document": made})["size"] == 7  # one that came from a tool is passed on
    assert both.run("batch", [("files.files.digest", {"document": File(small)})])[0]["size"] == 5


def test_files_outside_of_given_folders_are_refused(both: Any, document: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for name in ("outside", "link"):
        for path in ("/etc/passwd", str(document), "/proc/self/environ", "/nowhere"):
            with pytest.raises(toolmesh.ResultNotSerializable, match="outside of the folders"):
                both.call(f"files.files.{name}", {"path": path})
    path = "/etc/passwd"
    for bad in (path, {"$file": path}, {"$file": path, "digest": "", "path": path}, None, 7):
        with pytest.raises(toolmesh.InvalidArguments):
            both.call("files.files.digest", {"document": bad})
    for name, error in ((path, "not of session"), ("other.x", "not of session"), ("default.none", "does not exist")):
        gone = {"$file": name, "digest": "SHA-256=" + "A" * 43 + "="}
        with pytest.raises(toolmesh.MeshError, match=error):
            both.call("files.files.digest", {"document": gone})
        with pytest.raises((toolmesh.MeshError, TypeError)):
            both.run("save", gone, tmp_path)
    with pytest.raises(FileNotFoundError):
        both.call("files.files.digest", {"document": File(tmp_path / "none")})
    with pytest.raises(TypeError, match="not a file"):
        both.run("save", {"a": 1}, tmp_path)


def test_files_go_with_their_call(filed: Started, document: pathlib.Path) -> None:
    """What a call had is not there for the next one of its worker."""
    async def look() -> list[str]:
        mesh = toolmesh.AsyncMesh(filed.url)
        try:
            await mesh.call("files.files.digest", {"document": File(document)})
            return [str(one) for one in filed.folder.rglob("some report.txt")]
        finally:
            await mesh.close()

    assert asyncio.run(look()) == [str(document)] or asyncio.run(look()) == []
