"""Tools whose parameters and results are files."""

import hashlib
import os
import pathlib
import tempfile
from typing import Any

from toolmesh import File, mesh


def digest(document: File) -> dict[str, Any]:
    """What a file is."""
    summed, size = hashlib.sha256(), 0
    with document.open() as file:
        while piece := file.read(1 << 20):
            summed.update(piece)
            size += len(piece)
    return {"sha256": summed.hexdigest(), "size": size, "name": document.name, "type": document.type}


def make(size: int, name: str = "made.bin") -> File:
    """A file of a size, all zeros but for its last byte."""
    path = pathlib.Path(tempfile.mkdtemp()) / name
    with path.open("wb") as file:
        file.truncate(size)
        if size:
            file.seek(size - 1)
            file.write(b"!")
    return File(path, type="application/x-made")


def copy(document: File, times: int = 1) -> File:
    """The file, so many times."""
    path = document.path + ".copy"
    with open(path, "wb") as out:
        for _ in range(times):
            with document.open() as file:
                while piece := file.read(1 << 20):
                    out.write(piece)
    return File(path, name="copy of " + document.name)


async def acopy(document: File) -> File:
    """As copy, by a coroutine."""
    return copy(document)


def outside(path: str) -> File:
    """A file that is not the tool's to give."""
    return File(path)


def link(path: str) -> File:
    """A link of the tool's own to such a file."""
    here = os.path.join(tempfile.mkdtemp(), "link")
    os.symlink(path, here)
    return File(here)


def inside(size: int) -> dict[str, Any]:
    """A file goes to another tool, and comes back."""
    found: dict[str, Any] = mesh.call("files.files.digest", {"document": make(size)})
    return found


def listed(documents: list[File]) -> int:
    """How many bytes files have together."""
    return sum(os.path.getsize(one) for one in documents)
