"""A tool of the mesh as a Python callable."""

from __future__ import annotations

import datetime
import decimal
import functools
import inspect
import keyword
import typing
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from ._client.answers import api, outward, refused
from ._core import values

JSONObject = dict[str, Any]

_FORMATS = {
    "date-time": datetime.datetime, "date": datetime.date, "time": datetime.time, "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
}
_SIMPLE = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}


def annotation(declared: Any, definitions: JSONObject | None = None, depth: int = 0) -> Any:
    """The Python type for a JSON Schema; Any if it has none."""
    if not isinstance(declared, dict) or depth > 8:
        return typing.Any
    definitions = definitions or {}
    reference = declared.get("$ref")
    if isinstance(reference, str):
        return annotation(definitions.get(reference.rpartition("/")[2]), definitions, depth + 1)
    if "const" in declared:
        return _literal([declared["const"]])
    if isinstance(declared.get("enum"), list):
        return _literal(declared["enum"])
    either = declared.get("anyOf") or declared.get("oneOf")
    if isinstance(either, list) and either:
        return _union([annotation(one, definitions, depth + 1) for one in either])
    kind = declared.get("type")
    if isinstance(kind, list):
        return _union([annotation({**declared, "type": one}, definitions, depth + 1) for one in kind])
    if kind == "string":
        if declared.get("contentEncoding") == "base64":
            return bytes
        return _FORMATS.get(declared.get("format", ""), str)
    if kind == "array":
        first = declared.get("prefixItems")
        if isinstance(first, list) and first and declared.get("items") in (False, None):
            return tuple[tuple(annotation(one, definitions, depth + 1) for one in first)]  # type: ignore[misc]
        return list[annotation(declared["items"], definitions, depth + 1)] if declared.get("items") else list  # type: ignore[misc]
    if kind == "object":
        further = declared.get("additionalProperties")
        if isinstance(further, dict) and further and not declared.get("properties"):
            return dict[str, annotation(further, definitions, depth + 1)]  # type: ignore[misc]
        return dict[str, typing.Any]
    return _SIMPLE.get(kind, typing.Any) if isinstance(kind, str) else typing.Any


def _literal(choices: list[Any]) -> Any:
    if choices and all(type(one) in (str, int, bool, type(None)) for one in choices):
        return typing.Literal[tuple(choices)]
    return typing.Any


def _union(members: list[Any]) -> Any:
    if not members or typing.Any in members:
        return typing.Any
    return typing.Union[tuple(members)]  # noqa: UP007  # of what is known only now


def signature(
    input_schema: JSONObject, output_schema: JSONObject | None, streaming: bool, varargs: str = "",
) -> inspect.Signature:
    """The signature of the function behind a tool, as far as its schemas tell: required parameters with their types,
    then those with a default. varargs is the name of *args, if any. Arguments that cannot be Python parameters go to
    **further."""
    definitions = input_schema.get("$defs", {})
    required = set(input_schema.get("required", ()))
    parameters: list[inspect.Parameter] = []
    further, optional = bool(input_schema.get("additionalProperties")), False
    for name, declared in input_schema.get("properties", {}).items():
        if not name.isidentifier() or keyword.iskeyword(name):
            further = True
            continue
        default: Any = inspect.Parameter.empty
        kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
        if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
            kind = inspect.Parameter.KEYWORD_ONLY
        if name == varargs:
            kind, declared = inspect.Parameter.VAR_POSITIONAL, declared.get("items")
        elif name not in required:
            default = declared.get("default") if isinstance(declared, dict) else None
            optional = True
        elif optional:
            kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation(declared, definitions)))
    parameters.sort(key=lambda one: one.kind)
    if further:
        name = "further"
        while any(one.name == name for one in parameters):
            name += "_"
        parameters.append(inspect.Parameter(name, inspect.Parameter.VAR_KEYWORD))
    returns: Any = inspect.Signature.empty
    if output_schema is not None:
        returns = annotation(output_schema, output_schema.get("$defs", {}))
        if streaming:
            returns = typing.Iterator[returns]
    return inspect.Signature(parameters, return_annotation=returns)


def hints(signature: inspect.Signature) -> JSONObject:
    """The annotations of a signature, as a function has them."""
    found = {name: one.annotation for name, one in signature.parameters.items()}
    found["return"] = signature.return_annotation
    return {name: one for name, one in found.items() if one is not inspect.Signature.empty}


def declared(body: bytes, input_schema: JSONObject) -> bytes:
    """Arguments with bytes in the form that the tool declares: base64 text, if its schema says so."""
    definitions = input_schema.get("$defs", {})

    def settle(value: Any, said: Any, depth: int = 0) -> Any:
        if not isinstance(said, dict) or depth > 64:
            return value
        if "$ref" in said:
            return settle(value, definitions.get(str(said["$ref"]).rpartition("/")[2]), depth + 1)
        if isinstance(value, list):
            first = said.get("prefixItems") or []
            return [settle(one, first[at] if at < len(first) else said.get("items"), depth + 1)
                    for at, one in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if list(value) == ["$bytes"]:
            if any(one.get("contentEncoding") == "base64" for one in (said, *said.get("anyOf", ()))):
                return value["$bytes"]
            return value
        for one in said.get("anyOf", ()):
            value = settle(value, one, depth + 1)
        properties = said.get("properties", {})
        return {key: settle(one, properties.get(key, said.get("additionalProperties")), depth + 1)
                for key, one in value.items()}

    return values.encode(settle(values.decode(body), input_schema))


F = typing.TypeVar("F", bound=Callable[..., Any])


def by_name(signature: inspect.Signature, positional: tuple[Any, ...], keywords: JSONObject) -> JSONObject:
    """The arguments of a Python call by name, those of *args as a tuple. TypeError for one without a name or given
    twice; the tool checks for missing and unknown ones."""
    given = signature.bind_partial(*positional).arguments
    if twice := given.keys() & keywords.keys():
        raise TypeError(f"{min(twice)} is given by position and by name")
    return {**given, **keywords}


class Named(str):
    """The id of a described tool, with the revision of its index at that time: a refusal by another revision says
    so."""

    revision = ""


class _Method:
    """A method with the signature of the tool it is called on: frameworks inspect __call__."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = outward(function)
        self.__doc__ = function.__doc__

    def __get__(self, tool: Description | None, _kind: type | None = None) -> Callable[..., Any]:
        if tool is None:
            return self.function
        found = functools.partial(self.function, tool)
        found.__dict__.update(__name__=tool.__name__, __doc__=tool.__doc__, __signature__=tool.__signature__,
                              __annotations__=tool.__annotations__)
        return found


def _method(function: F) -> F:
    return typing.cast("F", _Method(function))


@api
class Description:
    """The description of a tool, and the names of its arguments.

    id is the full id, name its last part, revision that of its index. input_schema and output_schema are JSON Schemas
    (output_schema is None if undeclared). annotations describe the tool's behaviour (idempotent, parallel_safe,
    resource_key, timeout and others). metadata is its author's own.
    """

    def __init__(self, told: JSONObject) -> None:
        self.id: str = told["id"]
        self.revision: str = (told.get("index") or {}).get("revision") or ""
        self._named = Named(self.id)
        self._named.revision = self.revision
        self.name: str = told.get("name") or self.id
        self.description: str = told.get("description") or ""
        self.input_schema: JSONObject = told.get("input_schema") or {"type": "object"}
        self.output_schema: JSONObject | None = told.get("output_schema") or None
        self.annotations: JSONObject = told.get("annotations") or {}
        self.metadata: JSONObject = told.get("metadata") or {}
        self.streaming: bool = bool(self.annotations.get("streaming"))
        self.__name__: str = self.id.rpartition(".")[2]
        self.__qualname__ = self.id
        self.__doc__ = self.description
        self._varargs: str = told.get("varargs") or ""
        self.__signature__: inspect.Signature = signature(
            self.input_schema, self.output_schema, self.streaming, self._varargs)
        self.__annotations__ = hints(self.__signature__)
        if self._varargs in self.__annotations__:  # by name it is a list, and frameworks call by name
            self.__annotations__[self._varargs] = list[self.__annotations__[self._varargs]]  # type: ignore[name-defined]

    def __deepcopy__(self, _memo: Any = None) -> Any:
        return self  # it is immutable, and its connection is unique

    def __repr__(self) -> str:
        return f"<tool {self.id}{self.__signature__}>"

    def arguments(self, positional: tuple[Any, ...], keywords: JSONObject) -> JSONObject:
        """The arguments object of a call. Raises InvalidArguments for too many arguments and for repeated ones; the
        node checks the rest."""
        try:
            return by_name(self.__signature__, positional, keywords) if positional else keywords
        except TypeError as failure:
            raise refused("invalid_arguments", str(failure), self.id) from None


class _Remote(Description):
    """A tool with its mesh."""

    def __init__(self, mesh: Any, told: JSONObject) -> None:
        super().__init__(told)
        self._mesh = mesh


class RemoteTool(_Remote):
    """A tool to call like its function: tool("Oslo", days=2). Any thread may call it."""

    @_method
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the tool and returns its result; for a streaming tool the last value, or the list of all if the tool
        says so."""
        return self._mesh.call(self._named, self.arguments(args, kwargs))

    @_method
    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call, for coroutines of any event loop."""
        return await self._mesh.acall(self._named, self.arguments(args, kwargs))

    @_method
    def stream(self, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """Calls the tool and yields its items as they arrive."""
        items: Generator[Any, None, None] = self._mesh.stream(self._named, self.arguments(args, kwargs))
        return items

    @_method
    def astream(self, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """stream, for coroutines."""
        items: AsyncGenerator[Any, None] = self._mesh.astream(self._named, self.arguments(args, kwargs))
        return items


class AsyncRemoteTool(_Remote):
    """RemoteTool, for coroutines: await tool("Oslo")."""

    __call__ = acall = RemoteTool.__dict__["acall"]
    stream = astream = RemoteTool.__dict__["astream"]
