"""Payloads: values too large for a message. A node moves them to and from the mesh's object store, in pieces
(docs/protocol, section 9). Only a few pieces are in memory, besides the caller's own value."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
import time
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import BinaryIO

from nats.aio.msg import Msg

from .._core import errors, files
from . import answers, names
from .call import Call, Link, Pending, Ref, number

ROOM = 4096  # room for the headers of a request in a message
_PIECE = 256 << 10
_WINDOW = 8  # pieces in flight
_PAGE = 4 << 20  # bytes of one get
_MUCH = 1 << 20  # bytes that wait to be written: then no more pieces are sent
_QUIET = 5.0  # max seconds without a message of the node
_PAUSE = 0.01  # seconds
_TRIES = 4
_PREFIX = "SHA-256="


async def put(link: Link, session: str, source: BinaryIO, size: int, deadline: float = math.inf) -> Ref:
    """Stores the rest of a file that can be read again, size bytes. Starts again if the node or the connection is lost.
    deadline is by time.monotonic."""
    start = source.tell()
    for again in range(_TRIES):
        try:
            source.seek(start)
            return await _put(link, session, source, size, deadline)
        except answers.NoResponders:
            nc = await link.ready()
            raise answers.refused("payload_too_large", f"the value has {size} bytes, the broker takes messages of "
                                               f"{nc.max_payload}, and no node takes larger ones",
                          details={"limit": nc.max_payload, "size": size}) from None
        except errors.MeshError as failure:
            failure.started = False
            if again == _TRIES - 1 or not _again(failure):
                raise
        await asyncio.sleep(0.25 * 2 ** again)
    raise AssertionError


def _again(failure: errors.MeshError) -> bool:
    gone = failure.details.get("reason") == "payload_gone"
    return failure.code in ("unavailable", "busy") and failure.retryable or gone


async def _put(link: Link, session: str, source: BinaryIO, size: int, deadline: float) -> Ref:
    ident = uuid.uuid4().hex
    one = Pending(link, names.payload(session, ident))
    try:
        nc = await link.ready()
        piece_size = min(_PIECE, nc.max_payload - ROOM)
        await nc.publish(one.subject, json.dumps({"size": size}).encode(), one.inbox, {"Mesh-Payload": "put"})
        node = answers.told(await _next(one, deadline), one.subject).get("node")
        if not isinstance(node, str) or not node:
            raise errors.error("protocol_error", f"the answer on {one.subject} names no node", origin="caller")
        one.subject = names.payload(session, ident, node)
        digest, sent, stored = hashlib.sha256(), 0, 0
        while piece := source.read(piece_size):
            while sent - stored >= _WINDOW:
                await _next(one, deadline)
                stored += 1
            sent += 1
            digest.update(piece)
            nc = await link.ready()
            while nc.pending_data_size > _MUCH and time.monotonic() < deadline:  # answers would come too late
                await asyncio.sleep(_PAUSE)
                nc = await link.ready()
            await nc.publish(one.subject, piece, one.inbox, {"Mesh-Payload": "piece", "Mesh-Seq": str(sent)})
        text = _PREFIX + base64.urlsafe_b64encode(digest.digest()).decode()
        nc = await link.ready()
        await nc.publish(one.subject, b"", one.inbox, {"Mesh-Payload": "end", "Mesh-Digest": text})
        while True:
            found = Ref.of((await _next(one, deadline)).headers)
            if found is not None:
                one.subject = ""
                return found
    finally:
        one.close()
        if one.subject:
            await link.publish(one.subject, b"", one.inbox, {"Mesh-Payload": "delete"})  # a stored part


async def _next(one: Pending, deadline: float) -> Msg:
    message = await one.next(min(time.monotonic() + _QUIET, deadline))
    if message is None and time.monotonic() >= deadline:
        raise errors.error("deadline_exceeded", "the call's time ended while a payload moved", origin="caller")
    if message is None:
        raise errors.error("unavailable", "the node that moves the payload does not answer any more", origin="mesh",
                           retryable=True)
    answers.result(message)
    return message


async def get(link: Link, session: str, ref: Ref, write: Callable[[bytes], object], node: str = "",
              deadline: float = math.inf) -> None:
    """Yields the payload of a reference, in pieces and in order. node is asked first. A missing or altered payload is
    InvalidRequest with details["reason"]; the pieces before may be wrong."""
    digest, high, count = hashlib.sha256(), 0, 0
    if not ref.ident or ref.name.partition(".")[0] != names.token(session):
        said = f"the payload {ref.name!r} is not of session {session!r}"
        raise answers.refused("permission_denied", said)
    page: list[bytes] = []
    terminal, where = False, names.payload(session, ref.ident, node)
    while not terminal:
        for again in range(_TRIES):
            try:
                page, high, terminal = await _page(link, where, high, count, deadline)
                break
            except (errors.MeshError, answers.NoResponders) as failure:
                told = failure if isinstance(failure, errors.MeshError) else answers.refused(
                    "unavailable", "no node moves payloads", retryable=True)
                if again == _TRIES - 1 or not _again(told) or told.details.get("reason") == "payload_gone":
                    told.started = True  # it belongs to a result
                    raise told from None
            where = names.payload(session, ref.ident)
            await asyncio.sleep(0.25 * 2 ** again)
        for piece in page:
            digest.update(piece)
            write(piece)
        count += len(page)
    text = _PREFIX + base64.urlsafe_b64encode(digest.digest()).decode()
    if text != ref.digest:
        said = f"the payload has the digest {text}, its reference says {ref.digest}: it was altered"
        raise errors.error("invalid_request", said, origin="caller", started=True,
                           details={"reason": "payload_altered"})


async def _page(link: Link, where: str, high: int, count: int, deadline: float) -> tuple[list[bytes], int, bool]:
    """A part of a payload, complete or not at all; its end position, and whether it is the last part."""
    one = Pending(link, where)
    page: list[bytes] = []
    try:
        nc = await link.ready()
        await nc.publish(where, json.dumps({"from_seq": high + 1, "max_bytes": _PAGE}).encode(), one.inbox,
                         {"Mesh-Payload": "get", "Mesh-Count": str(count)})
        while True:
            message = await _next(one, deadline)
            headers = message.headers or {}
            if message.data:
                page.append(message.data)
                if headers.get("Mesh-Seq") == str(len(page)):
                    continue
            elif headers.get("Mesh-Count") == str(count + len(page)):
                last, _, terminal = headers.get("Mesh-High", "0").partition(";")
                if (reached := number(last)) is not None and (page or terminal):
                    return page, reached, bool(terminal)
            raise errors.error("unavailable", "a piece of the payload was lost on its way", origin="mesh",
                               retryable=True)
    finally:
        one.close()


async def read(link: Link, session: str, ref: Ref, node: str = "", deadline: float = math.inf) -> bytes:
    value = bytearray()
    await get(link, session, ref, value.extend, node, deadline)
    return bytes(value)


async def take(link: Link, session: str, ref: Ref, node: str = "", deadline: float = math.inf) -> bytes:
    """read, for a payload that is needed once: it is deleted afterwards."""
    body = await read(link, session, ref, node, deadline)
    await delete(link, session, ref, node)
    return body


class Named:
    """The form of Files while arguments are written: a mark, which stored replaces."""

    def __init__(self) -> None:
        self.found: list[tuple[str, files.File]] = []

    def __call__(self, file: files.File) -> dict[str, typing.Any]:
        if file.sent is not None:
            return file.sent  # it came from the mesh
        mark = f"file:{uuid.uuid4().hex}"
        self.found.append((mark, file))
        return {files.KEY: mark, "digest": ""}


async def stored(link: Link, call: Call) -> None:
    """Stores the files in a call's arguments and replaces their marks."""
    while call.files:
        mark, file = call.files.pop()
        with open(file.path, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            ref = await put(link, call.session, opened, size)
        call.stored.append(ref)
        told = {files.KEY: ref.name, "digest": ref.digest, "size": size, "name": file.name}
        if file.type:
            told["type"] = file.type
        before = json.dumps({files.KEY: mark, "digest": ""}, separators=(",", ":")).encode()
        call.body = call.body.replace(before, json.dumps(told, ensure_ascii=False).encode())


async def save(link: Link, session: str, value: typing.Any, path: str | os.PathLike[str]) -> str:
    """Writes the file of a result to path, or into that folder under its own name, and deletes it from the store. See
    _replacing for an existing file."""
    if isinstance(value, files.File):
        value = value.sent
    if not files.refers(value):
        raise TypeError(f"this is not a file of the mesh: {value!r:.80}")
    where = os.fspath(path)
    if os.path.isdir(where):
        where = os.path.join(where, files.base_name(value))
    ref = Ref(value[files.KEY], value["digest"])
    with _replacing(where) as out:
        await get(link, session, ref, out.write)
    await delete(link, session, ref)
    return where


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    """What is written replaces the file at path once all of it has come, and keeps its mode and its owner; a link
    stays. A device, a pipe and what this process may write but not replace get a copy of it then."""
    if os.path.islink(path) and not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, "the link leads to nothing", path)
    path = os.path.realpath(path)
    before = os.stat(path) if os.path.exists(path) else None
    plain = before is None or stat.S_ISREG(before.st_mode) and os.access(path, os.W_OK)
    part = f"{path}.{uuid.uuid4().hex[:8]}.part" if plain and os.access(os.path.dirname(path), os.W_OK) else ""
    mode = 0o600 if before else 0o666
    try:
        with open(part, "x+b", opener=lambda name, flags: os.open(name, flags, mode)) if part else (
                tempfile.TemporaryFile()) as came:
            yield came
            came.flush()
            if not part or not _alike(came.fileno(), before):
                came.seek(0)
                # A pipe may have no reader, for which a loop must not wait.
                with open(path, "wb", opener=lambda name, flags: os.open(name, flags | _NONBLOCK, 0o666)) as out:
                    os.set_blocking(out.fileno(), True)
                    shutil.copyfileobj(came, out)
                return
        os.replace(part, path)
    finally:
        if part:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)


def _alike(fd: int, before: os.stat_result | None) -> bool:
    """Gives a new file the owner and the mode of an old one; False where this process may not."""
    if before is not None:
        try:
            os.chown(fd, before.st_uid, before.st_gid)
            os.chmod(fd, stat.S_IMODE(before.st_mode) & 0o777)
        except PermissionError:
            return False
    return True


_NONBLOCK = getattr(os, "O_NONBLOCK", 0)


async def delete(link: Link, session: str, ref: Ref, node: str = "") -> None:
    """Requests the deletion of a value, without an answer: values expire anyway."""
    await link.publish(names.payload(session, ref.ident, node), b"", link.inbox + "0", {"Mesh-Payload": "delete"})
