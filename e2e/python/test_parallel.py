"""Batches whose caller says that their calls are independent, by every road: they meet, where one after the other
would wait for ever; what a tool declares stays."""

import asyncio
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Started
from hosting import name

import toolmesh
import toolmesh.dspy
from toolmesh import AsyncMesh, Host, Mesh, mesh

pytestmark = pytest.mark.usefixtures("binary")

MANY = 4

WORKER = """
from toolmesh import mesh

def together(tools: list[str]) -> list[int]:
    return mesh.batch(tools, parallel=True)

async def atogether(tools: list[str]) -> list[int]:
    return await mesh.abatch(tools, parallel=True)
"""


def test_independent_calls(opened: Started, tmp_path: pathlib.Path) -> None:
    index, workers, meeting = name(), name(), threading.Barrier(MANY)
    host, running, peak = Host(index=index, servers=opened.url), [0], [0]
    (tmp_path / "tools.toml").write_text('[index]\ntools = ["ask.together", "ask.atogether"]\n')
    (tmp_path / "ask.py").write_text(WORKER)
    opened.run("install", str(tmp_path), "--name", workers)

    @host.tool
    def meet() -> int:
        return meeting.wait(60)

    @host.tool(parallel_safe=True)
    def safe() -> int:
        return meeting.wait(60)

    @host.tool(parallel_safe=False)
    def alone() -> int:
        running[0] += 1
        peak[0] = max(peak[0], running[0])
        threading.Event().wait(0.02)
        running[0] -= 1
        return -1

    @host.tool
    def together(tools: list[str]) -> list[int]:
        return mesh.batch(tools, parallel=True)

    @host.tool
    async def atogether(tools: list[str]) -> list[int]:
        return await mesh.abatch(tools, parallel=True)

    async def by_async(calls: list[str]) -> list[int]:
        async with AsyncMesh(opened.url) as other:
            return await other.batch(calls, parallel=True)

    def by_processor(calls: list[str]) -> list[int]:
        manager = toolmesh.dspy.ToolBridgeManager(client)
        manager.create_tools_from_specs([{"tool_id": one, "name": one, "input_schema": {}} for one in set(calls)])
        made = toolmesh.dspy.BatchToolProcessor(manager).process_batch([{"tool_id": one} for one in calls])
        return [one["result"] for one in made]

    with host, Mesh(opened.url) as client:
        roads: dict[str, Callable[[list[str]], Any]] = {
            "Mesh": lambda calls: client.batch(calls, parallel=True),
            "Mesh.abatch": lambda calls: asyncio.run(client.abatch(calls, parallel=True)),
            "AsyncMesh": lambda calls: asyncio.run(by_async(calls)),
            "a host": lambda calls: client.call(f"{index}.together", {"tools": calls}),
            "a host's coroutine": lambda calls: client.call(f"{index}.atogether", {"tools": calls}),
            "a worker": lambda calls: client.call(f"{workers}.ask.together", {"tools": calls}),
            "a worker's coroutine": lambda calls: client.call(f"{workers}.ask.atogether", {"tools": calls}),
            "BatchToolProcessor": by_processor,
        }
        for road, call in roads.items():
            assert sorted(call([f"{index}.meet"] * MANY)) == list(range(MANY)), road
            assert call([f"{index}.alone"] * 3) == [-1] * 3, road
            assert peak == [1], road
        assert sorted(client.batch([f"{index}.safe"] * MANY)) == list(range(MANY)), "a tool that is parallel_safe"
        assert client.tool(f"{index}.alone").annotations["parallel_safe"] is False
