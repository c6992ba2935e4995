"""The child process that is the node of a Python host, and its frames: docs/bridge.md.

One event loop reads, and writes when woken. Frames of other threads wait until one of those threads is idle or wakes
the loop; then all waiting frames are written.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from .. import binary
from .._client.answers import bare, refused
from .._core import errors, values
from .._locks import lock

Frame = dict[str, Any]

_log = logging.getLogger("toolmesh")
MOST = (64 << 20) - (64 << 10)  # max bytes of a value: a frame has 64 MiB
_READ = 1 << 18
_LEVELS = {"WARN": logging.WARNING, "ERROR": logging.ERROR}
_CREDIT = 64  # items in flight of another tool's stream
_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_living: weakref.WeakSet[Bridge] = weakref.WeakSet()


class Bridge:
    """A running mesh bridge. take gets each frame that is not an answer to a request of this side, with its bytes."""

    def __init__(self, take: Callable[[Frame, bytes], None]) -> None:
        self._take = take
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._process: asyncio.subprocess.Process | None = None
        self._from, self._to = -1, -1  # our ends of its stdin and stdout
        self._had = bytearray()  # the beginning of an incomplete frame
        self._out: deque[bytes] = deque()
        self._rest = memoryview(b"")  # data that the full pipe did not take
        self._waking = False
        self._writing = lock()  # guards _rest and _to
        self._ready: asyncio.Future[Frame] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._numbers = itertools.count(1)
        self._asked: dict[str, Asked] = {}
        self._said: deque[str] = deque(maxlen=20)
        self._listening: asyncio.Task[None] | None = None
        self.ready: Frame = {}
        self.over = False
        self._forked = False  # this is a child process that the program forked

    async def start(self, environment: Mapping[str, str]) -> None:
        """Starts it and waits until it is connected. Raises Unavailable with its message if that fails."""
        self._from, out = os.pipe()
        into, self._to = os.pipe()
        try:
            # In a new process session: an interrupt at the terminal goes to the program, which drains.
            self._process = await asyncio.create_subprocess_exec(
                binary.find(), "bridge", stdin=into, stdout=out, stderr=asyncio.subprocess.PIPE,
                env=environment, limit=_READ, start_new_session=True)
        except OSError as failure:
            self._close()
            raise refused("unavailable", str(failure)) from None
        except BaseException:
            self._close()
            raise
        finally:
            os.close(into)
            os.close(out)
        _living.add(self)
        os.set_blocking(self._from, False)
        os.set_blocking(self._to, False)
        self._loop.add_reader(self._from, self._readable)
        assert self._process.stderr is not None
        self._listening = self._loop.create_task(_listen(self._process.stderr, self._said))
        self.ready = await self._ready
        if not self.ready:
            await self.wait()
            raise refused("unavailable", f"mesh bridge cannot serve: {self.said}")

    @property
    def said(self) -> str:
        """The last line that it wrote to stderr."""
        return next((one for one in reversed(self._said) if one.strip()), "it has ended")

    async def wait(self) -> int:
        """Waits until it has ended, and returns its status."""
        assert self._process is not None and self._listening is not None
        await self._ended.wait()
        await asyncio.wait({self._listening})
        return await self._process.wait()

    async def kill(self) -> None:
        """Ends it and its calls now."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self.wait()

    def leave_fork(self) -> None:
        """Ends a child process of the program that returned from the function which forked it: it must not continue
        here."""
        if self._forked:
            os._exit(0)

    def _close(self) -> None:
        with self._writing:
            self.over = True
            ends, self._from, self._to = (self._from, self._to), -1, -1
            for one in ends:
                if one >= 0:
                    os.close(one)

    def __del__(self) -> None:
        self._close()  # the loop was closed during the call

    def _readable(self) -> None:
        """Reads the available bytes of the pipe."""
        try:
            more = os.read(self._from, _READ)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        if not more:
            self._end()
            return
        data = self._had
        data += more
        at, size = 0, len(data)
        try:
            while size - at >= 4:
                end = at + 4 + int.from_bytes(data[at : at + 4], "big")
                if end > size:
                    break
                body = bytes(data[at + 4 : end])
                at = end
                self._give(values.decode(body), body)
        except Exception:
            _log.exception("a frame of mesh bridge cannot be read")
            self._end()
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            return
        del data[:at]

    def _end(self) -> None:
        """Handles the end of the pipe."""
        self._loop.remove_reader(self._from)
        if self._rest:
            self._loop.remove_writer(self._to)
        self._close()
        self._ended.set()
        self._room.set()
        if not self._ready.done():
            self._ready.set_result({})
        for one in list(self._asked.values()):
            one.fail(errors.error("unavailable", "the bridge to the mesh has ended", origin="caller"))

    def _give(self, frame: Frame, body: bytes) -> None:
        kind = frame.get("type")
        if kind == "ready" and not self._ready.done():
            self._ready.set_result(frame)
        elif kind in ("rpc_tool_response", "rpc_stream_chunk", "rpc_batch_response", "rpc_error"):
            asked = self._asked.get(frame.get("rpc_id") or frame.get("batch_id", ""))
            if asked is not None:
                asked.take(frame)
            elif kind == "rpc_error":
                _log.warning("mesh bridge: %s", frame.get("error"))
        else:
            self._take(frame, body)

    # Out.

    def put(self, body: bytes) -> None:
        """Queues a frame for the next send or flush; from any thread."""
        self._out.append(len(body).to_bytes(4, "big") + body)

    def send(self, body: bytes) -> None:
        """Sends a frame; from any thread. If that is interrupted, the frame may wait until flush."""
        self._out.append(len(body).to_bytes(4, "big") + body)
        self.wake()

    def wake(self) -> None:
        """Makes the loop write waiting frames."""
        if self._waking or self.over:
            return
        self._waking = True
        try:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(self.flush)
            else:
                self._loop.call_soon_threadsafe(self.flush)
        except RuntimeError:
            self.over = True  # the loop, and so the process, has ended

    def flush(self) -> None:
        """Writes waiting frames; from any thread that nothing interrupts."""
        self._waking = False  # before taking the frames, so that no later one is left
        if not self._out:
            return
        with self._writing:
            if self._rest:
                return  # written once there is room
            data = memoryview(b"".join(self._taken()))
            if self._to < 0 or not data:
                return
            try:
                data = data[os.write(self._to, data):]
            except BlockingIOError:
                pass
            except OSError:
                return  # it has ended, as reading will show
            self._rest = data
        if data:
            self._loop.call_soon_threadsafe(self._full)

    def _taken(self) -> Iterator[bytes]:
        while self._out:
            yield self._out.popleft()

    def _full(self) -> None:
        if not self.over:
            self._room.clear()
            self._loop.add_writer(self._to, self._writable)

    def _writable(self) -> None:
        with self._writing:
            try:
                self._rest = self._rest[os.write(self._to, self._rest):]
            except BlockingIOError:
                return
            except OSError:
                self._rest = memoryview(b"")
            if self._rest:
                return
        self._loop.remove_writer(self._to)
        self._room.set()
        self.flush()

    async def written(self) -> None:
        """Waits for room in the pipe."""
        self.flush()
        if self._rest:
            await asyncio.sleep(0)  # lets the loop notice
        await self._room.wait()

    def frame(self, kind: str, **fields: Any) -> None:
        self.send(_text({"type": kind, **fields}).encode())

    # Our requests and calls.

    def ask(self, kind: str, tool: str = "", body: bytes = b"", **fields: Any) -> Asked:
        """Sends a request; the returned object has its answer. body is an encoded field."""
        if len(body) > MOST:
            raise refused("payload_too_large", f"the arguments are {len(body)} bytes of JSON, a frame carries {MOST}",
                          tool, details={"size": len(body), "limit": MOST})
        asked = Asked(self, f"c{next(self._numbers)}", tool)
        self._asked[asked.id] = asked
        if self.over:
            asked.fail(refused("unavailable", "the bridge to the mesh has ended"))
            return asked
        fields["batch_id" if kind == "rpc_batch_call" else "rpc_id"] = asked.id
        if kind == "rpc_tool_stream":
            fields["credit"] = _CREDIT
        head = _text({"type": kind, **fields}).encode()
        self.send(head[:-1] + b"," + body + b"}" if body else head)
        return asked

    def forget(self, asked: Asked) -> None:
        """Drops its answers from now on."""
        self._asked.pop(asked.id, None)


class Asked:
    """A request of this side with its answers: one, or items and the end of a stream."""

    def __init__(self, bridge: Bridge, number: str, tool: str) -> None:
        self.id = number
        self._bridge, self._tool = bridge, tool
        self._answers: deque[concurrent.futures.Future[Any]] = deque([concurrent.futures.Future()])
        self._count = 0

    def take(self, frame: Frame) -> None:
        """Handles a frame for it, on the loop."""
        if frame["type"] == "rpc_stream_chunk" and frame.get("chunk_type") == "data":
            self._answers.append(concurrent.futures.Future())
            _settle(self._answers[-2], (True, frame.get("data")), None)
            return
        if "error" in frame:
            self.fail(errors.rebuilt(frame["error"], self._tool))
        else:
            self._bridge.forget(self)
            _settle(self._answers[-1], (False, frame["results"] if "results" in frame else frame.get("result")), None)

    def fail(self, failure: BaseException) -> None:
        self._bridge.forget(self)
        _settle(self._answers[-1], None, failure)

    def cancel(self) -> None:
        """Cancels it if it has not ended."""
        if self.id in self._bridge._asked:
            self._bridge.forget(self)
            self._bridge.frame("rpc_cancel", rpc_id=self.id)

    def result(self) -> Any:
        try:
            return self._answers[0].result()[1]
        finally:
            self.cancel()

    async def aresult(self) -> Any:
        try:
            return (await asyncio.wrap_future(self._answers[0]))[1]
        finally:
            self.cancel()

    def items(self) -> Iterator[Any]:
        try:
            while (answer := self._answers[0].result())[0]:
                self._had()
                yield answer[1]
        except Exception as failure:
            bare(failure)
            raise
        finally:
            self.cancel()

    async def aitems(self) -> AsyncIterator[Any]:
        try:
            while (answer := await asyncio.wrap_future(self._answers[0]))[0]:
                self._had()
                yield answer[1]
        except Exception as failure:
            bare(failure)
            raise
        finally:
            self.cancel()

    def _had(self) -> None:
        self._answers.popleft()
        self._count += 1
        if self._count % (_CREDIT // 2) == 0:
            self._bridge.frame("rpc_credit", rpc_id=self.id, seq=self._count + _CREDIT)


def _settle(future: concurrent.futures.Future[Any], value: Any, failure: BaseException | None) -> None:
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        if failure is None:
            future.set_result(value)
        else:
            future.set_exception(failure)


async def _listen(stderr: asyncio.StreamReader, said: deque[str]) -> None:
    """Logs a bridge's output. It holds no reference to the bridge, whose last reference ends it."""
    while True:
        try:
            line = await stderr.readline()
        except ValueError:
            continue  # longer than the max of a line
        if not line:
            return
        text = line.decode(errors="replace").rstrip()
        said.append(text)
        level = text.partition("level=")[2].partition(" ")[0]
        _log.log(_LEVELS.get(level, logging.INFO), "mesh bridge: %s", text)


def _forked() -> None:
    """In a child process that the program forks: closes the pipes, or the bridge would outlive the program."""
    for one in list(_living):
        one._forked = True
        one._close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
