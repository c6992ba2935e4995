"""nats-py's client, with faster paths for each call: a message with headers out, one in.

nats-py spends more time on the headers of a call than the rest of the client takes. It also waits without end for a
server that does not read, and an error that it does not expect ends its reading or its reconnecting for good. The
overridden functions are private.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import typing
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.protocol.parser import Parser

from . import finding

_log = logging.getLogger("toolmesh")
_LINE, _END = b"NATS/1.0\r\n", b"\r\n"
_BREAKS = str.maketrans("\r\n", "  ")
_CROWDED = 64 << 10  # bytes that wait in the socket's buffer: then the loop no longer writes
_CLOSING = 1.0  # max seconds in which a server takes what is written before the connection is closed


class Broker(Client):
    """A connection to a NATS server. With only_tls it never continues without TLS: nats-py decides by the server's
    first line, which a machine in the middle could forge to get the password."""

    def __init__(self, only_tls: bool) -> None:
        super().__init__()
        self._only_tls = only_tls
        self.secured = not only_tls  # whether TLS was used where it is required
        self._ps = _Parser(self)
        self._arrived = 0  # messages at the last ping of a dead link

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._only_tls:
            info["tls_required"] = self.secured = True
        await super()._process_info(info, initial_connection)

    async def close(self) -> None:
        """nats-py's, which leaves the socket open if it is cancelled, raises if it was lost meanwhile, and fails after
        a refused connect, each version in its own way."""
        try:
            with contextlib.suppress(OSError, AssertionError, AttributeError):
                await super().close()
        finally:
            self._abort()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """nats-py's, which waits without end for a frozen server."""
        alarm = asyncio.get_running_loop().call_later(_CLOSING, self._abort)
        try:
            await super()._close(status, do_cbs)
        finally:
            alarm.cancel()

    def _abort(self) -> None:
        """Closes the socket at once, also if the server does not take what is written."""
        transport: Any = self._transport
        if (writer := getattr(transport, "_io_writer", None)) is not None:
            writer.transport.abort()
        elif transport:
            transport.close()

    @property
    def crowded(self) -> bool:
        """Whether the network does not take what is written."""
        writer = getattr(self._transport, "_bare_io_writer", None)  # with TLS it holds what was encrypted
        return writer is not None and writer.transport.get_write_buffer_size() > _CROWDED

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """nats-py's, without waiting for room: it waits through a lost connection then, and swallows a cancel."""
        return await super()._flush_pending()

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """nats-py's. A ping behind many requests, or its answer behind many messages, is late: a link that brings
        messages is not dead."""
        if future is None and self.stats["in_msgs"] != self._arrived:
            self._arrived, self._pings_outstanding = self.stats["in_msgs"], 1
        await super()._send_ping(future)

    async def _attempt_reconnect(self) -> None:
        """nats-py's, which waits for a frozen server, sends what was not written, whose senders have left, and ends for
        good with an error that it does not expect, such as that of a key's file which is being written. Then the
        connection is closed, and the next call makes another one."""
        self._abort()
        self._pending, self._pending_data_size = [], 0
        try:
            await super()._attempt_reconnect()
        except Exception as failure:
            await self._error_cb(failure)
            self._reconnection_task = None  # close would cancel it
            await self.close()

    def _read_creds_user_jwt(self, creds: Any) -> Any:
        """nats-py's, which reads a file without credentials for ever."""
        finding.credentials(creds)
        return super()._read_creds_user_jwt(creds)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        if headers and headers.startswith(_LINE):
            try:
                return dict([line.split(": ", 1) for line in headers[len(_LINE):-4].decode().split("\r\n")])
            except ValueError:
                pass  # not text, or not in the form that nodes write
        return await super()._process_headers(headers)

    async def post(self, subject: str, body: bytes, reply: str, headers: dict[str, str]) -> None:
        """publish, for our own requests with a valid subject, with spaces for line breaks in headers: else a name that
        a model has made up could bring headers of its own. MaxPayloadError also if headers and body together are too
        long, for which the server would close the connection."""
        text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if text.count("\n") != len(headers) or text.count("\r") != len(headers):
            text = "".join([f"{name}: {value.translate(_BREAKS)}\r\n" for name, value in headers.items()])
        head = b"%b%b%b" % (_LINE, text.encode(), _END)
        size = len(head) + len(body)
        if size > self.max_payload:
            raise nats.errors.MaxPayloadError
        command = f"HPUB {subject} {reply} {len(head)} {size}\r\n".encode()
        await self._send_command(b"%b%b%b%b" % (command, head, body, _END))
        if self._flush_queue is None or self._flush_queue.empty():
            await super()._flush_pending()


class _Parser(Parser):
    async def parse(self, data: bytes = b"") -> None:
        """nats-py's. An error that its reader does not expect would leave a connection that hears nothing any more: a
        protocol error makes it connect again. Every sender of a message can cause one by its headers or its subject."""
        try:
            await super().parse(data)
        except (OSError, nats.errors.ProtocolError):
            raise
        except Exception:
            _log.exception("a message of the NATS server cannot be read")
            raise nats.errors.ProtocolError from None


class Taker:
    """Replaces the future of a subscription: passes each message to a function as soon as it is read. A callback would
    add a queue, a task and a turn of the loop."""

    def __init__(self, take: Callable[[Msg], None]) -> None:
        self._take = take

    def cancelled(self) -> bool:
        """Of a future; it accepts every message."""
        return False

    def set_result(self, message: Msg) -> None:
        """Of a future. An exception would end the reading of the connection."""
        try:
            self._take(message)
        except Exception:
            _log.exception("a message on %s cannot be read", message.subject)


def taking(take: Callable[[Msg], None]) -> asyncio.Future[Any]:
    """The argument future of subscribe that passes each message to take."""
    return typing.cast("asyncio.Future[Any]", Taker(take))
