"""The errors of calls: what an answer says has failed, and what never had an answer."""

from __future__ import annotations

import typing

from ._core import errors, values

if typing.TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from ._connection import Call


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


def timed_out(call: Call, started: bool | None) -> errors.MeshError:
    """The error of a call whose time is up here."""
    return errors.error(
        "deadline_exceeded", f"no answer within {call.timeout:g} s", tool=call.tool, started=started, origin="caller"
    )


def refused(code: str, message: str, tool: str = "", **more: typing.Any) -> errors.MeshError:
    """The error of what was not sent."""
    return errors.error(code, message, tool=tool, started=False, origin="caller", **more)


def unreachable(where: str, failure: BaseException) -> errors.MeshError:
    """The error of a server that cannot be reached, or does not let us in."""
    text = str(failure) or type(failure).__name__
    if "authorization" in text.lower() or "authentication" in text.lower():
        return refused("permission_denied", f"the NATS server at {where} does not let us in: {text}. "
                                            "Set MESH_NATS_NKEY, MESH_NATS_CREDS or MESH_NATS_CONTEXT")
    if isinstance(failure, (ValueError, ImportError)):
        return refused("invalid_request", f"{where}: {text}")
    return refused("unavailable", f"no mesh at {where}: {text}. Run mesh up, set MESH_NATS_URL, or call "
                                  "toolmesh.local()", retryable=True)


class Nobody(Exception):
    """NATS's 503: nobody subscribes to where the request went."""


def result(message: Msg) -> bytes:
    """The body of an answer; raises what it says has failed."""
    headers = message.headers
    if headers:
        if headers.get("Status") == "503":
            raise Nobody
        if "Mesh-Error-Code" in headers or "Nats-Service-Error-Code" in headers:
            raise failed(message)
    return message.data


def check_size(nc: Client, call: Call, headers: dict[str, str]) -> None:
    """Refuses what the server would end the connection for."""
    size = len(call.body) + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items()) + 16
    if size > nc.max_payload:
        raise refused("payload_too_large", f"the arguments are {len(call.body)} bytes, the broker takes messages of "
                                           f"{nc.max_payload}", call.tool)
