"""File: a value that is a file, transferred separately from the JSON.

On the wire it is {"$file": <reference>, "digest", "size", "name", "type"}; its bytes are in the mesh's object store. No
path is transferred: each side has its own.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable
from typing import IO, Any

from ..wire.frames import JSON

KEY = "$file"
FORMAT = "mesh-file"
SCHEMA: dict[str, JSON] = {
    "type": "object",
    "format": FORMAT,
    "properties": {
        KEY: {"type": "string"}, "digest": {"type": "string"}, "size": {"type": "integer"},
        "name": {"type": "string"}, "type": {"type": "string"},
    },
    "required": [KEY, "digest"],
    "additionalProperties": False,
}


class File:
    """A file as an argument or a result of a tool, of any size. Each side gets it as a path, and its bytes are never
    wholly in memory. name is the file's own name, type its content type, empty if unknown.

    A tool with a File parameter gets a file in its call's folder for temporary files, which is removed with the call.
    It returns a file that it made there, or one of a folder of its index. A File opens like a path.
    """

    __slots__ = ("path", "name", "type", "sent")
    __module__ = "toolmesh"

    def __init__(self, path: str | os.PathLike[str], *, name: str = "", type: str = "") -> None:
        self.path: str = os.fspath(path)
        self.name: str = name or os.path.basename(self.path)
        self.type: str = type
        self.sent: dict[str, JSON] | None = None  # its JSON form

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"File({self.path!r})"

    def open(self, mode: str = "rb") -> IO[Any]:
        """The file, opened."""
        return open(self.path, mode)  # noqa: SIM115 - the caller closes it

    def read_bytes(self) -> bytes:
        """All of it."""
        with open(self.path, "rb") as file:
            return file.read()


def refers(value: JSON) -> bool:
    """Whether a JSON value stands for a file."""
    return type(value) is dict and type(value.get(KEY)) is str and type(value.get("digest")) is str


def base_name(value: dict[str, JSON]) -> str:
    """A safe name for the file on this machine, whatever its name elsewhere."""
    name = os.path.basename(str(value.get("name") or "").replace("\\", "/")).replace("\0", "")
    return name if name not in ("", ".", "..") and len(os.fsencode(name)) < 200 else "file"


def in_schema(schema: JSON) -> bool:
    """Whether a schema contains files."""
    if isinstance(schema, dict):
        return schema.get("format") == FORMAT or any(in_schema(one) for one in schema.values())
    return isinstance(schema, list) and any(in_schema(one) for one in schema)


def _nowhere(_: Any) -> Any:
    raise TypeError("is a File, which travels in calls that the mesh makes")


fetch: Callable[[dict[str, JSON]], File] = _nowhere
"""Makes a File of its form in JSON; of calls/transfer.py, in a worker."""
store: Callable[[File], dict[str, JSON]] = _nowhere
"""Stores a File that is to travel, and gives its form in JSON; likewise."""
named: contextvars.ContextVar[Callable[[File], dict[str, JSON]] | None] = contextvars.ContextVar("named", default=None)
"""A client's own store, while it writes the arguments of a call."""
