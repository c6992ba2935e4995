"""nats-py's client, with shorter ways for what each call does: a message with headers out, one in.

nats-py spends more time on the headers of a call than all the rest of the client takes. What is overridden here is
private to it: where a version lacks it, its own way is taken.
"""

from __future__ import annotations

import logging
import typing

import nats.errors
from nats.aio.client import Client

if typing.TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

    from nats.aio.msg import Msg

_log = logging.getLogger("toolmesh")
_LINE, _END = b"NATS/1.0\r\n", b"\r\n"
_BREAKS = str.maketrans("\r\n", "  ")
_QUICK = all(hasattr(Client, name) for name in ("_send_command", "_flush_pending"))


class Broker(Client):
    """A connection to a NATS server. With only_tls it never goes on in the clear: nats-py leaves that to the server's
    first line, which a machine in between may write: it would be told the password."""

    def __init__(self, only_tls: bool) -> None:
        super().__init__()
        self._only_tls = only_tls
        self.secured = not only_tls  # whether TLS was asked for where it must be

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._only_tls:
            info["tls_required"] = self.secured = True
        await super()._process_info(info, initial_connection)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        if headers and headers.startswith(_LINE):
            try:
                return dict([line.split(": ", 1) for line in headers[len(_LINE):-4].decode().split("\r\n")])
            except ValueError:
                pass  # no text, or not written as nodes write them
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
        """publish of a request of ours, whose subject is well-formed; MaxPayloadError also where headers and body
        together are too long: the server would end the connection."""
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
    """In the place of the future that a subscription may have: gives each message to a function as soon as it is read.
    A callback would have it a queue, a task and a turn of the loop later."""

    def __init__(self, take: Callable[[Msg], None]) -> None:
        self._take = take

    def cancelled(self) -> bool:
        """A future's; it takes all that comes."""
        return False

    def set_result(self, message: Msg) -> None:
        """A future's. An exception would end the reading of the connection."""
        try:
            self._take(message)
        except Exception:
            _log.exception("a message on %s cannot be read", message.subject)


def taking(take: Callable[[Msg], None]) -> asyncio.Future[Any]:
    """The argument future of subscribe that gives each message to take."""
    return typing.cast("asyncio.Future[Any]", Taker(take))
