"""Index and its relatives: tools of folders, repositories and this process, under one roof."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import os
import typing
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .._client.answers import api
from .._client.background import background
from .._client.installing import shown
from .._client.models import render, unwrapped
from .._core import errors
from ..client import Mesh
from ._fitting import plain
from ._sources import Source, mesh_here
from ._tools import MeshTool, Tool, tool_of
from .format import RENDERED, ProviderFormat, short
from .parse import llm_parse_json

__all__ = ["BaseIndex", "Index", "LocalIndex", "RemoteIndex"]

_CALL = ("toolname", "kwargs")


@api
class BaseIndex:
    """Tools that are functions. execute and the others call one by its name; foo-bar and foo.bar are the same name."""

    def __init__(self, tools: Iterable[Callable[..., Any]]) -> None:
        self._fill([tool_of(one) for one in tools], None)

    def _fill(self, tools: Sequence[Tool], mesh: Mesh | None) -> None:
        tools = [copy.copy(one) for one in tools]  # another Index may have them by another name
        twice = {name for name, count in collections.Counter(one.local for one in tools).items() if count > 1}
        for one in tools:
            # Of two indexes that have the same tool, or two revisions of one.
            one.name = one.id if one.local in twice and one.id else one.local
        repeated = [name for name, count in collections.Counter(one.name for one in tools).items() if count > 1]
        if repeated:
            raise ValueError(f"Found duplicate(s): {repeated}")
        self._mesh: Mesh | None = mesh or next((one.mesh for one in tools if one.mesh is not None), None)
        self._tools = tools
        self._declared: dict[str, Tool] = {}  # by the names of format_tools
        self.tools: list[Callable[..., Any]] = [one.function() for one in tools]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.tools)} tools>"

    @property
    def tools_dict(self) -> dict[str, Callable[..., Any]]:
        """The tools by their names."""
        return {tool.__name__: tool for tool in self.tools}

    def execute(self, toolname: str, kwargs: Mapping[str, Any] | None = None, collect_results: bool = False) -> Any:
        """Calls a tool. A streaming one returns its last item or None, with collect_results the list of all. Its
        failure has the items before it as results."""
        tool, given = self._call(toolname, kwargs)
        if not tool.streaming:
            return tool.run(given)
        results: list[Any] = []
        try:
            results.extend(tool.stream(given))
        except Exception as failure:
            failure.results = results  # type: ignore[attr-defined]
            raise
        return results if collect_results else _last(results)

    async def aexecute(
        self, toolname: str, kwargs: Mapping[str, Any] | None = None, collect_results: bool = False
    ) -> Any:
        """execute, for coroutines. Plain functions of this process run in a thread."""
        tool, given = await self._acall(toolname, kwargs)
        if not tool.streaming:
            return await tool.arun(given)
        results: list[Any] = []
        try:
            async for one in tool.astream(given):
                results.append(one)  # noqa: PERF401  # what came before a failure is kept
        except Exception as failure:
            failure.results = results  # type: ignore[attr-defined]
            raise
        return results if collect_results else _last(results)

    def stream_execute(self, toolname: str, kwargs: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Calls a tool and yields its items as they come; of one that does not yield, its result."""
        tool, given = self._call(toolname, kwargs)
        if tool.streaming:
            yield from tool.stream(given)
        else:
            yield tool.run(given)

    async def astream_execute(self, toolname: str, kwargs: Mapping[str, Any] | None = None) -> AsyncIterator[Any]:
        """As stream_execute, for coroutines."""
        tool, given = await self._acall(toolname, kwargs)
        if tool.streaming:
            async with contextlib.aclosing(typing.cast("Any", tool.astream(given))) as items:
                async for one in items:
                    yield one
        else:
            yield await tool.arun(given)

    def parse_and_execute(self, msg: str, collect_results: bool = False) -> Any:
        """execute, by a text of a model that holds {"toolname": …, "kwargs": {…}}."""
        return self.execute(*_parsed(msg), collect_results=collect_results)

    async def aparse_and_execute(self, msg: str, collect_results: bool = False) -> Any:
        """aexecute, as parse_and_execute."""
        return await self.aexecute(*_parsed(msg), collect_results=collect_results)

    def stream_parse_and_execute(self, msg: str) -> Iterator[Any]:
        """stream_execute, as parse_and_execute."""
        yield from self.stream_execute(*_parsed(msg))

    async def astream_parse_and_execute(self, msg: str) -> AsyncIterator[Any]:
        """astream_execute, as parse_and_execute."""
        async with contextlib.aclosing(typing.cast("Any", self.astream_execute(*_parsed(msg)))) as items:
            async for one in items:
                yield one

    def format_tools(self, provider: ProviderFormat | str) -> list[dict[str, Any]]:
        """The declarations of the tools as a provider takes them, in the order of the tools. The mesh writes them.
        execute takes the names in them, and the arguments that a model writes for them."""
        chosen = ProviderFormat(provider)
        if not self._tools:
            return []
        if self._mesh is None:
            self._mesh = mesh_here()
        keys = {self._key(one): one for one in self._tools}
        question: dict[str, Any] = {
            "provider": RENDERED[chosen], "tools": list(keys),
            "declared": [_declaration(key, one) for key, one in keys.items() if one.mesh is None],
        }
        mesh = self._mesh
        found, names = background.run(lambda: render(mesh._links.here(), mesh.session_name, question))
        shorts = collections.Counter(short(one.name, chosen) for one in self._tools)
        for one in found:
            part = one.get("function", one)
            tool = keys[names[part["name"]]]
            name = short(tool.name, chosen)
            if name and shorts[name] == 1 and keys.get(names.get(name, ""), tool) is tool:
                part["name"] = name
            part["description"] = part["description"] if tool.doc else "No description available."
            self._declared[part["name"]] = tool
        return found

    def _find(self, toolname: str) -> Tool:
        if not isinstance(toolname, str):
            raise ValueError(f"No tool matching '{toolname}'")
        for one in self._tools:
            if one.name == toolname:
                return one
        if toolname in self._declared:
            return self._declared[toolname]
        meant = toolname.replace("-", ".")
        matching = [one for one in self._tools
                    if any(name.replace("-", ".") == meant for name in (one.name, one.local, one.id or one.name))]
        if not matching:
            raise ValueError(f"No tool matching '{toolname}'")
        if len(matching) > 1:
            raise ValueError(f"'{toolname}' matches multiple tools - {[one.name for one in matching]}")
        return matching[0]

    @staticmethod
    def _key(tool: Tool) -> str:
        return tool.id or tool.name

    def _question(
        self, toolname: str, kwargs: Mapping[str, Any] | None,
    ) -> tuple[Tool, dict[str, Any], Callable[[], Coroutine[Any, Any, dict[str, Any]]] | None]:
        """The tool, its arguments, and what asks the mesh what a model means by them."""
        tool, given, mesh = self._find(toolname), dict(kwargs or {}), self._mesh
        if not self._declared or not given or mesh is None or not plain(given):
            return tool, given, None
        key = self._key(tool)
        question = {"tool": key, "arguments": given,
                    "declared": [_declaration(key, tool)] if tool.mesh is None else []}
        return tool, given, lambda: mesh._asked("arguments", question)

    def _call(self, toolname: str, kwargs: Mapping[str, Any] | None) -> tuple[Tool, dict[str, Any]]:
        tool, given, ask = self._question(toolname, kwargs)
        return tool, given if ask is None else background.run(ask)["arguments"]

    async def _acall(self, toolname: str, kwargs: Mapping[str, Any] | None) -> tuple[Tool, dict[str, Any]]:
        tool, given, ask = self._question(toolname, kwargs)
        return tool, given if ask is None else (await asyncio.wrap_future(background.submit(ask)))["arguments"]


@api
class Index(BaseIndex):
    """Tools of indexes and functions, mixed.

    tools are folders, owner/repo with :version, :branch or :commit, git URLs, names of installed indexes, functions.
    Indexes are installed on mesh, by default the running mesh or a new one, and run there; functions run here. The keys
    of env_var, paths, include and exclude are entries of tools. env_var has the variables of an index, in which ./data
    is a folder of the caller, paths the folders that its tools may use: "DIR" to read, "DIR:rw" also to write. include
    and exclude choose among its declared tools. reset_cache fetches installed repositories again. cache_dir and
    sys_executable have no effect. Raises ValueError for an index that cannot be loaded, and for two functions of one
    name. See docs/python/stores.md.
    """

    def __init__(
        self, tools: Iterable[Callable[..., Any] | str | os.PathLike[str]] | None = None,
        env_var: Mapping[Any, Mapping[str, str]] | None = None, include: Mapping[Any, Sequence[str]] | None = None,
        exclude: Mapping[Any, Sequence[str]] | None = None, cache_dir: str | os.PathLike[str] | None = None,
        reset_cache: bool = False, sys_executable: str | None = None, *,
        paths: Mapping[Any, Sequence[str | os.PathLike[str]]] | None = None, mesh: Mesh | None = None,
    ) -> None:
        for name, value in (("cache_dir", cache_dir), ("sys_executable", sys_executable)):
            if value is not None:
                warnings.warn(f"{name} has no effect: the mesh's agent keeps indexes and finds their Python "
                              "(docs/python/stores.md)", stacklevel=3)
        found: list[Tool] = []
        for one in tools or ():
            if not isinstance(one, (str, os.PathLike)):
                found.append(tool_of(one))
                continue
            mesh = mesh or mesh_here()
            found += _loaded(mesh, one, _of(env_var, one) or {}, _of(paths, one) or (), _of(include, one) or (),
                             _of(exclude, one) or (), reset_cache)
        self._fill(found, mesh)


@api
class LocalIndex(Index):
    """The index of one folder. It is installed with an environment of its own, with or without create_venv."""

    def __init__(
        self, index_folder: str | os.PathLike[str], create_venv: bool = False, env_var: Mapping[str, str] | None = None,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None, sys_executable: str | None = None,
        *, paths: Sequence[str | os.PathLike[str]] | None = None, mesh: Mesh | None = None,
    ) -> None:
        folder = os.path.abspath(index_folder)
        if not os.path.exists(folder):
            raise ValueError(f"Unable to load index - {folder} does not exist")
        super().__init__([folder], {folder: env_var or {}}, {folder: include or ()}, {folder: exclude or ()},
                         sys_executable=sys_executable, paths={folder: paths or ()}, mesh=mesh)


@api
class RemoteIndex(Index):
    """The index of one repository."""

    def __init__(
        self, index_id: str, env_var: Mapping[str, str] | None = None, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None, cache_dir: str | os.PathLike[str] | None = None,
        reset_cache: bool = False, sys_executable: str | None = None, *,
        paths: Sequence[str | os.PathLike[str]] | None = None, mesh: Mesh | None = None,
    ) -> None:
        super().__init__([index_id], {index_id: env_var or {}}, {index_id: include or ()}, {index_id: exclude or ()},
                         cache_dir, reset_cache, sys_executable, paths={index_id: paths or ()}, mesh=mesh)


def _of(choices: Mapping[Any, Any] | None, one: str | os.PathLike[str]) -> Any:
    """The choice for an entry of tools, given by the entry itself or by its text."""
    choices = choices or {}
    return choices.get(one, choices.get(os.fspath(one)))


def _loaded(
    mesh: Mesh, text: str | os.PathLike[str], variables: Mapping[str, str], paths: Sequence[str | os.PathLike[str]],
    include: Sequence[str], exclude: Sequence[str], again: bool,
) -> list[Tool]:
    try:
        found: dict[str, Tool] = {}
        for one in Source(text).tools(mesh, variables, paths, again):
            tool = MeshTool(one, mesh)
            found[tool.local] = tool
        unknown = [name for name in include if name not in found]
        if unknown:
            raise LookupError(f"it serves no {', '.join(unknown)}, only what it declares: {', '.join(found)}")
        chosen = [found[name] for name in include or found if name not in exclude]
    except (errors.MeshError, OSError, LookupError, ValueError) as failure:
        raise ValueError(_UNABLE.format(shown(os.fspath(text)), failure)) from None
    return chosen


_UNABLE = ('Unable to load index "{}"\nIf this is a local index, make sure it can be found as a directory and contains '
           "a tools.toml file.\n{}")


def _parsed(msg: str) -> tuple[str, Mapping[str, Any] | None]:
    found = llm_parse_json(msg, _CALL)
    if not isinstance(found, dict) or not isinstance(found.get("toolname"), str):
        raise ValueError(f"Failed to parse JSON from text {msg}: it names no toolname")
    name, kwargs = unwrapped(found, beside=())
    if isinstance(kwargs, str):
        kwargs = llm_parse_json(kwargs)
    if not isinstance(kwargs, dict):
        raise ValueError(f"Failed to parse JSON from text {msg}: kwargs is not an object")
    return name, kwargs


def _declaration(key: str, tool: Tool) -> dict[str, Any]:
    return {"id": key, "description": tool.doc, "input_schema": tool.input_schema}


def _last(results: list[Any]) -> Any:
    return results[-1] if results else None

