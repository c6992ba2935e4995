"""One tool of an Index: a function of this process, or a tool of the mesh."""

from __future__ import annotations

import abc
import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import operator
import types
import typing
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from .._client.answers import refused
from .._core import binding, schema, values
from ..remote import RemoteTool, by_name, hints
from ._fitting import fitted, plain, refusal, takes_null

Arguments = dict[str, Any]


class Tool(abc.ABC):
    """name is used by execute and .tools, local is the id of stores, id the id on the mesh."""

    id = ""
    mesh: Any = None  # its mesh; None for a function of this process
    kind: str  # kind of its callable: sync, async, generator or async_generator

    def __init__(self, local: str, doc: str, input_schema: dict[str, Any], signature: inspect.Signature) -> None:
        self.name = self.local = local
        self.doc = doc
        self.input_schema = input_schema
        self.signature = advertised(signature, input_schema)

    @property
    def streaming(self) -> bool:
        return self.kind.endswith("generator")

    def fitted(self, arguments: Arguments) -> Arguments:
        """Arguments by name, in the tool's form."""
        return fitted(arguments, self.input_schema, self.id or self.name)

    def named(self, positional: tuple[Any, ...], keywords: Arguments) -> Arguments:
        """The arguments of a Python call, by name."""
        try:
            return by_name(self.signature, positional, keywords)
        except TypeError as failure:
            raise refused("invalid_arguments", str(failure), self.id or self.name) from None

    @abc.abstractmethod
    def run(self, given: Arguments) -> Any:
        """The result of a call; for a stream, the items."""

    @abc.abstractmethod
    async def arun(self, given: Arguments) -> Any:
        """run, for a tool that does not stream."""

    @abc.abstractmethod
    def astream(self, given: Arguments) -> AsyncIterator[Any]:
        """The items of a streaming tool."""

    def stream(self, given: Arguments) -> Iterator[Any]:
        return typing.cast("Iterator[Any]", self.run(given))

    def function(self) -> Callable[..., Any]:
        """The callable in .tools, of the tool's kind."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.run(self.named(args, kwargs))

        def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
            yield from self.stream(self.named(args, kwargs))

        async def acall(*args: Any, **kwargs: Any) -> Any:
            return await self.arun(self.named(args, kwargs))

        async def agenerator(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async with contextlib.aclosing(typing.cast("Any", self.astream(self.named(args, kwargs)))) as items:
                async for one in items:
                    yield one

        kinds: dict[str, Any] = {"sync": call, "async": acall, "generator": generator, "async_generator": agenerator}
        made = kinds[self.kind]
        made.__name__ = made.__qualname__ = self.name
        made.__doc__, made.__signature__, made.__module__ = self.doc or None, self.signature, __package__
        made.__annotations__ = hints(self.signature)
        made._tool = self
        return typing.cast("Callable[..., Any]", made)


class MeshTool(Tool):
    def __init__(self, remote: RemoteTool, mesh: Any) -> None:
        self.id, self.mesh, self.kind = remote.id, mesh, "generator" if remote.streaming else "sync"
        super().__init__(remote.id.partition(".")[2], remote.description, remote.input_schema, remote.__signature__)

    def run(self, given: Arguments) -> Any:
        given = self.fitted(given)
        return self.mesh.stream(self.id, given) if self.streaming else self.mesh.call(self.id, given)

    async def arun(self, given: Arguments) -> Any:
        return await self.mesh.acall(self.id, self.fitted(given))

    def astream(self, given: Arguments) -> AsyncIterator[Any]:
        return typing.cast("AsyncIterator[Any]", self.mesh.astream(self.id, self.fitted(given)))


class LocalTool(Tool):
    """A function of this process, which runs here."""

    def __init__(self, function: Callable[..., Any]) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        self._function, self.kind = function, schema.kind_of(function)
        found = schema.signature(function, self.kind)
        self._bound = binding.Tool(name, function, self.kind, found)
        super().__init__(name, inspect.getdoc(function) or "", found.input_schema, typed(function))

    def _call(self, given: Arguments) -> Any:
        names = {one.own: one.name for one in self._bound.parameters if one.own}
        for own, alias in names.items():
            if own in given and alias in given:
                raise refused("invalid_arguments", f"{alias} and {own} are the same argument", self.name)
        if not plain(given):
            owns = {alias: own for own, alias in names.items()}
            return self._function(**{owns.get(name, name): value for name, value in given.items()})  # unchanged
        given = self.fitted({names.get(name, name): value for name, value in given.items()})
        try:
            positional, keywords = self._bound.bind(dict(given))
        except values.Mismatch as failure:
            raise refusal(failure, self.name) from None
        return self._function(*positional, **keywords)

    def run(self, given: Arguments) -> Any:
        found = self._call(given)
        if self.kind == "async":
            return _apart(found)
        return _iterated(found) if self.kind == "async_generator" else found

    async def arun(self, given: Arguments) -> Any:
        if self.kind == "async":
            return await self._call(given)
        return await asyncio.to_thread(self._plainly, given)

    def _plainly(self, given: Arguments) -> Any:
        try:
            return self._call(given)
        except StopIteration as failure:  # an await would never end with it
            raise RuntimeError(f"{self.name} raised StopIteration") from failure

    async def astream(self, given: Arguments) -> AsyncIterator[Any]:
        items = self._call(given)
        if self.kind == "async_generator":
            async with contextlib.aclosing(items):
                async for one in items:
                    yield one
            return
        left = False

        def step() -> Any:
            one = next(items, _END)
            if left:
                items.close()
            return one

        try:
            while (one := await asyncio.to_thread(step)) is not _END:
                yield one
        finally:
            left = True
            if not getattr(items, "gi_running", False):  # else a cancel came while a thread runs it
                items.close()


_END = object()


_run = functools.partial(asyncio.run, debug=False)  # as in Host.serve


def _apart(work: Coroutine[Any, Any, Any], run: Callable[[Any], Any] = _run) -> Any:
    """The result of a coroutine. If an event loop is running, another thread runs it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run(work)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, run, work).result()


def _iterated(items: Any) -> Iterator[Any]:
    """The items of an asynchronous generator, on an event loop of its own."""
    loop = asyncio.new_event_loop()
    loop.set_debug(False)

    async def step() -> Any:
        return await anext(items, _END)

    async def end() -> None:
        await items.aclose()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await loop.shutdown_asyncgens()

    try:
        while (one := _apart(step(), loop.run_until_complete)) is not _END:
            yield one
    finally:
        _apart(end(), loop.run_until_complete)
        loop.close()


def typed(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function, its annotations resolved where they can be."""
    found = inspect.signature(function)
    try:
        hints = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except Exception:  # whatever annotations that are texts raise
        return found
    parameters = [one.replace(annotation=hints.get(one.name, one.annotation)) for one in found.parameters.values()]
    return found.replace(parameters=parameters, return_annotation=hints.get("return", found.return_annotation))


def advertised(signature: inspect.Signature, input_schema: dict[str, Any]) -> inspect.Signature:
    """The signature for frameworks. Some accept no default but None, which stands for the function's own, as in stores;
    a function that takes None as a value keeps its default. Required parameters are no Optional."""
    parameters = []
    for one in signature.parameters.values():
        if one.default is inspect.Parameter.empty:
            given = tuple(kind for kind in typing.get_args(one.annotation) if kind is not type(None))
            if given and typing.get_origin(one.annotation) in (typing.Union, types.UnionType):
                one = one.replace(annotation=functools.reduce(operator.or_, given))  # str | int, as stores writes it
        else:
            annotation = one.annotation
            if annotation in (inspect.Parameter.empty, typing.Any) and one.default is not None:
                annotation = type(one.default)
            declared = input_schema.get("properties", {}).get(one.name, True)
            if not takes_null(declared, input_schema.get("$defs", {})):
                one = one.replace(default=None)
                with contextlib.suppress(TypeError):  # one that is a text, or no type at all
                    annotation = annotation if annotation is inspect.Parameter.empty else annotation | None
            one = one.replace(annotation=annotation)
        parameters.append(one)
    return signature.replace(parameters=parameters)


def tool_of(one: Any) -> Tool:
    """The tool for an object that an Index takes or returns."""
    known = getattr(one, "_tool", None)
    if isinstance(known, Tool):
        return known
    if not callable(one):
        raise TypeError(f"a tool is a function, the name or the folder of an index, not {type(one).__name__}")
    return LocalTool(one)
