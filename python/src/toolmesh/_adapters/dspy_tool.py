"""A tool of the mesh as dspy.Tool: its exact schema, its own checks, short errors. Imported only with dspy."""

from __future__ import annotations

import asyncio
import copy
import functools
import typing

import dspy
import jsonschema
import pydantic
from dspy.utils.callback import with_callbacks

from .._client.answers import refused
from .._core import errors
from .common import brief, meant
from .proxies import RPCProxyTool, awhole, plain, whole

JSONObject = dict[str, typing.Any]


class MeshTool(dspy.Tool):
    """One tool of the mesh. Calls take keywords; acall is truly asynchronous. A streaming tool returns the list of its
    items. A list with other items than texts becomes a tuple. Optimizers may change desc."""

    _proxy: RPCProxyTool = pydantic.PrivateAttr()
    _schema: JSONObject = pydantic.PrivateAttr()
    _checks: typing.Any = pydantic.PrivateAttr()

    def __init__(self, proxy: RPCProxyTool) -> None:
        told = proxy._told
        schema: JSONObject = told.input_schema if told is not None else {"type": "object"}
        properties = {name: inlined(one, schema) for name, one in schema.get("properties", {}).items()}

        super().__init__(
            func=_Call(self, proxy), name=proxy.tool_name, desc=told.description if told is not None else "",
            args=properties,
            # With types, dspy would make 3 into 3.0.
            arg_types=dict.fromkeys(properties, typing.Any),
        )
        self._proxy, self._schema = proxy, schema
        self._checks = jsonschema.Draft202012Validator(schema)

    def _meant(self, kwargs: JSONObject, failure: errors.MeshError) -> typing.Any:
        return meant(self._proxy._caller(), self._proxy._named, plain(kwargs, self._proxy.tool_id), failure)

    def _checked(self, kwargs: JSONObject) -> JSONObject:
        """The arguments to send, checked against the whole schema."""
        given: JSONObject = plain(kwargs, self._proxy.tool_id, self._schema)
        wrong = sorted(self._checks.iter_errors(given), key=lambda one: one.json_path)
        if wrong:
            shown = "; ".join(f"{one.json_path[2:] or 'arguments'}: {one.message}" for one in wrong[:3])
            raise refused("invalid_arguments", shown, self._proxy.tool_id, details={"errors": [
                {"pointer": "".join(f"/{key}" for key in one.absolute_path), "message": one.message} for one in wrong]})
        return given

    # Arguments may have any names: functions decorated by dspy get them as one argument, as their own parameters have
    # names, too.
    def __call__(self, /, **kwargs: typing.Any) -> typing.Any:
        """Calls the tool and returns its result."""
        return self._called(kwargs)

    async def acall(self, /, **kwargs: typing.Any) -> typing.Any:
        """A call that does not block the event loop."""
        return await self._acalled(kwargs)

    @with_callbacks
    def _called(self, kwargs: JSONObject) -> typing.Any:
        return self.func(**kwargs)

    @with_callbacks
    async def _acalled(self, kwargs: JSONObject) -> typing.Any:
        try:
            try:
                given = self._checked(kwargs)
            except errors.InvalidArguments as failure:
                given = self._checked(await asyncio.wrap_future(self._meant(kwargs, failure)))
            return _shown(await awhole(self._proxy, **given))
        except errors.MeshError as failure:
            raise _quiet(failure) from None

    def format_as_litellm_function_call(self) -> JSONObject:
        """The declaration for a model: the author's schema."""
        return {"type": "function", "function": {
            "name": self.name, "description": self.desc, "parameters": copy.deepcopy(self._schema)}}

    def __str__(self) -> str:
        required = self._schema.get("required")
        return f"{super().__str__()} Required: {', '.join(required)}." if required else super().__str__()

    def __deepcopy__(self, memo: typing.Any = None) -> MeshTool:
        # Optimizers copy whole programs and write into the copies: they share the connection.
        copied: MeshTool = self.model_copy(update={"args": copy.deepcopy(self.args)})
        return copied


class _Call:
    """The function that dspy calls in several places, so the checks are in here. It is not a function: CodeAct, which
    copies the source of functions into its interpreter, then reports that."""

    def __init__(self, tool: MeshTool, proxy: RPCProxyTool) -> None:
        self._tool, self._proxy = tool, proxy

    def __call__(self, /, **kwargs: typing.Any) -> typing.Any:
        try:
            try:
                given = self._tool._checked(kwargs)
            except errors.InvalidArguments as failure:
                given = self._tool._checked(self._tool._meant(kwargs, failure).result())
            return _shown(whole(self._proxy, **given))
        except errors.MeshError as failure:
            raise _quiet(failure) from None


def _quiet(failure: errors.MeshError) -> errors.MeshError:
    """A failure without frames: agents pass the traceback of an exception to their model."""
    found = brief(failure)
    found.__class__ = _without_frames(type(found))  # type: ignore[arg-type]  # classes can be hashed
    return found


@functools.cache
def _without_frames(kind: type[errors.MeshError]) -> type[errors.MeshError]:
    frames = property(lambda _: None, lambda _, __: None)
    return type(kind.__name__, (kind,), {
        "__module__": kind.__module__, "__doc__": kind.__doc__, "__traceback__": frames,
        "__reduce__": lambda self: (kind, self.args, self.__dict__)})


def _shown(value: typing.Any) -> typing.Any:
    # ReAct of dspy 3.4 fails on a list with other items than texts, and ends the whole run.
    if isinstance(value, list) and not all(isinstance(one, str) for one in value):
        return tuple(value)
    return value


def inlined(declared: typing.Any, schema: JSONObject, above: tuple[str, ...] = ()) -> typing.Any:
    """A JSON Schema with its inner references replaced by their targets; a recursive one becomes anything."""
    if isinstance(declared, list):
        return [inlined(one, schema, above) for one in declared]
    if not isinstance(declared, dict):
        return declared
    reference = declared.get("$ref")
    if not isinstance(reference, str):
        return {key: inlined(one, schema, above) for key, one in declared.items()}
    beside = {key: inlined(one, schema, above) for key, one in declared.items() if key != "$ref"}
    if reference in above or not reference.startswith("#/"):
        return beside
    found: typing.Any = schema
    for key in reference[2:].split("/"):
        key = key.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, dict) else None
    found = inlined(found, schema, (*above, reference))
    return {**found, **beside} if isinstance(found, dict) else beside
