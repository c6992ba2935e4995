"""nats-py's client, with faster paths for each call: a message with headers out, one in.

nats-py spends more time on the headers of a call than the rest of the client takes. The overridden functions are
private: if a version lacks one, its own path is used.
"""

from __future__ import annotations

import asyncio
import logging
import typing
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

_log = logging.getLogger("toolmesh")
_LINE, _END = b"NATS/1.0\r\n", b"\r\n"
_BREAKS = str.maketrans("\r\n", "  ")
_QUICK = all(hasattr(Client, name) for name in ("_send_command", "_flush_pending"))


class Broker(Client):
    """A connection to a NATS server. With only_tls it never continues without TLS: nats-py decides by the server's
    first line, which a machine in the middle could forge to get the password."""

    def __init__(self, only_tls: bool) -> None:
        super().__init__()
        self._only_tls = only_tls
        self.secured = not only_tls  # whether TLS was used where it is required

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._only_tls:
            info["tls_required"] = self.secured = True
        await super()._process_info(info, initial_connection)

    async def close(self) -> None:
        """nats-py's, which leaves the socket open if it is cancelled."""
        try:
            await super().close()
        finally:
            if (transport := getattr(self, "_transport", None)) is not None:
                transport.close()

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        if headers and headers.startswith(_LINE):
            try:
                return dict([line.split(": ", 1) for line in headers[len(_LINE):-4].decode().split("\r\n")])
            except ValueError:
                pass  # not text, or not in the form that nodes write
        return await super()._process_headers(headers)

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None,
    ) -> None:
        """nats-py's, with spaces for line breaks in headers, as its newer versions write them: else a name that a
        model has made up could bring headers of its own."""
        if headers:
            headers = {name: value.translate(_BREAKS) for name, value in headers.items()}
        await super().publish(subject, payload, reply, headers)

    async def post(self, subject: str, body: bytes, reply: str, headers: dict[str, str]) -> None:
        """publish, for our own requests with a valid subject. MaxPayloadError also if headers and body together are too
        long, for which the server would close the connection."""
        text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = b"%b%b%b" % (_LINE, text.encode(), _END)
        size = len(head) + len(body)
        if size > self.max_payload:
            raise nats.errors.MaxPayloadError
        if not _QUICK or text.count("\n") != len(headers) or text.count("\r") != len(headers):
            await self.publish(subject, body, reply, headers)
            return
        command = f"HPUB {subject} {reply} {len(head)} {size}\r\n".encode()
        await self._send_command(b"%b%b%b%b" % (command, head, body, _END))
        if self._flush_queue is None or self._flush_queue.empty():
            await self._flush_pending()


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
