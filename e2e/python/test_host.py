"""The Python host: functions of a program as tools of a real mesh."""

import asyncio
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import nats
import pytest
from conftest import Started
from hosting import SOURCE, children, name, until, works

import toolmesh
from toolmesh import Host, Mesh, mesh
from toolmesh._host.bridge import Bridge

pytestmark = pytest.mark.usefixtures("binary")



class Refused(Exception):
    """Cannot be rebuilt from its arguments."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")


def test_all_kinds_of_functions(opened: Started) -> None:
    index = name()
    host = Host(index=index, servers=opened.url)
    said = threading.Event()

    @host.tool
    def add(a: int, b: int = 2) -> int:
        """Adds.

        Args:
            a: The first one.
        """
        return a + b

    @host.tool(name="later", timeout=5, idempotent=True, parallel_safe=True, resource_key="{a}", metadata={"x": 1})
    async def _later(a: int) -> int:
        await asyncio.sleep(0.01)
        return a + 1

    @host.tool
    def items(count: int) -> Iterator[int]:
        yield from range(count)

    @host.tool(collect=True)
    async def aitems(count: int) -> Any:
        for number in range(count):
            yield number

    @host.tool
    def forgot(a: int) -> Any:
        return _later(a)  # a coroutine that nobody has awaited

    @host.tool
    def refuses() -> None:
        raise Refused(3, why="no")

    @host.tool
    def leaves() -> None:
        sys.exit(3)

    @host.tool
    async def aleaves() -> None:
        sys.exit(3)

    @host.tool
    def bad() -> Any:
        return {"a": [object()]}

    @host.tool
    async def forgets() -> Any:
        return _later(1)

    @host.tool
    def slow() -> None:
        toolmesh.mesh.progress(0.5, "half of it")
        said.wait()

    assert add(1) == 3, "the function stays what it is"
    with host, Mesh(opened.url) as mesh:
        assert mesh.call(f"{index}.add", {"a": 1}) == 3
        tool = mesh.tool(f"{index}.add")
        assert tool.description == "Adds." and tool(5) == 7
        assert tool.input_schema["properties"]["a"] == {"type": "integer", "description": "The first one."}
        assert mesh.tool(f"{index}.later").annotations["resource_key"] == ["{a}"]
        assert mesh.tool(f"{index}.later").metadata == {"x": 1}
        assert mesh.call(f"{index}.later", {"a": 1}) == 2
        assert mesh.collect(f"{index}.items", {"count": 1000}) == list(range(1000))
        assert mesh.collect(f"{index}.aitems", {"count": 1000}) == list(range(1000))
        assert mesh.call(f"{index}.items", {"count": 3}) == 2
        assert mesh.call(f"{index}.aitems", {"count": 3}) == [0, 1, 2]
        assert mesh.call(f"{index}.forgot", {"a": 4}) == 5
        with pytest.raises(toolmesh.ToolExecutionError) as raised:
            mesh.call(f"{index}.refuses")
        assert (raised.value.error_type, raised.value.message) == ("Refused", "3: no")
        assert "test_host.py" in raised.value.stacktrace and "host.py\", line" not in raised.value.stacktrace.replace(
            "test_host.py", "")
        for ends in ("leaves", "aleaves"):
            with pytest.raises(toolmesh.ToolExecutionError, match="SystemExit"):
                mesh.call(f"{index}.{ends}")
        with pytest.raises(toolmesh.ResultNotSerializable) as unserializable:
            mesh.call(f"{index}.bad")
        assert unserializable.value.details["path"] == "result.a[0]"
        assert mesh.call(f"{index}.forgets") == 2
        with pytest.raises(toolmesh.InvalidArguments):
            mesh.call(f"{index}.add", {"a": "x"})
        assert host.node in opened.run("nodes", "--json")
        task = mesh.submit(f"{index}.slow")
        until(lambda: task.show().get("progress") == {"fraction": 0.5, "text": "half of it"})
        said.set()
        task.wait(60)

        @host.tool
        def added() -> str:
            return "later"

        assert until(lambda: works(mesh, f"{index}.added")) == "later"
    with Mesh(opened.url) as mesh:
        until(lambda: not mesh.tools(index))


def test_results_are_kept(opened: Started) -> None:
    index, ran = name(), []
    host = Host(index=index, servers=opened.url)

    @host.tool(cache_ttl=3600, cache_shared=True)
    def kept(a: int, b: int = 2) -> int:
        ran.append(a)
        return len(ran)

    with host, Mesh(opened.url) as mesh:
        assert mesh.call(f"{index}.kept", {"b": 3, "a": 1}) == 1
        assert mesh.call(f"{index}.kept", {"a": 1, "b": 3}) == 1
        assert mesh.session("other").call(f"{index}.kept", {"a": 1, "b": 3}) == 1
        assert mesh.call(f"{index}.kept", {"a": 1, "b": 3}, no_cache=True) == 2
        assert asyncio.run(mesh.acall(f"{index}.kept", {"a": 1, "b": 3}, no_cache=True)) == 3
        assert mesh.call(f"{index}.kept", {"a": 1, "b": 3}) == 3
        assert mesh.tool(f"{index}.kept").annotations["cache_ttl"] == "1h0m0s"

    yields = Host(index=name(), servers=opened.url)

    @yields.tool(cache_ttl="1m")
    def items() -> Iterator[int]:
        yield 1

    with pytest.raises(toolmesh.InvalidRequest, match="cache_ttl"), yields:
        pass


def test_a_plain_client_gets_what_the_protocol_says(opened: Started) -> None:
    index, ran = name(), []
    host = Host(index=index, servers=opened.url)

    @host.tool
    def once(mark: str) -> int:
        ran.append(mark)
        return len(ran)

    @host.tool
    def items(count: int) -> Iterator[int]:
        yield from range(count)

    async def main() -> None:
        nc = await nats.connect(opened.url)
        headers = {"Mesh-Rpc-Id": name()}
        for _ in range(2):
            answer = await nc.request(f"tools.default.{index}.once", b'{"mark":"a"}', headers=headers)
            assert answer.data == b"1", "one name is one call"
        inbox = nc.new_inbox()
        subscription = await nc.subscribe(inbox)
        stream = name()
        await nc.publish(f"tools.default.{index}.items", b'{"count":3}', inbox,
                         {"Mesh-Rpc-Id": stream, "Mesh-Stream": "inbox"})
        got = [await subscription.next_msg(10) for _ in range(5)]
        assert [one.data for one in got][:3] == [b"0", b"1", b"2"]
        assert (got[3].headers or {})["Mesh-Chunk"] == "complete" and got[4].data == b""
        await nc.publish(f"mesh.replay.default.{stream}", b'{"from_seq":2}', inbox)
        got = [await subscription.next_msg(10) for _ in range(4)]
        assert [one.data for one in got][:2] == [b"1", b"2"], "streams can be read again"
        await nc.close()

    with host:
        asyncio.run(main())
    assert ran == ["a"]


def test_calls_run_side_by_side(opened: Started) -> None:
    index, together = name(), threading.Barrier(64)
    host = Host(index=index, servers=opened.url)

    @host.tool
    def meet(number: int) -> int:
        together.wait(20)
        return number

    @host.tool
    async def ameet(number: int) -> int:
        await asyncio.sleep(0.2)
        return number

    with host, Mesh(opened.url) as mesh, concurrent.futures.ThreadPoolExecutor(64) as pool:
        for tool in ("meet", "ameet"):
            running = [pool.submit(mesh.call, f"{index}.{tool}", {"number": number}) for number in range(64)]
            assert [one.result() for one in running] == list(range(64))


def test_short_functions_that_are_slow_once(opened: Started) -> None:
    """Functions that are short share a thread, but none waits for another that is not."""
    index, together = name(), threading.Barrier(16)
    host = Host(index=index, servers=opened.url)

    @host.tool
    def meet(wait: bool) -> bool:
        return not wait or together.wait(20) >= 0

    @host.tool
    def asks(wait: bool) -> Any:
        return mesh.call(f"{index}.meet", {"wait": wait})

    with host, Mesh(opened.url) as client, concurrent.futures.ThreadPoolExecutor(16) as pool:
        for _ in range(200):
            assert client.call(f"{index}.meet", {"wait": False})
        running = [pool.submit(client.call, f"{index}.meet", {"wait": True}) for _ in range(16)]
        assert all(one.result() for one in running)
        for _ in range(50):
            assert client.call(f"{index}.meet", {"wait": False})
        running = [pool.submit(client.call, f"{index}.asks", {"wait": True}) for _ in range(16)]
        assert all(one.result() for one in running)


def test_values_above_the_message_limit(opened: Started) -> None:
    index = name()
    host = Host(index=index, servers=opened.url)

    @host.tool
    def long(size: int) -> str:
        return "x" * size

    @host.tool
    async def along(size: int) -> str:
        return "x" * size

    @host.tool
    def items(size: int) -> Iterator[str]:
        yield ""
        yield "x" * size

    @host.tool
    def asks(size: int) -> str:
        with pytest.raises(toolmesh.PayloadTooLarge) as raised:
            mesh.call(f"{index}.long", {"size": "x" * size})
        assert raised.value.started is False
        return "refused"

    with host, Mesh(opened.url) as client:
        wide = 2 << 20  # more than a message: by reference
        for tool in ("long", "along"):
            assert client.call(f"{index}.{tool}", {"size": wide}) == "x" * wide
        assert client.collect(f"{index}.items", {"size": wide}) == ["", "x" * wide]
        for size in (65 << 20,):  # more than a frame
            for tool in ("long", "along"):
                with pytest.raises(toolmesh.PayloadTooLarge) as raised:
                    client.call(f"{index}.{tool}", {"size": size})
                assert raised.value.started is True and raised.value.details["size"] == size + 2
            stream = client.stream(f"{index}.items", {"size": size})
            assert next(stream) == ""
            with pytest.raises(toolmesh.PayloadTooLarge):
                next(stream)
            assert client.call(f"{index}.asks", {"size": size}) == "refused"
        assert client.call(f"{index}.long", {"size": 3}) == "xxx"


def test_many_calls_are_cancelled(opened: Started) -> None:
    """Wherever a thread was interrupted, what comes later is answered."""
    index = name()
    host = Host(index=index, servers=opened.url)

    @host.tool
    def add(a: int) -> int:
        return a + 1

    @host.tool
    def asks() -> None:
        while True:
            mesh.call(f"{index}.add", {"a": 1})

    @host.tool
    def items() -> Iterator[int]:
        yield from range(10**9)

    with host, Mesh(opened.url) as client, concurrent.futures.ThreadPoolExecutor(8) as pool:
        def gives_up(number: int) -> None:
            # The nested call has the same time, and may be first to tell that it is over.
            with pytest.raises((toolmesh.ToolTimeout, toolmesh.CallCancelled, toolmesh.ToolExecutionError),
                               match=r"deadline_exceeded|cancelled"):
                client.call(f"{index}.{'asks' if number % 2 else 'items'}", timeout=0.05 + number % 7 / 100)

        for one in [pool.submit(gives_up, number) for number in range(60)]:
            one.result()
        running = [pool.submit(client.call, f"{index}.add", {"a": number}) for number in range(100)]
        assert [one.result() for one in running] == list(range(1, 101))


def test_cancels_and_deadlines_reach_the_function(opened: Started) -> None:
    index, ended, began = name(), [], []
    host = Host(index=index, servers=opened.url)

    @host.tool
    def busy() -> None:
        began.append("busy")
        try:
            while True:
                time.sleep(0.005)
        finally:
            ended.append("busy")

    @host.tool
    async def waits() -> None:
        began.append("waits")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("waits")

    @host.tool
    def wrapped() -> Any:
        async def waits() -> None:
            began.append("wrapped")
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("wrapped")

        return waits()  # as a decorator does

    @host.tool
    def items() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            ended.append("items")

    @host.tool
    async def aitems() -> Any:
        try:
            for number in range(10**9):
                yield number
        finally:
            ended.append("aitems")

    with host, Mesh(opened.url) as mesh:
        for tool in ("busy", "waits", "wrapped"):
            began.clear()
            while not began:  # on a busy machine the time may be up before
                with pytest.raises(toolmesh.ToolTimeout):
                    mesh.call(f"{index}.{tool}", timeout=0.3)
            until(lambda tool=tool: ended and ended.pop() == tool)  # type: ignore[misc]
            call = name()
            began.clear()
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                running = pool.submit(mesh.call, f"{index}.{tool}", rpc_id=call)
                until(lambda: began)
                assert mesh.cancel(call)
                with pytest.raises(toolmesh.CallCancelled):
                    running.result()
            until(lambda tool=tool: ended and ended.pop() == tool)  # type: ignore[misc]
        for tool in ("items", "aitems"):
            stream = mesh.stream(f"{index}.{tool}")
            assert [next(stream) for _ in range(3)] == [0, 1, 2]
            time.sleep(0.3)  # it would have counted to thousands: credit holds it back
            stream.close()
            until(lambda tool=tool: ended and ended.pop() == tool)  # type: ignore[misc]


def test_nested_calls(opened: Started) -> None:
    index = name()
    host = Host(index=index, servers=opened.url)

    @host.tool
    def deeper(depth: int) -> int:
        return mesh.call(f"{index}.deeper", {"depth": depth - 1}) + 1 if depth else 0

    @host.tool
    async def adeeper(depth: int) -> int:
        return await mesh.acall(f"{index}.adeeper", {"depth": depth - 1}) + 1 if depth else 0

    @host.tool
    def items(count: int) -> Iterator[int]:
        yield from range(count)

    @host.tool
    async def relays(count: int) -> Any:
        async for item in mesh.astream(f"{index}.items", {"count": count}):
            yield [item, await mesh.acall(f"{index}.adeeper", {"depth": 0})]

    @host.tool
    def takes(count: int) -> list[int]:
        found = []
        for item in mesh.stream(f"{index}.items", {"count": count}):
            found.append(item)
            if len(found) == 3:
                break
        return found

    @host.tool
    def batched(count: int) -> list[Any]:
        calls = [(f"{index}.deeper", {"depth": number % 2}) for number in range(count)]
        return [*mesh.batch(calls), str(mesh.batch([f"{index}.deeper"], return_exceptions=True)[0].code)]

    @host.tool
    async def abatched(count: int) -> list[Any]:
        calls = [(f"{index}.adeeper", {"depth": number % 2}, 30) for number in range(count)]
        return await mesh.abatch(calls, timeout=60)

    @host.tool
    def hands(value: int) -> list[Any]:
        task = mesh.submit(f"{index}.deeper", {"depth": 0}, attempts=1)
        return [task.wait(60), mesh.task(task.id).state(), value]

    @host.tool
    async def ahands(value: int) -> list[Any]:
        task = await mesh.asubmit(f"{index}.deeper", {"depth": 0})
        return [await task.wait(60), await task.state(), value]

    @host.tool(timeout=60)
    def waits() -> Any:
        return mesh.call(f"{index}.sleeps")

    @host.tool(timeout=60)
    async def sleeps() -> None:
        await asyncio.sleep(60)

    with host, Mesh(opened.url) as client:
        assert client.call(f"{index}.deeper", {"depth": 3}) == 3
        assert client.call(f"{index}.adeeper", {"depth": 3}) == 3
        with pytest.raises(toolmesh.ToolExecutionError, match="nested 9 calls deep"):
            client.call(f"{index}.deeper", {"depth": 20})
        assert client.call(f"{index}.batched", {"count": 40}) == [*[0, 1] * 20, "invalid_arguments"]
        assert client.call(f"{index}.abatched", {"count": 40}) == [0, 1] * 20
        assert client.call(f"{index}.hands", {"value": 1}) == [0, "succeeded", 1]
        assert client.call(f"{index}.ahands", {"value": 2}) == [0, "succeeded", 2]
        assert client.collect(f"{index}.relays", {"count": 300}) == [[number, 0] for number in range(300)]
        assert client.call(f"{index}.takes", {"count": 10**9}) == [0, 1, 2]
        began = time.monotonic()
        with pytest.raises(toolmesh.ToolTimeout):
            client.call(f"{index}.waits", timeout=0.5)
        assert time.monotonic() - began < 20


def test_streams_that_another_loop_gives_up(opened: Started) -> None:
    """Whatever comes for them meanwhile, the bridge and its other calls go on."""
    index = name()
    host = Host(index=index, servers=opened.url)

    @host.tool
    def items() -> Iterator[int]:
        yield from range(10**9)

    @host.tool(timeout=60)
    def leaves(times: int) -> int:
        async def all_of_them() -> None:
            async for _ in mesh.astream(f"{index}.items"):
                pass

        async def main() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(all_of_them(), 0.02)

        for _ in range(times):
            asyncio.run(main())
        return times

    with host, Mesh(opened.url) as client, concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(client.call, f"{index}.leaves", {"times": 40}) for _ in range(4)]
        assert [one.result() for one in running] == [40] * 4
        assert client.call(f"{index}.leaves", {"times": 1}) == 1


def test_no_coroutine_is_made_on_a_thread_that_a_cancel_interrupts(
    opened: Started, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would never be awaited, which Python says on stderr."""
    made, written, index = set(), Bridge.written, name()

    def noted(bridge: Bridge) -> Any:
        made.add(threading.current_thread().name)
        return written(bridge)

    monkeypatch.setattr(Bridge, "written", noted)
    host = Host(index=index, servers=opened.url)

    @host.tool
    def items() -> Iterator[int]:
        yield from range(1000)

    with host, Mesh(opened.url) as client:
        assert client.collect(f"{index}.items") == list(range(1000))
    assert made == {"toolmesh host"}


def test_tools_of_a_session(opened: Started) -> None:
    opened.run("session", "create", "party")
    host, other = Host(session="party", servers=opened.url), Host(session="elsewhere", servers=opened.url)

    @host.tool
    def mine() -> str:
        return "party's"

    @host.tool
    def what(tool: str) -> str:
        try:
            return str(mesh.describe(tool)["id"])
        except toolmesh.ToolNotFound as failure:
            return f"{failure.code} {failure.details.get('nearest')}"

    @host.tool
    async def awhat(tool: str) -> list[str]:
        return list((await mesh.adescribe(tool))["input_schema"]["properties"])

    @other.tool
    def theirs() -> None:
        pass

    with host, other, Mesh(opened.url) as client:
        assert client.session("party").call("mine") == "party's"
        party = client.session("party")
        assert [party.call("what", {"tool": one}) for one in ("mine", "min")] == ["mine", "tool_not_found ['mine']"]
        assert party.call("awhat", {"tool": "what"}) == ["tool"]
        assert party.call("what", {"tool": "theirs"}) == "tool_not_found []", "of another session"
        with pytest.raises(toolmesh.ToolNotFound):
            client.call("mine")
        opened.run("session", "end", "party")
        until(lambda: works(client.session("party"), "mine") is None)


def test_a_worker_is_told_of_its_own_session_alone(rich: Started) -> None:
    host = Host(session="elsewhere", servers=rich.url, nkey=str(rich.folder / "data" / "keys" / "node.nk"))

    @host.tool
    def theirs() -> None:
        """Of that session."""

    def described(tool: str, session: str) -> str:
        return str(json.loads(rich.run("call", "rich.rich.described", f"tool={tool}", "--session", session)))

    with host:
        until(lambda: described("theirs", "elsewhere") == "Of that session.")
        assert described("theirs", "default") == "ToolNotFound []"
        assert described("rich.rich.size", "elsewhere") == "The length of a text."
        assert described("rich.rich.siz", "default").startswith("ToolNotFound ['rich.rich.size'")


def test_invalid_tools_are_refused() -> None:
    host = Host(index="x")
    wrong: Any
    for wrong in (3, "add"):
        with pytest.raises(TypeError):
            host.tool(wrong)
    host.tool(len, name="length")
    for wrong in ({"name": "length"}, {"name": "a.b"}, {"name": ""}, {"name": "x", "time_out": 3}, {"name": "\ud800"}):
        with pytest.raises(ValueError):
            host.tool(max, **wrong)
    with pytest.raises(ValueError, match="no tool"):
        Host(index="x").serve()
    with pytest.raises(ValueError, match="slots"):
        Host(index="x", slots=0)


def test_nowhere_to_serve(opened: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(index="x", servers="nats://127.0.0.1:1")
    host.tool(len, name="length")
    with pytest.raises(toolmesh.Unavailable, match="mesh up"):
        host.serve()
    with pytest.raises(toolmesh.Unavailable), host:
        pass
    monkeypatch.setenv("TOOLMESH_BINARY", "/nowhere/mesh")
    with pytest.raises(toolmesh.Unavailable, match="nowhere"):
        host.serve()
    index = name()
    twice = Host(index=index, servers=opened.url)
    twice.tool(len, name="length")
    monkeypatch.undo()
    os.environ["TOOLMESH_BINARY"] = os.environ["MESH_E2E_BIN"]
    with twice, pytest.raises(RuntimeError, match="already"):
        twice.serve()


def test_the_tools_of_a_module(opened: Started) -> None:
    """What mesh.tool has decorated is served once more, with what was decorated since."""
    code = f"""
import threading, time
import toolmesh
from toolmesh import mesh

@mesh.tool
def first() -> int:
    return 1

def serves(index, tools):
    serving = threading.Thread(target=mesh.serve, kwargs=dict(index=index, servers={opened.url!r}))
    serving.start()
    with toolmesh.Mesh({opened.url!r}) as client:
        while True:
            try:
                assert [client.call(index + "." + tool) for tool in tools] == [1] * len(tools)
                break
            except toolmesh.MeshError:
                time.sleep(0.05)
    try:
        mesh.serve(index=index)
    except RuntimeError as failure:
        print(failure)
    mesh.stop()
    serving.join()

serves("{name()}", ["first"])

@mesh.tool
def second() -> int:
    return 1

serves("{name()}", ["first", "second"])
try:
    mesh.tool(second)
except ValueError as failure:
    print(failure)
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": SOURCE})
    said = done.stdout.splitlines()
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert ["serves already" in one for one in said] == [True, True, False] and "already" in said[2]


def test_a_start_that_is_cancelled(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary, before = tmp_path / "mesh", children(os.getpid())
    binary.write_text("#!/bin/sh\nexec sleep 60\n")
    binary.chmod(0o755)
    monkeypatch.setenv("TOOLMESH_BINARY", str(binary))

    async def main() -> None:
        host = Host(index="x")
        host.tool(len, name="length")
        serving = asyncio.create_task(host.aserve())
        while children(os.getpid()) == before:
            await asyncio.sleep(0.01)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(main())
    assert children(os.getpid()) == before


def test_a_program_with_a_loop_of_its_own(opened: Started) -> None:
    index = name()

    async def main() -> None:
        host = Host(index=index, servers=opened.url)

        @host.tool
        async def who() -> str:
            return threading.current_thread().name

        serving = asyncio.create_task(host.aserve())
        async with toolmesh.AsyncMesh(opened.url) as client:
            while True:
                try:
                    assert await client.call(f"{index}.who") == threading.current_thread().name
                    break
                except toolmesh.MeshError:
                    await asyncio.sleep(0.05)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(main())
    until(lambda: index not in opened.run("ls", "--json"))
