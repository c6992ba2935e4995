"""One served function: binding a call's arguments."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from ..wire.frames import JSON
from . import files, values
from .shapes import Dump, Load, Schema
from .values import Mismatch, describe, member, needed, pointer


@dataclasses.dataclass
class Parameter:
    """One parameter of a tool, and the conversion of its JSON value."""

    name: str
    kind: str  # positional, normal, keyword, varargs, varkw, unpack
    required: bool
    load: Load | None
    default: Any = None
    fill: Callable[[], Any] | None = None  # the value for a missing argument, where the function has no usable default
    own: str = ""  # the function's name, where callers use another one: the alias of its Field


@dataclasses.dataclass
class Signature:
    """The description of one tool: its schemas, and its parameters."""

    description: str
    input_schema: Schema
    output_schema: Schema | None
    parameters: list[Parameter]
    dump: Dump | None
    warnings: list[str]
    exact: bool = False  # whether floats are too imprecise: the arguments are read with their texts

    def as_dict(self, name: str, kind: str) -> dict[str, JSON]:
        """The description for the agent, of the tool of this name and kind."""
        return {
            "name": name,
            "description": self.description,
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
            "kind": kind,
            "positional": [p.name for p in self.parameters if p.kind in ("positional", "normal")],
            "varargs": next((p.name for p in self.parameters if p.kind == "varargs"), ""),
            "warnings": self.warnings,
        }


def shown(function: Callable[..., Any]) -> Callable[..., Any]:
    """function, or the object with its actual signature: a partial has its own, whatever update_wrapper says."""
    if _dispatches(function) and not hasattr(function, "dispatch"):  # of a method: it is bound, unless it is static
        method = inspect.unwrap(function, stop=lambda one: isinstance(one, staticmethod))
        if not isinstance(method, staticmethod):
            return types.MethodType(method, function)
    partial = functools.partial
    inner = inspect.unwrap(function, stop=lambda one: isinstance(one, partial) or hasattr(one, "__signature__"))
    if isinstance(inner, partial):
        return partial(shown(inner.func), *inner.args, **inner.keywords)
    return function


def _dispatches(function: Callable[..., Any]) -> bool:
    """Whether functools dispatches by the class of the first argument, which then has no name."""
    return hasattr(function, "register") and getattr(function, "__globals__", None) is vars(functools)


def _nameless(function: Callable[..., Any]) -> set[str]:
    """The parameters that a decorated function takes only by position: inspect shows the signature of the wrapped
    function, and the wrapper may differ."""
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is None:
        return set()
    try:
        inner = list(inspect.signature(shown(function)).parameters)
        outer = inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):
        return set()
    if _dispatches(function):
        return set(inner[:1])
    if any(one.kind is one.VAR_KEYWORD for one in outer.values()):
        return set()
    return {name for name in inner if name not in outer or outer[name].kind is outer[name].POSITIONAL_ONLY}


class Tool:
    """A declared function with its description, ready to be called."""

    __slots__ = (
        "name", "slot", "function", "kind", "parameters", "dump", "described", "direct", "decode", "takes_files",
        "gives_files",
        "_simple", "_loads", "_fills",
    )

    def __init__(self, name: str, function: Callable[..., Any], kind: str, signature: Signature) -> None:
        self.name = name
        self.slot = 0
        self.function = function
        self.kind = kind
        self.parameters = signature.parameters
        self.dump = signature.dump
        self.described = signature
        self.takes_files = files.in_schema(signature.input_schema)
        self.gives_files = files.in_schema(signature.output_schema)
        nameless = _nameless(function)
        for parameter in self.parameters:
            if parameter.kind == "normal" and (parameter.own or parameter.name) in nameless:
                parameter.kind = "positional"
        kinds = {parameter.kind for parameter in self.parameters}
        varkw_loads = any(p.kind == "varkw" and p.load is not None for p in self.parameters)
        renamed = any(p.own for p in self.parameters)
        self._simple = (
            kinds <= {"normal", "keyword", "varkw"} and not varkw_loads and not signature.exact and not renamed)
        self.decode = values.decode_exact if signature.exact else values.decode
        self._loads = [(p.name, p.load) for p in self.parameters if p.load is not None and p.kind != "varkw"]
        self._fills = [(p.name, p.fill) for p in self.parameters if p.fill is not None]
        # The JSON object itself is the argument.
        self.direct = self._simple and not self._loads and not self._fills

    def bind(
        self, arguments: JSON, extra: list[JSON] | None = None, body: bytes = b""
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """(positional, keyword) of a call; raises Mismatch. body is the JSON text of the arguments.

        Of a simple signature the function itself refuses missing or unknown arguments, see problems: the common call
        costs nothing.
        """
        if type(arguments) is not dict:
            values.forget()
            raise Mismatch("object", describe(arguments), "the arguments must be a JSON object")
        try:
            if not self._simple or extra:
                try:
                    return self._bind_any(arguments, extra or [])
                finally:
                    if self.described.exact:
                        values.forget()
            for name, load in self._loads:
                if name in arguments:
                    arguments[name] = member(load, arguments[name], name)
            for name, fill in self._fills:
                if name not in arguments:
                    arguments[name] = fill()
            return (), arguments
        except Mismatch:
            if not body:
                raise
        # Once more, with the texts of numbers for which floats are too imprecise.
        try:
            return self.bind(values.decode_exact(body), extra)
        finally:
            values.forget()

    def _bind_any(self, arguments: dict[str, JSON], extra: list[JSON]) -> tuple[list[Any], dict[str, Any]]:
        positional: list[Any] = []
        keyword: dict[str, Any] = {}
        rest = dict(arguments)
        varargs = next((p for p in self.parameters if p.kind == "varargs"), None)
        if varargs is None and extra:
            raise Mismatch("no further positional arguments", f"{len(extra)} more",
                           f"{self.name} takes no further positional arguments")
        for parameter in self.parameters:
            if parameter.own in rest:  # **kwargs would bypass the checks of its alias
                raise self._unknown(parameter.own, rest[parameter.own])
        if varargs is not None:
            extra = rest.pop(varargs.name, []) + extra if varargs.name in rest else extra
            if varargs.load is not None:
                extra = member(varargs.load, extra, varargs.name)
        for parameter in self.parameters:
            name, own = parameter.name, parameter.own or parameter.name
            if parameter.kind == "varargs":
                positional.extend(extra)
            elif parameter.kind == "varkw":
                for key, value in rest.items():
                    keyword[key] = member(parameter.load, value, key) if parameter.load else value
                rest = {}
            elif parameter.kind == "unpack":
                keyword.update(parameter.load(rest) if parameter.load else rest)
                rest = {}
            else:
                by_position = parameter.kind == "positional" or parameter.kind == "normal" and extra
                if name not in rest:
                    if parameter.required:
                        raise self._missing(name)
                    if by_position:
                        positional.append(parameter.fill() if parameter.fill else parameter.default)
                    elif parameter.fill:
                        keyword[own] = parameter.fill()
                    continue
                value = rest.pop(name)
                if parameter.load is not None:
                    value = member(parameter.load, value, name)
                if by_position:
                    positional.append(value)
                else:
                    keyword[own] = value
        if rest:
            name = next(iter(rest))
            raise self._unknown(name, rest[name])
        return positional, keyword

    def problems(self, arguments: dict[str, Any]) -> list[Mismatch]:
        """Missing and unknown arguments, as a list of Mismatch, for a TypeError raised by the call itself."""
        known = {p.own or p.name for p in self.parameters}
        found = [self._missing(p.name) for p in self.parameters if p.required and (p.own or p.name) not in arguments]
        if not any(p.kind in ("varkw", "unpack") for p in self.parameters):
            found += [self._unknown(name, value) for name, value in arguments.items() if name not in known]
        return found

    def _missing(self, name: str) -> Mismatch:
        return needed(name, self.described.input_schema["properties"].get(name, {}).get("type"))

    def _unknown(self, name: str, value: JSON) -> Mismatch:
        return Mismatch("no such argument", describe(value), f"{self.name} has no argument {name}", pointer("", name))

    def encode(self, value: Any) -> bytes:
        """A result or an item as JSON bytes; raises NotSerializable."""
        if self.dump is not None:
            try:
                value = self.dump(value)
            except (TypeError, ValueError, AttributeError):
                pass  # not the annotated type: encode it unchanged
        return values.encode(value)
