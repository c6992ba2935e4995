"""The Python client where there are several nodes, or one that is full: Mesh and AsyncMesh side by side."""

import asyncio
import concurrent.futures
import json
import os
import pathlib
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import HERE, Started, warm
from hosting import name, until

import toolmesh
from toolmesh import AsyncMesh, Host, Mesh


class Pair:
    """A mesh, and the process of a second node of it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.mesh = Started(folder)
        self.agent: subprocess.Popen[bytes] | None = None

    def second(self) -> dict[str, Any]:
        """What the mesh says of the second node."""
        nodes = json.loads(self.mesh.run("nodes", "--json"))["nodes"]
        return next((node for node in nodes if node["id"] == "second"), {})

    def both_serve(self, tool: str) -> None:
        """Starts the second node if it does not run, and waits until it serves a tool."""
        folder = self.mesh.folder
        if self.agent is None or self.agent.poll() is not None:
            warm(folder / "agent")
            with (folder / "agent.log").open("ab") as log:
                self.agent = subprocess.Popen(
                    [os.environ["MESH_E2E_AGENT"], "-s", self.mesh.url, "--data-dir", str(folder / "agent"), "--node",
                     "second", "--nkey", str(folder / "data" / "keys" / "node.nk")],
                    env=self.mesh.environment, stderr=log)
        until(lambda: "second" in json.loads(self.mesh.run("info", tool, "--json")).get("nodes", ()))

    def kill(self) -> None:
        """Ends the second node at once."""
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    one = Pair(tmp_path_factory.mktemp("pair"))
    yield one
    one.kill()
    one.mesh.kill()


def index(pair: Pair, folder: pathlib.Path, called: str, source: str, more: str) -> None:
    """Installs an index of one module."""
    (folder / f"{called}.py").write_text(source)
    tools = ", ".join(f'"{called}.{one}"' for one in [line[4:].partition("(")[0] for line in source.splitlines()
                                                   if line.startswith("def ")])
    (folder / "tools.toml").write_text(f"[index]\ntools = [{tools}]\n{more}\n")
    pair.mesh.run("install", f"--name={called}", str(folder))


def together(url: str, count: int, tool: str, args: dict[str, Any], then: Callable[[], None] = lambda: None,
             timeout: float | None = None) -> list[Any]:
    """What calls of a tool end with, one half by Mesh, one half by AsyncMesh, all at once."""
    async def gather() -> list[Any]:
        async with AsyncMesh(url) as mesh:
            calls = (mesh.call(tool, args, timeout=timeout) for _ in range(count // 2))
            return list(await asyncio.gather(*calls, return_exceptions=True))

    with Mesh(url) as mesh, concurrent.futures.ThreadPoolExecutor(count) as pool:
        running = [pool.submit(mesh.call, tool, args, timeout=timeout) for _ in range(count // 2)]
        others = pool.submit(asyncio.run, gather())
        then()
        ends = [one.exception(60) or one.result() for one in running]
        return ends + others.result(60)


def test_a_session_has_its_globals_on_two_nodes(pair: Pair, tmp_path: pathlib.Path) -> None:
    index(pair, tmp_path, "keep", "kept = {}\n\n\ndef put(value: int) -> None:\n    kept['value'] = value\n\n\n"
          "def get() -> int:\n    return kept['value']\n\n\ndef items():\n    yield kept['value']\n",
          'isolation = "session"')
    pair.both_serve("keep.keep.put")

    async def gather() -> list[Any]:
        async with AsyncMesh(pair.mesh.url) as mesh:
            await mesh.call("keep.keep.put", {"value": 8})
            found = [await mesh.call("keep.keep.get") for _ in range(20)]
            return found + [item async for item in mesh.stream("keep.keep.items")]

    with Mesh(pair.mesh.url) as mesh:
        mesh.call("keep.keep.put", {"value": 7})
        found = [mesh.call("keep.keep.get") for _ in range(20)] + list(mesh.stream("keep.keep.items"))
    assert found == [7] * 21 and asyncio.run(gather()) == [8] * 21


def busy(pair: Pair, keepalives: float = 0) -> None:
    """Waits until the second node has calls, and for as long as their first keepalives take, and kills it."""
    until(lambda: pair.second().get("in_flight", 0) > 1)
    time.sleep(keepalives)
    pair.kill()


def test_the_death_of_a_node_is_reported(pair: Pair) -> None:
    pair.mesh.run("install", str(HERE / "indexes" / "rich"))
    pair.both_serve("rich.rich.ended")
    ends = together(pair.mesh.url, 12, "rich.rich.ended", {"seconds": 6, "mark": "/tmp/never"}, lambda: busy(pair, 1.5))
    lost = [one for one in ends if isinstance(one, BaseException)]
    assert lost and all(isinstance(one, toolmesh.NodeLost) and one.details == {"node": "second"} for one in lost), ends


def test_calls_of_an_idempotent_tool_survive_their_node(pair: Pair, tmp_path: pathlib.Path) -> None:
    index(pair, tmp_path, "twice", "import time\n\n\ndef rest(seconds: float) -> str:\n    time.sleep(seconds)\n"
          "    return 'rested'\n", "idempotent = true")
    pair.both_serve("twice.twice.rest")
    assert together(pair.mesh.url, 12, "twice.twice.rest", {"seconds": 4}, lambda: busy(pair)) == ["rested"] * 12


def test_a_call_that_waited_at_a_router_runs_once(pair: Pair, tmp_path: pathlib.Path) -> None:
    """A router holds a call while no node serves its tool, and passes it on. It and the node die as soon as the tool
    runs: whether the tool ran is not known to the caller, and the call is not sent again."""
    router = pathlib.Path(os.environ["MESH_E2E_BIN"]).with_name("mesh-router")
    third = [os.environ["MESH_E2E_AGENT"], "--data-dir", str(pair.mesh.folder / "third"), "--node", "third",
             "--labels", "kind=third"]
    running: list[subprocess.Popen[bytes]] = []
    calls: list[concurrent.futures.Future[Any]] = []

    def start(*command: str) -> None:
        key = str(pair.mesh.folder / "data" / "keys" / "node.nk")
        with (pair.mesh.folder / "third.log").open("ab") as log:
            running.append(subprocess.Popen([*command, "-s", pair.mesh.url, "--nkey", key],
                                            env=pair.mesh.environment, stdout=log, stderr=log))

    def kill() -> None:
        for one in running:
            one.kill()
        for one in running:
            one.wait()
        running.clear()

    def served(by: list[str]) -> bool:
        return (json.loads(pair.mesh.run("info", "waits.waits.begin", "--json")).get("nodes") or []) == by

    def waits() -> bool:
        calls.append(pool.submit(mesh.call, "waits.waits.begin", {"mark": str(mark)}, timeout=90))
        done = concurrent.futures.wait([calls[-1]], timeout=1).done
        assert not done or isinstance(calls[-1].exception(), toolmesh.Unavailable), calls[-1]
        return not done

    mark = pathlib.Path(f"/tmp/mesh-e2e-{uuid.uuid4().hex}")  # which tools may write
    (tmp_path / "waits.py").write_text("import time\n\n\ndef begin(mark: str) -> None:\n"
                                       "    with open(mark, 'a') as file:\n        file.write('x')\n"
                                       "    time.sleep(60)\n")
    (tmp_path / "tools.toml").write_text('[index]\ntools = ["waits.begin"]\n')
    try:
        start(*third)
        until(lambda: any(one["id"] == "third" for one in json.loads(pair.mesh.run("nodes", "--json"))["nodes"]))
        pair.mesh.run("install", "--name=waits", "--on=kind=third", str(tmp_path))
        until(lambda: served(["third"]))
        kill()
        start(str(router))
        until(lambda: served([]))
        with Mesh(pair.mesh.url) as mesh, concurrent.futures.ThreadPoolExecutor(1) as pool:
            until(waits)
            start(*third)
            until(mark.exists)
            kill()
            lost = calls[-1].exception(60)
        assert isinstance(lost, toolmesh.NodeLost) and lost.started is None, lost
        start(*third)
        until(lambda: served(["third"]))
        assert mark.read_text() == "x"
    finally:
        kill()
        mark.unlink(missing_ok=True)


@pytest.mark.usefixtures("binary")
def test_busy_is_waited_for(opened: Started) -> None:
    host = Host(index=name(), servers=opened.url, slots=1)

    @host.tool
    def rest() -> str:
        time.sleep(0.5)
        return "rested"

    with host:
        assert together(opened.url, 6, f"{host._index}.rest", {}, timeout=60) == ["rested"] * 6
