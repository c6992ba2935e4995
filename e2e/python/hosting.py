"""What the tests of the Python host share."""

import pathlib
import time
import uuid
from collections.abc import Callable
from typing import Any

from conftest import HERE

from toolmesh import Mesh, MeshError

SOURCE = str(HERE.parent.parent / "python" / "src")


def until(happened: Callable[[], Any]) -> Any:
    end = time.monotonic() + 30
    while True:
        got = happened()
        if got:
            return got
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def name() -> str:
    return f"h{uuid.uuid4().hex[:8]}"


def works(mesh: Mesh, tool: str) -> Any:
    """What a tool returns; None while it fails."""
    try:
        return mesh.call(tool)
    except MeshError:
        return None


def children(pid: int) -> list[str]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            if path.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(path.parent.name)
        except OSError:
            pass
    return found
