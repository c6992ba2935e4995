"""The Python host: functions of a program as tools of a real mesh."""

import asyncio
import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import nats
import pytest
from conftest import HERE, Started

import toolmesh
from toolmesh import Host, Mesh, mesh

SOURCE = str(HERE.parent.parent / "python" / "src")


@pytest.fixture(scope="module", autouse=True)
def binary() -> Iterator[None]:
    os.environ["TOOLMESH_BINARY"] = os.environ["MESH_E2E_BIN"]
    yield
    del os.environ["TOOLMESH_BINARY"]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A mesh that anybody may serve in."""
    one = Started(tmp_path_factory.mktemp("open"), more=["--open"])
    yield one
    one.stop()


def until(happened: Callable[[], Any]) -> Any:
    end = time.monotonic() + 30
    while True:
        got = happened()
        if got:
            return got
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def name() -> str:
    return f"h{uuid.uuid4().hex[:8]}"


class Refused(Exception):
    """Cannot be rebuilt from its arguments."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")


def test_all_kinds_of_functions(opened: Started) -> None:
    index = name()
    host = Host(index=index, servers=opened.url)

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
    def bad() -> Any:
        return {"a": [object()]}

    @host.tool
    async def forgets() -> Any:
        return _later(1)

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
        with pytest.raises(toolmesh.ToolExecutionError, match="SystemExit"):
            mesh.call(f"{index}.leaves")
        with pytest.raises(toolmesh.ResultNotSerializable) as unserializable:
            mesh.call(f"{index}.bad")
        assert unserializable.value.details["path"] == "result.a[0]"
        assert mesh.call(f"{index}.forgets") == 2
        with pytest.raises(toolmesh.InvalidArguments):
            mesh.call(f"{index}.add", {"a": "x"})
        assert host.node in opened.run("nodes", "--json")

        @host.tool
        def added() -> str:
            return "later"

        assert until(lambda: _works(mesh, f"{index}.added")) == "later"
    with Mesh(opened.url) as mesh:
        until(lambda: not mesh.tools(index))


def _works(mesh: Mesh, tool: str) -> Any:
    try:
        return mesh.call(tool)
    except toolmesh.MeshError:
        return None


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


def test_short_functions_that_take_long_for_once(opened: Started) -> None:
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


def test_what_no_message_carries(opened: Started) -> None:
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
        for size in (2 << 20, 65 << 20):  # more than a message, more than a frame
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
            with pytest.raises((toolmesh.ToolTimeout, toolmesh.CallCancelled)):
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
        for tool in ("busy", "waits"):
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
        assert client.collect(f"{index}.relays", {"count": 300}) == [[number, 0] for number in range(300)]
        assert client.call(f"{index}.takes", {"count": 10**9}) == [0, 1, 2]
        began = time.monotonic()
        with pytest.raises(toolmesh.ToolTimeout):
            client.call(f"{index}.waits", timeout=0.5)
        assert time.monotonic() - began < 20


def test_tools_of_a_session(opened: Started) -> None:
    opened.run("session", "create", "party")
    host = Host(session="party", servers=opened.url)

    @host.tool
    def mine() -> str:
        return "party's"

    with host, Mesh(opened.url) as client:
        assert client.session("party").call("mine") == "party's"
        with pytest.raises(toolmesh.ToolNotFound):
            client.call("mine")
        opened.run("session", "end", "party")
        until(lambda: _works(client.session("party"), "mine") is None)


PROGRAM = """
import sys, time, threading
from toolmesh import mesh

@mesh.tool
def add(a: int) -> int:
    return a + 1

@mesh.tool
def slow(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"

{more}
mesh.serve(index=sys.argv[2], servers=sys.argv[1], node=sys.argv[2])
print("served")
"""


def program(url: str, index: str, more: str = "", *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-X", "dev", *options, "-c", PROGRAM.format(more=more), url, index],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "PYTHONPATH": SOURCE})


def children(pid: int) -> list[str]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            if path.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(path.parent.name)
        except OSError:
            pass
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_drains(opened: Started, number: int) -> None:
    index = name()
    running = program(opened.url, index)
    with Mesh(opened.url) as client, concurrent.futures.ThreadPoolExecutor(40) as pool:
        until(lambda: _served(client, index))
        slow = [pool.submit(client.call, f"{index}.slow", {"seconds": 1}) for _ in range(8)]
        over = threading.Event()

        def hammer() -> int:
            count = 0
            while not over.is_set():
                try:
                    assert client.call(f"{index}.add", {"a": 1}) == 2
                    count += 1
                except toolmesh.MeshError as failure:
                    assert failure.started is False, failure
                    return count
            return count

        hammers = [pool.submit(hammer) for _ in range(8)]
        time.sleep(0.5)
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
        over.set()
        assert (running.returncode, out, err) == (0, "served\n", "")
        assert [one.result() for one in slow] == ["slept"] * 8, "what ran was answered"
        assert all(one.result() > 0 for one in hammers)


def _served(client: Mesh, index: str) -> bool:
    try:
        return bool(client.call(f"{index}.add", {"a": 1}) == 2)
    except toolmesh.MeshError:
        return False


def test_a_program_is_killed(opened: Started) -> None:
    index = name()
    running = program(opened.url, index)
    with Mesh(opened.url) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        until(lambda: _served(client, index))
        (bridge,) = children(running.pid)
        slow = pool.submit(client.call, f"{index}.slow", {"seconds": 60})
        time.sleep(0.5)
        running.kill()
        with pytest.raises(toolmesh.WorkerCrashed):
            slow.result(20)
        running.communicate()
        until(lambda: not os.path.exists(f"/proc/{bridge}"))
        assert index not in opened.run("ls", "--json")


def test_a_bridge_that_dies_is_started_again(opened: Started) -> None:
    index = name()
    more = """
marks = []

@mesh.tool
def outlives(first: bool) -> list[str]:
    if first:
        marks.append("begun")
        try:
            time.sleep(3)
        finally:
            marks.append("ended")
    return marks
"""
    running = program(opened.url, index, more)
    with Mesh(opened.url) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        until(lambda: _served(client, index))
        slow = pool.submit(client.call, f"{index}.outlives", {"first": True})
        until(lambda: client.call(f"{index}.outlives", {"first": False}) == ["begun"])
        (bridge,) = children(running.pid)
        os.kill(int(bridge), signal.SIGKILL)
        with pytest.raises(toolmesh.MeshError):
            slow.result(20)
        until(lambda: children(running.pid) not in ([], [bridge]) and _served(client, index))
        until(lambda: client.call(f"{index}.outlives", {"first": False}) == ["begun", "ended"])
        assert _served(client, index)
    running.terminate()
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, "served\n")
    assert "starting it again" in err and "not being served" not in err, "its answer was the dead bridge's"


def test_a_program_stops_while_its_bridge_is_down(opened: Started, tmp_path: pathlib.Path) -> None:
    index, binary = name(), tmp_path / "mesh"
    binary.symlink_to(os.environ["MESH_E2E_BIN"])
    code = f"import os\nos.environ['TOOLMESH_BINARY'] = {str(binary)!r}"
    running = program(opened.url, index, code)
    with Mesh(opened.url) as client:
        until(lambda: _served(client, index))
    binary.unlink()
    (bridge,) = children(running.pid)
    os.kill(int(bridge), signal.SIGKILL)
    assert running.stderr is not None
    for line in running.stderr:
        if "No such file" in line:
            break
    running.terminate()
    out, _ = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, "served\n")


def test_a_node_that_is_anothers(opened: Started) -> None:
    """While it is heard of, nobody else can be it. Who took it when it was silent has it."""
    index = name()
    first = program(opened.url, index)
    with Mesh(opened.url) as client:
        until(lambda: _served(client, index))
        second = program(opened.url, index)
        out, err = second.communicate(timeout=60)
        assert (second.returncode, out) == (1, "") and "is running already" in err
        (bridge,) = children(first.pid)
        os.kill(int(bridge), signal.SIGSTOP)
        third = program(opened.url, index)
        until(lambda: third.poll() is not None or _served(client, index))
        os.kill(int(bridge), signal.SIGCONT)
        out, err = first.communicate(timeout=60)
        assert (first.returncode, out) == (1, "") and "cannot serve any more" in err, err
        assert _served(client, index)
    third.terminate()
    out, err = third.communicate(timeout=60)
    assert (third.returncode, out, err) == (0, "served\n", "")


def test_a_program_that_forks(opened: Started) -> None:
    """A child that the program forks does not keep the node alive."""
    index = name()
    more = "import os\nthreading.Timer(1, lambda: os.fork() or time.sleep(20) or os._exit(0)).start()"
    running = program(opened.url, index, more, "-W", "ignore::DeprecationWarning")
    with Mesh(opened.url) as client:
        until(lambda: _served(client, index))
        forked = until(lambda: len(children(running.pid)) == 2 and children(running.pid))
        running.kill()
        running.wait()
        until(lambda: index not in opened.run("ls", "--json"))
        assert any(os.path.exists(f"/proc/{one}") for one in forked), "the child outlived the program"
    for one in forked:
        try:
            os.kill(int(one), signal.SIGKILL)
        except ProcessLookupError:
            pass
    for stream in (running.stdout, running.stderr):
        assert stream is not None
        stream.close()


def test_a_forked_child_that_ends(opened: Started) -> None:
    """Its end is not the program's."""
    index = name()
    more = """
import os

@mesh.tool
def forks() -> int:
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return sys.exit(7)

@mesh.tool
async def aforks() -> int:
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return 1
"""
    running = program(opened.url, index, more, "-W", "ignore::DeprecationWarning")
    with Mesh(opened.url) as client:
        until(lambda: _served(client, index))
        before = children(running.pid)
        assert client.call(f"{index}.forks") == 0
        assert client.call(f"{index}.aforks") == 0
        assert _served(client, index) and children(running.pid) == before
    running.terminate()
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (0, "served\n", "")


def test_a_loop_that_is_closed_while_it_serves(opened: Started) -> None:
    index = name()
    code = f"""
import asyncio, gc, os, pathlib, time
from toolmesh import Host, Mesh
host = Host(index={index!r}, servers={opened.url!r})
@host.tool
def add(a: int) -> int:
    return a + 1
loop = asyncio.new_event_loop()
ready = loop.create_future()
task = loop.create_task(host.aserve(ready=lambda: ready.set_result(None)))
loop.run_until_complete(ready)
loop.close()
del task, ready, host
gc.collect()
while True:
    try:
        if os.waitpid(-1, os.WNOHANG)[0]:
            break
    except ChildProcessError:
        break
    time.sleep(0.01)
print("no child")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": SOURCE})
    assert (done.returncode, done.stdout) == (0, "no child\n"), done.stderr


@pytest.mark.parametrize("how", ["host.start()", "threading.Thread(target=host.serve, daemon=True).start()"])
def test_a_program_that_ends_while_it_serves(opened: Started, how: str) -> None:
    index = name()
    code = f"""
import threading, time
from toolmesh import Host
host = Host(index={index!r}, servers={opened.url!r})
@host.tool
def add(a: int) -> int:
    return a + 1
{how}
while not host.node:
    time.sleep(0.01)
print("at the end")
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", code], capture_output=True, text=True,
                          timeout=60, env={**os.environ, "PYTHONPATH": SOURCE})
    assert (done.returncode, done.stdout, done.stderr) == (0, "at the end\n", "")
    until(lambda: index not in opened.run("ls", "--json"))


def test_what_cannot_be_a_tool() -> None:
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
    assert index not in opened.run("ls", "--json")
