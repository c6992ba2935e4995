"""Values that no message carries: Mesh and AsyncMesh are equals, and nobody sees it."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import nats
import pytest
from conftest import HERE, Started
from test_client import Async, Sync, until

import toolmesh
from toolmesh import AsyncMesh
from toolmesh._client.call import Pending

ECHO = "large.large.echo"
MB = 1 << 20


@pytest.fixture(scope="module")
def emptied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """An open mesh whose store has nothing of other tests."""
    one = Started(tmp_path_factory.mktemp("emptied"), more=["--open"])
    yield one
    one.kill()


@pytest.fixture(scope="module", params=["rich", "emptied"])
def large(request: pytest.FixtureRequest) -> Started:
    """A mesh with the tools of indexes/large: one whose callers may do nothing else, and an open one."""
    mesh: Started = request.getfixturevalue(request.param)
    mesh.run("install", str(HERE / "indexes" / "large"))
    return mesh


@pytest.fixture(params=[Sync, Async])
def both(request: pytest.FixtureRequest, large: Started) -> Iterator[Any]:
    one = request.param(large.url)
    yield one
    one.close()


def nothing_stays(mesh: Started) -> None:
    """The store of large values gets empty, as far as a caller may look at it."""
    async def left() -> int:
        nc = await nats.connect(mesh.url)
        try:
            info = await nc.jetstream().stream_info("OBJ_MESH_PAYLOADS")
            return info.state.messages
        finally:
            await nc.close()

    if "--open" in mesh.process.args:  # type: ignore[operator]  # a list
        until(lambda: asyncio.run(left()) == 0)


def test_there_and_back(both: Any, large: Started) -> None:
    text = "0123456789abcdef" * (3 * MB // 16)
    assert both.call(ECHO, {"text": text}) == text  # both
    assert both.call(ECHO, {"text": "ab", "times": 2 * MB}) == "ab" * (2 * MB)  # a result
    assert both.call("large.large.size", {"text": text}) == len(text)  # arguments
    assert both.call(ECHO, {"text": text}, timeout=60, rpc_id="rpc_large") == text
    assert both.call(ECHO, {"text": text}, timeout=60, rpc_id="rpc_large") == text
    assert both.call("large.large.nested", {"size": 2 * MB}) == 2 * MB
    nothing_stays(large)


def test_durable_tasks(both: Any, large: Started) -> None:
    text = "0123456789abcdef" * (3 * MB // 16)
    task = both.run("submit", ECHO, {"text": text})
    assert both.on(task, "wait", 60) == text
    assert both.call("large.large.tasked", {"size": 2 * MB}, timeout=60) == 2 * MB
    nothing_stays(large)


def test_failures(both: Any, large: Started) -> None:
    with pytest.raises(toolmesh.InvalidArguments):
        both.call(ECHO, {"text": "x" * (2 * MB), "times": "many"})
    with pytest.raises(toolmesh.ToolNotFound):
        both.call("large.large.nowhere", {"text": "x" * (2 * MB)})
    with pytest.raises(toolmesh.ToolTimeout):
        both.call(ECHO, {"text": "x" * (20 * MB)}, timeout=0.01)
    nothing_stays(large)


def test_missing_payloads_are_refused(large: Started) -> None:
    """A plain client's reference to nothing starts nothing."""
    async def ask(name: str) -> dict[str, Any]:
        nc = await nats.connect(large.url)
        try:
            digest = "SHA-256=" + "A" * 43 + "="
            answer = await nc.request(f"tools.default.{ECHO}", b"", headers={"Mesh-Ref": name, "Mesh-Digest": digest})
            assert answer.headers is not None and answer.headers["Mesh-Started"] == "false"
            told: dict[str, Any] = json.loads(answer.data)["error"]
            return told
        finally:
            await nc.close()

    assert asyncio.run(ask("default.none"))["details"]["reason"] == "payload_gone"
    assert asyncio.run(ask("other.none"))["code"] == "permission_denied"


def test_streams_and_batches(both: Any) -> None:
    text = "x" * (2 * MB)  # items stay as long as their chunks: what counts messages comes before
    assert both.collect("large.large.items", {"text": text, "count": 3}) == [f"{n}{text}" for n in range(3)]
    mixed = [(ECHO, {"text": text}), (ECHO, {"text": "small"}), (ECHO, {"text": "ab", "times": MB})]
    assert both.run("batch", mixed) == [text, "small", "ab" * MB]
    many = [(ECHO, {"text": "y" * (100 << 10)})] * 20
    assert both.run("batch", many) == ["y" * (100 << 10)] * 20


def test_more_than_a_connection_holds(rich: Started) -> None:
    """100 results of 900 KB for a program that does not read for a while: its broker would cut it at 64 MiB."""

    async def main() -> list[int]:
        async with AsyncMesh(rich.url) as mesh:
            calls = [asyncio.ensure_future(mesh.call("rich.rich.echo", {"value": "x" * 900_000})) for _ in range(100)]
            await asyncio.sleep(0.1)
            time.sleep(2)  # what the loop does meanwhile
            return [len(one) for one in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == [900_000] * 100


def test_an_answer_to_a_ping_that_comes_late(rich: Started) -> None:
    """After that nats-py would read nothing more from a connection whose ping was given up."""

    async def main() -> None:
        async with AsyncMesh(rich.url) as mesh:
            assert await mesh.call("rich.rich.echo", {"value": 1}) == 1
            link = mesh._links.here()
            silent = Pending(link, "nowhere")
            silent.sign = silent.asked = link.since = time.monotonic() - 60
            rich.process.send_signal(signal.SIGSTOP)
            try:
                with pytest.raises(toolmesh.Unavailable):
                    while True:  # it may have answered before it stopped
                        silent.quiet = False
                        await link.alive(silent)
            finally:
                rich.process.send_signal(signal.SIGCONT)
            assert await mesh.call("rich.rich.echo", {"value": 2}) == 2

            # One whose connection is lost is not waited for any more.
            rich.process.send_signal(signal.SIGSTOP)
            try:
                silent.sign = silent.asked = link.since = time.monotonic() - 60
                with pytest.raises(toolmesh.Unavailable):
                    while True:
                        silent.quiet = False
                        await link.alive(silent)
                late, nc = link._pinging, link._nc
                assert late is not None and not late.done()
                nc._transport.close()  # type: ignore[union-attr]
            finally:
                rich.process.send_signal(signal.SIGCONT)
            await asyncio.wait_for(asyncio.wait([late]), 20)
            end = time.monotonic() + 20
            while not link.connected:
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
            assert await mesh.call("rich.rich.echo", {"value": 3}) == 3

    asyncio.run(main())
