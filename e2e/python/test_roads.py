"""A tool's parameter may have any name: each road to a tool takes it, whatever its own parameters are called."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from conftest import Started
from hosting import name

import toolmesh.dspy
from toolmesh import AsyncMesh, Host, Mesh
from toolmesh.stores import Index

pytestmark = pytest.mark.usefixtures("binary")

NAMES = [
    "proxy", "self", "timeout", "session", "args", "kwargs", "tool", "mesh", "name", "call", "function", "instance",
    "config", "callbacks", "run_manager", "context", "cls", "arguments", "value", "further", "returns", "idle",
    "rpc_id", "index", "fn", "tool_id", "positional", "keywords",
]

SOURCE = f"""
from toolmesh import mesh

def given({', '.join(f'{one}: str = ""' for one in NAMES)}) -> dict[str, str]:
    return {{key: value for key, value in locals().items() if value}}

def items({', '.join(f'{one}: str = ""' for one in NAMES)}):
    yield {{key: value for key, value in locals().items() if value}}

def rest(first: int, *values: int) -> list[int]:
    return [first, *values]
"""
ASKS = """
def asks(tool: str, given: dict) -> dict:
    return mesh.call(tool, given)

async def aasks(tool: str, given: dict) -> dict:
    return await mesh.acall(tool, given)

def batches(tool: str, given: dict) -> dict:
    return mesh.batch([(tool, given)])[0]

def streams(tool: str, given: dict) -> dict:
    return list(mesh.stream(tool.replace("given", "items"), given))[0]
"""


class Place(NamedTuple):
    """Where the tools are."""

    client: Mesh
    url: str
    tool: str  # of one that returns its arguments, by a host; items yields them
    asks: str  # an index whose tools call another one, in a worker


@pytest.fixture(scope="module")
def place(opened: Started, binary: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, index, workers = tmp_path_factory.mktemp("roads"), name(), name()
    tools = ["given", "items", "asks", "aasks", "batches", "streams", "rest"]
    (folder / "tools.toml").write_text(f"[index]\ntools = {json.dumps([f'roads.{one}' for one in tools])}\n")
    (folder / "roads.py").write_text(SOURCE + ASKS)
    opened.run("install", str(folder), "--name", workers)
    made: dict[str, Any] = {}
    exec(SOURCE + ASKS, made)
    host = Host(index=index, servers=opened.url)
    for one in tools:
        host.tool(made[one])
    with host, Mesh(opened.url) as client:
        yield Place(client, opened.url, f"{index}.given", workers)


def first(items: Any) -> Any:
    (one,) = list(items)
    return one


async def afirst(items: Any) -> Any:
    (one,) = [one async for one in items]
    return one


Given = dict[str, Any]
ROADS: dict[str, Callable[[Place, Given], Any]] = {
    "Mesh.call": lambda p, given: p.client.call(p.tool, given),
    "Mesh.acall": lambda p, given: asyncio.run(p.client.acall(p.tool, given)),
    "Mesh.stream": lambda p, given: first(p.client.stream(streams(p), given)),
    "Mesh.astream": lambda p, given: asyncio.run(afirst(p.client.astream(streams(p), given))),
    "Mesh.collect": lambda p, given: first(p.client.collect(streams(p), given)),
    "Mesh.batch": lambda p, given: first(p.client.batch([(p.tool, given)])),
    "Mesh.abatch": lambda p, given: first(asyncio.run(p.client.abatch([(p.tool, given)]))),
    "Mesh.submit": lambda p, given: p.client.submit(p.tool, given).wait(60),
    "Mesh.execute": lambda p, given: p.client.execute({"name": p.tool, "arguments": json.dumps(given)}),
    "AsyncMesh.call": lambda p, given: by_async(p, lambda mesh: mesh.call(p.tool, given)),
    "AsyncMesh.stream": lambda p, given: by_async(p, lambda mesh: afirst(mesh.stream(streams(p), given))),
    "RemoteTool": lambda p, given: p.client.tool(p.tool)(**given),
    "RemoteTool.acall": lambda p, given: asyncio.run(p.client.tool(p.tool).acall(**given)),
    "RemoteTool.stream": lambda p, given: first(p.client.tool(streams(p)).stream(**given)),
    "RemoteTool.astream": lambda p, given: asyncio.run(afirst(p.client.tool(streams(p)).astream(**given))),
    "AsyncRemoteTool": lambda p, given: by_async(p, lambda mesh: by_tool(mesh, p.tool, "acall", given)),
    "AsyncRemoteTool.stream": lambda p, given: by_async(p, lambda mesh: by_tool(mesh, streams(p), "stream", given)),
    "RPCProxyTool": lambda p, given: proxy(p)(**given),
    "RPCProxyTool.acall": lambda p, given: asyncio.run(proxy(p).acall(**given)),
    "StreamingRPCProxyTool": lambda p, given: first(streaming(p)(**given)),
    "StreamingRPCProxyTool.acall": lambda p, given: asyncio.run(afirst(streaming(p).acall(**given))),
    "CachedRPCProxyTool": lambda p, given: cached(p)(**given),
    "CachedRPCProxyTool.acall": lambda p, given: asyncio.run(cached(p).acall(**given)),
    "BatchToolProcessor of one": lambda p, given: by_processor(p, given, 1),
    "BatchToolProcessor of two": lambda p, given: by_processor(p, given, 2),
    "a tool of a worker": lambda p, given: p.client.call(f"{p.asks}.roads.given", given),
}
for how in ("asks", "aasks", "batches", "streams"):
    ROADS[f"{how} of a host"] = lambda p, given, how=how: nested(p, p.tool.replace("given", how), given)  # type: ignore[misc]
    ROADS[f"{how} of a worker"] = lambda p, given, how=how: nested(p, f"{p.asks}.roads.{how}", given)  # type: ignore[misc]


def streams(p: Place) -> str:
    return p.tool.replace("given", "items")


def proxy(p: Place) -> Any:
    return toolmesh.dspy.RPCProxyTool(p.tool, mesh=p.client)


def cached(p: Place) -> Any:
    return toolmesh.dspy.CachedRPCProxyTool(p.tool, mesh=p.client)


def streaming(p: Place) -> Any:
    return toolmesh.dspy.StreamingRPCProxyTool(streams(p), mesh=p.client)


def nested(p: Place, tool: str, given: Given) -> Any:
    return p.client.call(tool, {"tool": p.tool, "given": given})


def by_async(p: Place, work: Callable[[AsyncMesh], Any]) -> Any:
    async def main() -> Any:
        async with AsyncMesh(p.url) as mesh:
            return await work(mesh)

    return asyncio.run(main())


async def by_tool(mesh: AsyncMesh, tool: str, how: str, given: Given) -> Any:
    made = getattr(await mesh.tool(tool), how)(**given)
    return await (made if how == "acall" else afirst(made))


def by_processor(p: Place, given: Given, count: int) -> Any:
    manager = toolmesh.dspy.ToolBridgeManager(p.client)
    manager.create_tools_from_specs([{"tool_id": p.tool, "input_schema": {}}])
    made = toolmesh.dspy.BatchToolProcessor(manager).process_batch([{"tool_id": p.tool, "kwargs": given}] * count)
    assert len(made) == count
    return made[-1]["result"]


@pytest.mark.parametrize("road", ROADS)
def test_any_name(place: Place, road: str) -> None:
    for one in NAMES:
        assert ROADS[road](place, {one: "x"}) == {one: "x"}, one
    everything = dict.fromkeys(NAMES, "x")
    assert ROADS[road](place, everything) == everything


def test_any_name_by_stores(place: Place) -> None:
    made: dict[str, Any] = {}
    exec(SOURCE, made)
    index = Index([made["given"]])
    for one in NAMES:
        for found in (index.execute("given", {one: "x"}), index.tools[0](**{one: "x"})):
            assert found == {one: "x"}, one


@pytest.mark.parametrize("hosted", [True, False])
def test_further_arguments_by_position(place: Place, hosted: bool) -> None:
    """A tool with *values takes them by position and by name, of a host and of an installed index alike."""
    tool = place.client.tool(place.tool.replace("given", "rest") if hosted else f"{place.asks}.roads.rest")
    assert tool(1, 2, 3) == tool(1, values=[2, 3]) == [1, 2, 3]
