"""Files of a call, moved in pieces between its worker and the agent.

The worker itself reads and writes them, so that its user and its sandbox apply to its files, too. The agent opens no
path from a tool. The files are removed with the folder of the call.
"""

from __future__ import annotations

import json
import os
import stat

from ..schemas import files
from ..schemas.files import KEY, File, base_name
from ..wire import frames
from ..wire.frames import JSON
from . import channel
from .errors import error

_PIECE = 256 << 10
roots: list[str] = []
"""The index's folder and those that it was given, besides the one for temporary files."""
folders: dict[int, str] = {}
"""Those of the calls that run, by call."""
_fetched: dict[tuple[int, str], File] = {}


def fetch(value: dict[str, JSON]) -> File:
    """The file of a JSON value, in the call's folder."""
    link = _link()
    call, ref = link.caller(), str(value[KEY])
    known = _fetched.get((call, ref))
    if known is not None:
        return known  # the arguments are read once more
    folder = os.path.join(_folder(call), str(len(_fetched)))
    os.mkdir(folder, 0o700)
    path = os.path.join(folder, base_name(value))
    about = json.dumps({"ref": ref, "digest": value["digest"]}).encode()
    with open(path, "xb", buffering=0) as file:
        for piece in link.stream("get", about, None, frames.FILE):
            frames.write_all(file.fileno(), piece)
    kind = value.get("type")
    made = _fetched[call, ref] = File(path, type=kind if isinstance(kind, str) else "")
    made.sent = dict(value)
    return made


def store(file: File) -> dict[str, JSON]:
    """Stores a file at the agent and returns its JSON form. A file outside the permitted folders is a TypeError, like
    other values that cannot travel."""
    if file.sent is not None:
        return file.sent
    import tempfile

    path = os.path.realpath(file.path)
    allowed = [*roots, tempfile.gettempdir(), *folders.values()]
    if not any(path.startswith(os.path.join(os.path.realpath(one), "")) for one in allowed):
        raise TypeError(f"is a File outside of the folders of its tool: {file.path}")
    link = _link()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as failure:
        raise TypeError(f"is a File that cannot be read: {failure}") from None
    with open(descriptor, "rb", buffering=0) as opened:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise TypeError(f"is a File that is not a regular file: {file.path}")
        name = link.call("put", json.dumps({"size": about.st_size}).encode(), None, frames.FILE).decode()
        while piece := opened.read(_PIECE):
            link.call(f"piece:{name}", piece, None, frames.FILE)
        told = json.loads(link.call(f"end:{name}", b"", None, frames.FILE))
    found: dict[str, JSON] = {KEY: told["ref"], "digest": told["digest"], "size": told["size"], "name": file.name}
    if file.type:
        found["type"] = file.type
    file.sent = found
    return found


def forget(call: int) -> None:
    """Removes the files of a call that has ended."""
    folder = folders.pop(call, None)
    for key in [key for key in _fetched if key[0] == call]:
        del _fetched[key]
    if folder is not None:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _link() -> channel.Channel:
    if channel.current is None:
        raise error("unavailable", "files travel inside of calls that the mesh makes", started=False, origin="caller")
    return channel.current


def _folder(call: int) -> str:
    folder = folders.get(call)
    if folder is None:
        import tempfile

        folder = folders[call] = tempfile.mkdtemp(prefix="call-")
    return folder


files.fetch, files.store = fetch, store
