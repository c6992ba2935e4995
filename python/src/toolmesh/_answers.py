"""What an answer says has failed."""

from __future__ import annotations

import typing

from ._core import errors, values

if typing.TYPE_CHECKING:
    from nats.aio.msg import Msg


def failed(message: Msg) -> errors.MeshError:
    """The error that an answer tells of."""
    headers = message.headers or {}
    try:
        found = values.decode(message.data)
        told = found["error"] if isinstance(found, dict) else None
    except (ValueError, KeyError):
        told = None
    if not isinstance(told, dict):
        told = {"message": headers.get("Nats-Service-Error", "")}
    told.setdefault("code", headers.get("Mesh-Error-Code") or by_number(headers.get("Nats-Service-Error-Code", "")))
    if "started" not in told and headers.get("Mesh-Started") in ("true", "false"):
        told["started"] = headers["Mesh-Started"] == "true"
    return errors.rebuilt(told, "")


def by_number(number: str) -> str:
    """The code of a number that has no name here: its class's."""
    return {"4": "invalid_request"}.get(number[:1], "internal")


def unserved(tool: str, reason: str) -> errors.MeshError:
    """The error of a tool that is known, and served nowhere."""
    why = reason or "it is known, but no node serves it now"
    return errors.error("unavailable", f"the tool cannot be called: {why}", tool=tool, started=False, origin="mesh",
                        retryable=True)
