"""The errors of calls: those in answers, and those of calls without an answer."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import typing

from .._core import errors, values

if sys.version_info < (3, 11):
    import ctypes

if typing.TYPE_CHECKING:
    import types

    from nats.aio.msg import Msg

F = typing.TypeVar("F", bound="typing.Callable[..., typing.Any]")
C = typing.TypeVar("C")

_OURS = {"toolmesh", "_toolmesh_worker", "asyncio", "concurrent", "contextlib"}  # and modules in which our code waits
_SHOWN = {"__init__", "__call__", "__enter__", "__reduce__"}
_RAISE = dis.opmap["RAISE_VARARGS"]


def bare(failure: Exception) -> None:
    """Removes our frames from the traceback of a failure. The caller is handling the failure and raises it again, with
    a bare raise, right after this. The traceback stays whole if it contains frames of others, such as the generator of
    a batch, or if the failure is a bug of ours: no raise statement of ours raised it."""
    last = step = failure.__traceback__
    while step is not None:
        if not _is_ours(step, _OURS):
            return
        last, step = step, step.tb_next
    if last is None or not (isinstance(failure, (errors.MeshError, OSError)) or _is_misuse(failure, last)):
        return
    failure.__traceback__ = failure.__cause__ = None
    failure.__dict__["_bare"] = True  # for a caller that is outward, too
    if sys.version_info < (3, 11):
        # It also keeps the traceback of the exception handled elsewhere, for the next raise.
        python = ctypes.pythonapi
        for one in (type(failure), failure):
            python.Py_IncRef(ctypes.py_object(one))  # the next function takes over these references
        python.PyErr_SetExcInfo(ctypes.py_object(type(failure)), ctypes.py_object(failure), None)


def _is_ours(step: types.TracebackType, packages: typing.Container[str]) -> bool:
    return step.tb_frame.f_globals.get("__name__", "").partition(".")[0] in packages


def _is_misuse(failure: Exception, last: types.TracebackType) -> bool:
    """Whether we raised it deliberately, or Python did because the arguments do not fit the function's signature."""
    if "_bare" in failure.__dict__:
        return True
    if last is failure.__traceback__:
        return isinstance(failure, TypeError)
    raised = last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE
    return raised and _is_ours(last, ("toolmesh", "_toolmesh_worker")) and not isinstance(failure, AssertionError)


def outward(function: F) -> F:
    """Wraps a function or a coroutine function of the API: its exceptions have no frames of ours."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
            try:
                return await function(*args, **kwargs)
            except Exception as failure:
                bare(failure)
                raise

        return typing.cast("F", awaited)

    @functools.wraps(function)
    def called(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        try:
            return function(*args, **kwargs)
        except Exception as failure:
            bare(failure)
            raise

    return typing.cast("F", called)


def api(owner: C) -> C:
    """Makes the public functions of a class or a module outward. Generators call bare themselves."""
    for name, one in list(vars(owner).items()):
        plain = inspect.isfunction(one) and not inspect.isgeneratorfunction(one)
        if plain and not inspect.isasyncgenfunction(one) and (not name.startswith("_") or name in _SHOWN):
            setattr(owner, name, outward(one))
    return owner


def outdated(failure: errors.MeshError, described: str) -> None:
    """Adds to a refusal that the tool has another revision than the description that the caller uses, if so."""
    if failure.code == "invalid_arguments":
        failure.message += upgraded(described, failure.revision)


def upgraded(described: str, now: str) -> str:
    """The hint for a tool with another revision than its description."""
    if not described or now in ("", described):
        return ""
    return (f"; the tool's revision changed since it was described ({described[:12]} → {now[:12]}): "
            "describe it again")


def failed(message: Msg) -> errors.MeshError:
    """The error in an answer."""
    headers = message.headers or {}
    told: typing.Any = None
    with contextlib.suppress(ValueError, AttributeError):
        told = values.decode(message.data).get("error")
    if not isinstance(told, dict):
        told = {"message": headers.get("Nats-Service-Error", "")}
    # A number without a name here has the code of its class.
    known = "invalid_request" if headers.get("Nats-Service-Error-Code", "").startswith("4") else "internal"
    if not isinstance(told.get("code"), str):
        told["code"] = headers.get("Mesh-Error-Code") or known
    if not isinstance(told.get("started"), bool) and headers.get("Mesh-Started") in ("true", "false"):
        told["started"] = headers["Mesh-Started"] == "true"
    found = errors.rebuilt(told, "")
    found.revision = headers.get("Mesh-Revision", "")
    return found


def unserved(tool: str, reason: str) -> errors.MeshError:
    """The error of a known tool that no node serves."""
    why = reason or "it is known, but no node serves it now"
    return errors.error("unavailable", f"the tool cannot be called: {why}", tool=tool, started=False, origin="mesh",
                        retryable=True)


def timed_out(tool: str, timeout: float, started: bool | None) -> errors.MeshError:
    """The error of a call that timed out here, after its time in seconds."""
    return errors.error("deadline_exceeded", f"no answer within {timeout:g} s", tool=tool, started=started,
                        origin="caller")


def refused(code: str, message: str, tool: str = "", **more: typing.Any) -> errors.MeshError:
    """The error of a request that was not sent."""
    return errors.error(code, message, tool=tool, started=False, origin="caller", **more)


def unreachable(where: str, failure: BaseException) -> errors.MeshError:
    """The error of a server that cannot be reached, or refuses the connection."""
    text = str(failure) or type(failure).__name__
    if "authorization" in text.lower() or "authentication" in text.lower():
        return refused("permission_denied", f"the NATS server at {where} refuses the connection: {text}. "
                                            "Set MESH_NATS_NKEY, MESH_NATS_CREDS or MESH_NATS_CONTEXT")
    if isinstance(failure, (ValueError, ImportError)):
        return refused("invalid_request", f"{where}: {text}")
    return refused("unavailable", f"no mesh at {where}: {text}. Run mesh up, set MESH_NATS_URL, or call "
                                  "toolmesh.local()", retryable=True)


class NoResponders(Exception):
    """NATS's 503: the subject of the request has no subscriber."""


def result(message: Msg) -> bytes:
    """The body of an answer; raises its error."""
    headers = message.headers
    if headers:
        if headers.get("Status") == "503":
            raise NoResponders
        if "Mesh-Error-Code" in headers or "Nats-Service-Error-Code" in headers:
            raise failed(message)
    return message.data


def told(message: Msg, where: str) -> dict[str, typing.Any]:
    """The object in an answer; raises its error."""
    body = result(message)
    with contextlib.suppress(ValueError):
        if isinstance(found := values.decode(body), dict):
            return found
    raise errors.error("protocol_error", f"the answer on {where} is not an object", origin="caller")
