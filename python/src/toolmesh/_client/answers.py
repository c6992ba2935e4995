"""The errors of calls: what an answer says has failed, and what never had an answer."""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
import typing

from .._core import errors, values

if typing.TYPE_CHECKING:
    from nats.aio.msg import Msg

F = typing.TypeVar("F", bound="typing.Callable[..., typing.Any]")
C = typing.TypeVar("C", bound=type)


_OURS = {"toolmesh", "_toolmesh_worker", "asyncio", "concurrent", "contextlib"}  # and what our code waits by


def bare(failure: errors.MeshError) -> None:
    """Takes our frames out of the traceback of a failure, for a raise without an operand right after it: that, from
    Python 3.11 on, adds no entry for the frame which it leaves. Python 3.10 adds one. A failure of a user's code that
    we called, like the generator of a batch, stays as it is."""
    for frame, _ in traceback.walk_tb(failure.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _OURS:
            return
    failure.__traceback__ = failure.__cause__ = None
    if sys.version_info < (3, 11):
        raise failure from None


def outward(function: F) -> F:
    """A function or a coroutine function of the API: its MeshErrors come without our frames."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
            try:
                return await function(*args, **kwargs)
            except errors.MeshError as failure:
                bare(failure)
                raise

        return typing.cast("F", awaited)

    @functools.wraps(function)
    def called(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        try:
            return function(*args, **kwargs)
        except errors.MeshError as failure:
            bare(failure)
            raise

    return typing.cast("F", called)


def api(kind: C) -> C:
    """A class whose public methods, but for generators, are outward."""
    for name, one in list(vars(kind).items()):
        plain = inspect.isfunction(one) and not inspect.isgeneratorfunction(one)
        if plain and not inspect.isasyncgenfunction(one) and not name.startswith("_"):
            setattr(kind, name, outward(one))
    return kind


def outdated(failure: errors.MeshError, described: str) -> None:
    """Has a refusal say that the tool is of another revision than the one, if any, that its caller knows it by."""
    if failure.code == "invalid_arguments" and described and failure.revision not in ("", described):
        failure.message += (f"; the tool's revision changed since it was described ({described[:12]} → "
                            f"{failure.revision[:12]}): describe it again")


def failed(message: Msg) -> errors.MeshError:
    """The error that an answer tells of."""
    headers = message.headers or {}
    told: typing.Any
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
    found = errors.rebuilt(told, "")
    found.revision = headers.get("Mesh-Revision", "")
    return found


def by_number(number: str) -> str:
    """The code of a number that has no name here: its class's."""
    return {"4": "invalid_request"}.get(number[:1], "internal")


def unserved(tool: str, reason: str) -> errors.MeshError:
    """The error of a tool that is known, and served nowhere."""
    why = reason or "it is known, but no node serves it now"
    return errors.error("unavailable", f"the tool cannot be called: {why}", tool=tool, started=False, origin="mesh",
                        retryable=True)


def timed_out(tool: str, timeout: float, started: bool | None) -> errors.MeshError:
    """The error of a call whose time, in seconds, is up here."""
    return errors.error("deadline_exceeded", f"no answer within {timeout:g} s", tool=tool, started=started,
                        origin="caller")


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
