"""From a signature to a JSON Schema, and to what binding needs of it."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing

from .annotation import ITERATORS, UNRESOLVED, Builder, hashable, show_default
from .docstring import parse as parse_docstring
from .shape import Shape
from .values import Mismatch, describe

if typing.TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .shape import Dump, Load, Schema
    from .values import JSON

_EMPTY = inspect.Parameter.empty


@dataclasses.dataclass
class Parameter:
    """One parameter of a tool, and how its JSON value becomes what the tool expects."""

    name: str
    kind: str  # positional, normal, keyword, varargs, varkw, unpack
    required: bool
    load: Load | None
    default: Any = None


@dataclasses.dataclass
class Signature:
    """What is known of one tool: its schemas, and how a call is made."""

    description: str
    input_schema: Schema
    output_schema: Schema | None
    parameters: list[Parameter]
    dump: Dump | None
    warnings: list[str]


def signature(function: Callable[..., Any]) -> Signature:
    """The Signature of a tool. Raises ValueError when it has none (some builtins)."""
    if sys.version_info >= (3, 14):
        import annotationlib

        found = inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    else:
        found = inspect.signature(function)
    inner = inspect.unwrap(function)
    while hasattr(inner, "func") and not inspect.isfunction(inner):  # functools.partial
        inner = inspect.unwrap(inner.func)
    if inspect.ismethod(inner):
        inner = inner.__func__
    if inspect.isclass(inner):
        inner = inner.__init__
    elif not hasattr(inner, "__globals__") and callable(inner) and hasattr(type(inner).__call__, "__globals__"):
        inner = type(inner).__call__
    namespace = dict(getattr(inner, "__globals__", {}))
    for parameter in getattr(inner, "__type_params__", ()):
        namespace.setdefault(parameter.__name__, parameter)

    builder = Builder(namespace)
    documented = function
    if not (function.__doc__ or inspect.isfunction(function) or inspect.isclass(function)):
        documented = inner
    description, texts = parse_docstring(inspect.getdoc(documented) or "")
    properties: dict[str, Schema] = {}
    required: list[str] = []
    parameters: list[Parameter] = []
    open_ended: Schema | bool = False
    for parameter in found.parameters.values():
        kind = {
            parameter.POSITIONAL_ONLY: "positional",
            parameter.POSITIONAL_OR_KEYWORD: "normal",
            parameter.KEYWORD_ONLY: "keyword",
            parameter.VAR_POSITIONAL: "varargs",
            parameter.VAR_KEYWORD: "varkw",
        }[parameter.kind]
        shape = builder.shape(parameter.annotation, parameter.name)
        name = parameter.name
        if kind == "varkw":
            marker = getattr(typing.get_origin(parameter.annotation), "_name", None)
            if marker == "Unpack":
                fields = shape.schema.get("properties", {})
                properties.update(fields)
                required.extend(shape.schema.get("required", ()))
                load = shape.load
                parameters.append(Parameter(name, "unpack", False, load))
                continue
            open_ended = shape.schema or True
            parameters.append(Parameter(name, kind, False, shape.load))
            continue
        if kind == "varargs":
            item = shape
            shape = Shape({"type": "array", "items": item.schema}, "array", load=None)
            shape.load = _varargs(item)
        needed = parameter.default is _EMPTY and kind != "varargs"
        extra: Schema = {}
        if "description" not in shape.schema and texts.get(name):
            extra["description"] = texts[name]
        elif texts.get(name) and shape.schema.get("description") == "seconds":
            extra["description"] = f"{texts[name]} (seconds)"
        if parameter.default is not _EMPTY:
            show_default(parameter.default, shape, extra)
        properties[name] = {**shape.schema, **extra} if extra else shape.schema
        if needed:
            required.append(name)
        parameters.append(Parameter(name, kind, needed, shape.load, parameter.default))
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = open_ended
    input_defs = dict(builder.defs)
    if input_defs:
        schema["$defs"] = input_defs

    output: Schema | None = None
    dump: Dump | None = None
    returns = found.return_annotation
    if returns is not inspect.Signature.empty:
        returns = builder.resolve(returns, namespace, "the return value")
        if typing.get_origin(returns) in ITERATORS and kind_of(function) in ("generator", "async_generator"):
            arguments = typing.get_args(returns)
            returns = arguments[0] if arguments else UNRESOLVED
        elif _is_stream(returns) and kind_of(function) in ("generator", "async_generator"):
            returns = UNRESOLVED
        if returns is not UNRESOLVED:
            builder.defs = {}
            builder._names = {}
            builder._recursive = set()
            shape = builder.shape(returns, "the return value")
            dump = shape.dump
            if shape.schema:
                output = dict(shape.schema)
                if builder.defs:
                    output["$defs"] = dict(builder.defs)
    return Signature(description, schema, output, parameters, dump, builder.warnings)


def _is_stream(annotation: Any) -> bool:
    return hashable(annotation) and annotation in ITERATORS


def _varargs(item: Shape) -> Load:
    def load(value: JSON, at: str) -> Any:
        if type(value) is not list:
            raise Mismatch(at, "array", describe(value))
        if item.load is None:
            return value
        return [item.load(one, f"{at}/{index}") for index, one in enumerate(value)]

    return load


def kind_of(function: Callable[..., Any]) -> str:
    """How a function is run: sync, async, generator or async_generator."""
    while hasattr(function, "func") and not inspect.isfunction(function) and type(function).__name__ == "partial":
        function = function.func
    if not (inspect.isfunction(function) or inspect.ismethod(function) or inspect.isclass(function)):
        call = type(function).__call__
        if inspect.isfunction(call):
            function = call
    if inspect.isasyncgenfunction(function):
        return "async_generator"
    if inspect.iscoroutinefunction(function):
        return "async"
    if inspect.isgeneratorfunction(function):
        return "generator"
    return "sync"
