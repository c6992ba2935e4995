"""The Python client on a real mesh: Mesh and AsyncMesh must be equals."""

import asyncio
import collections
import concurrent.futures
import copy
import dataclasses
import datetime
import decimal
import gc
import inspect
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import HERE, Started

import toolmesh
from toolmesh import AsyncMesh, Mesh

SOURCE = str(HERE.parent.parent / "python" / "src")


class Sync:
    """What a test does, by Mesh."""

    def __init__(self, url: str) -> None:
        self.mesh = Mesh(url)

    def call(self, *args: Any, **options: Any) -> Any:
        return self.mesh.call(*args, **options)

    def collect(self, *args: Any, **options: Any) -> Any:
        return self.mesh.collect(*args, **options)

    def run(self, name: str, *args: Any, **options: Any) -> Any:
        return getattr(self.mesh, name)(*args, **options)

    def on(self, handle: Any, name: str, *args: Any, **options: Any) -> Any:
        return getattr(handle, name)(*args, **options)

    def close(self) -> None:
        self.mesh.close()


class Async:
    """What a test does, by AsyncMesh."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.mesh = AsyncMesh(url)

    def call(self, *args: Any, **options: Any) -> Any:
        return self.run("call", *args, **options)

    def collect(self, *args: Any, **options: Any) -> Any:
        return self.run("collect", *args, **options)

    def run(self, name: str, *args: Any, **options: Any) -> Any:
        return self.loop.run_until_complete(getattr(self.mesh, name)(*args, **options))

    def on(self, handle: Any, name: str, *args: Any, **options: Any) -> Any:
        return self.loop.run_until_complete(getattr(handle, name)(*args, **options))

    def close(self) -> None:
        self.run("close")
        self.loop.close()


@pytest.fixture(params=[Sync, Async])
def both(request: pytest.FixtureRequest, rich: Started) -> Iterator[Any]:
    one = request.param(rich.url)
    yield one
    one.close()


def until(happened: Callable[[], bool]) -> None:
    """Waits for what must happen."""
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(("sent", "back"), [
    (None, None), (True, True), (3, 3), (2**70, 2**70), (2.5, 2.5), ("ü\U0001f600", "ü\U0001f600"), ([], []),
    ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}), (b"\x00\xff", {"$bytes": "AP8="}),
    (datetime.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"), (decimal.Decimal("1.10"), "1.10"),
    (uuid.UUID(int=7), str(uuid.UUID(int=7))), ((1, 2), [1, 2]), ({1: "a"}, {"1": "a"}),
])
def test_values(both: Any, sent: Any, back: Any) -> None:
    got = both.call("rich.rich.echo", {"value": sent})
    assert (got, type(got)) == (back, type(back))


def test_batches(both: Any) -> None:
    echo = "rich.rich.echo"
    fails = ("rich.rich.fails", {"account": "a"})
    mixed = [(echo, {"value": 1}), fails, ("rich.rich.nowhere", {}), echo, (echo, {"value": b"ab"}, 30)]
    got = both.run("batch", mixed, return_exceptions=True)
    assert got[0] == 1 and got[4] == {"$bytes": "YWI="}
    kinds = [toolmesh.ToolExecutionError, toolmesh.ToolNotFound, toolmesh.InvalidArguments]
    assert [type(one) for one in got[1:4]] == kinds
    assert got[1].tool == "rich.rich.fails" and "lacks 7" in str(got[1])
    with pytest.raises(toolmesh.ToolExecutionError, match="lacks 7"):
        both.run("batch", [(echo, {"value": 1}), fails])
    assert both.run("batch", [("rich.rich.size", {"text": "ab"})]) == [2]
    many = [(echo, {"value": number}) for number in range(200)]
    assert both.run("batch", many, rpc_id="batch_of_mine") == list(range(200))
    assert both.run("batch", many, rpc_id="batch_of_mine", timeout=60) == list(range(200))
    with pytest.raises(toolmesh.InvalidRequest, match="another"):
        both.run("batch", [echo], rpc_id="batch_of_mine")
    with pytest.raises(toolmesh.InvalidRequest, match="no requests"):
        both.run("batch", [])
    with pytest.raises(toolmesh.PayloadTooLarge, match="1000"):
        both.run("batch", [echo] * 1001)
    with pytest.raises(TypeError, match="call 1"):
        both.run("batch", [echo, 7])
    with pytest.raises(toolmesh.ToolTimeout):
        both.run("batch", [("rich.rich.endless", {"mark": "/dev/null"})], timeout=0.5)
    assert both.run("describe", echo)["id"] == echo


def test_durable_tasks(both: Any) -> None:
    echo, value = "rich.rich.echo", {"value": [1, {"a": None}]}
    task = both.run("submit", echo, value, id="kept-" + uuid.uuid4().hex)
    assert both.on(task, "wait", 60) == value["value"]
    assert both.on(task, "state") == "succeeded"
    assert both.on(both.mesh.task(task.id), "show")["attempts"] == 1
    again = both.run("submit", echo, value, id=task.id)
    assert both.on(again, "wait") == value["value"]
    with pytest.raises(toolmesh.InvalidRequest, match="another task"):
        both.run("submit", echo, {"value": 2}, id=task.id)
    with pytest.raises(toolmesh.NotFound, match="no task"):
        both.on(both.mesh.task("none"), "state")

    failed = both.run("submit", "rich.rich.fails", {"account": "x"}, attempts=1)
    for _ in range(2):
        with pytest.raises(toolmesh.ToolExecutionError):
            both.on(failed, "wait", 60)
        both.on(failed, "retry")

    later = both.run("submit", echo, value, delay=3600)
    assert both.on(later, "state") == "scheduled"
    with pytest.raises(toolmesh.ToolTimeout):
        both.on(later, "wait", 0.1)
    assert both.on(later, "cancel") == "cancelled"
    with pytest.raises(toolmesh.CallCancelled):
        both.on(later, "wait", 60)
    at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=1)
    assert both.on(both.run("submit", echo, {"value": b"\x00"}, at=at, priority=1), "wait", 60) == {"$bytes": "AA=="}
    with pytest.raises(toolmesh.InvalidRequest, match="never fires"):
        both.run("submit", echo, value, cron="0 0 30 2 *")
    with pytest.raises(ValueError, match="in is -1"):
        both.run("submit", echo, value, delay=-1)


def test_a_task_is_submitted_and_awaited_elsewhere(rich: Started) -> None:
    async def main(mesh: Mesh) -> Any:
        task = await mesh.asubmit("rich.rich.echo", {"value": 7})
        return await task.wait(60), await task.state()

    with Mesh(rich.url) as mesh:
        assert asyncio.run(main(mesh)) == (7, "succeeded")
        for tool in ("handed", "ahanded"):
            assert mesh.submit(f"rich.rich.{tool}", {"value": 8}).wait(60) == [8, "succeeded"]


def test_idempotency_keys(both: Any) -> None:
    key = f"key-{uuid.uuid4()}"
    for _ in range(2):
        assert both.call("rich.rich.echo", {"value": 1}, idempotency_key=key) == 1
    with pytest.raises(toolmesh.InvalidRequest, match="another call"):
        both.call("rich.rich.echo", {"value": 2}, idempotency_key=key)
    for bad in ("", " k", "k\n", "\xfc"):
        with pytest.raises(toolmesh.InvalidRequest, match="idempotency key"):
            both.call("rich.rich.echo", {"value": 1}, idempotency_key=bad)


@dataclasses.dataclass
class Parcel:
    id: uuid.UUID
    sent: datetime.datetime
    weight: decimal.Decimal
    content: bytes
    tags: list[str]


def test_typed_values_both_ways(both: Any) -> None:
    sent = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
    parcel = Parcel(uuid.UUID(int=5), sent, decimal.Decimal("2.50"), b"\x00a", ["x"])
    got = both.call("rich.rich.typed", {"parcel": parcel, "on": datetime.date(2026, 3, 4), "raw": b"b"}, returns=Parcel)
    assert got == dataclasses.replace(parcel, sent=parcel.sent + datetime.timedelta(days=1), content=b"\x00ab",
                                      tags=["x", "2026-03-04"])
    with pytest.raises(TypeError, match="not <class 'int'>"):
        both.call("rich.rich.echo", {"value": "text"}, returns=int)


def test_numpy_and_pandas(both: Any) -> None:
    numpy = pytest.importorskip("numpy")
    assert both.call("rich.rich.echo", {"value": numpy.arange(3)}) == [0, 1, 2]


def test_a_tool_that_fails(both: Any) -> None:
    with pytest.raises(toolmesh.ToolExecutionError) as raised:
        both.call("rich.rich.fails", {"account": "alice"})
    failure = raised.value
    assert (failure.tool_name, failure.error_type, failure.message) == ("rich.rich.fails", "Overdrawn", "alice lacks 7")
    assert "rich.py" in failure.stacktrace and "KeyError" in failure.stacktrace
    assert failure.started is True and failure.origin == "tool"
    again = pickle.loads(pickle.dumps(failure))  # across processes, as concurrent.futures does
    assert (type(again), again.error_type, str(again)) == (type(failure), "Overdrawn", str(failure))
    assert str(copy.copy(failure)) == str(failure)


@pytest.mark.parametrize(("tool", "args", "options", "expected", "also"), [
    ("rich.rich.none", {}, {}, toolmesh.ToolNotFound, LookupError),
    ("nothing.at.all", {}, {}, toolmesh.ToolNotFound, ValueError),
    ("rich..echo", {}, {}, toolmesh.InvalidRequest, ValueError),
    ("rich.rich.echo", {}, {}, toolmesh.InvalidArguments, ValueError),
    ("rich.rich.size", {"text": 3}, {}, toolmesh.InvalidArguments, ValueError),
    ("rich.rich.size", {"text": "", "other": 1}, {}, toolmesh.InvalidArguments, ValueError),
    ("rich.rich.echo", {"value": object()}, {}, toolmesh.InvalidArguments, ValueError),
    ("rich.rich.size", {"text": "x" * (65 << 20)}, {}, toolmesh.PayloadTooLarge, ValueError),
    ("lab.timing.slow", {"seconds": 20}, {"timeout": 0.3}, toolmesh.ToolTimeout, TimeoutError),
    ("lab.timing.nap", {"seconds": 0}, {"revision": "another"}, toolmesh.MeshError, toolmesh.MeshError),
    ("rich.rich.size", {"text": ""}, {"rpc_id": "a\nb"}, toolmesh.InvalidRequest, ValueError),
    ("rich.rich.size", {"text": ""}, {"isolation": "loose"}, toolmesh.InvalidRequest, ValueError),
])
def test_failures_have_types(both: Any, tool: str, args: Any, options: Any, expected: type, also: type) -> None:
    with pytest.raises(expected) as raised:
        both.call(tool, args, **options)
    assert isinstance(raised.value, also)
    failure = typing.cast(toolmesh.MeshError, raised.value)
    assert failure.tool == tool or failure.code in ("tool_not_found", "invalid_request")


@pytest.mark.parametrize(("tool", "args", "options"), [
    (3, {}, {}), ("rich.rich.size", {"text": ""}, {"timeout": -1}), ("rich.rich.size", {"text": ""}, {"timeout": "x"}),
])
def test_invalid_calls_are_refused_before_they_are_sent(both: Any, tool: Any, args: Any, options: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        both.call(tool, args, **options)


def test_a_short_name_is_found_once_more(both: Any) -> None:
    assert both.call("timing.nap", {"seconds": 0}) == "napped 0 s"
    with pytest.raises(toolmesh.ToolNotFound) as raised:
        both.call("lab.timing.nab")
    assert "lab.timing.nap" in raised.value.details["nearest"]


def test_streams(both: Any) -> None:
    assert both.collect("rich.rich.numbers", {"count": 3000}) == list(range(3000))
    assert both.collect("rich.rich.numbers", {"count": 0}) == []
    assert both.call("rich.rich.numbers", {"count": 3}) == 2
    assert both.collect("rich.rich.size", {"text": "abc"}) == [3]
    assert [len(one) for one in both.collect("rich.rich.many", {"count": 40, "size": 300_000})] == [
        300_000 + len(f"{number}:") for number in range(40)]
    with pytest.raises(toolmesh.ToolExecutionError):
        both.collect("lab.streams.breaks", {"after": 2})


def test_items_before_a_failure_are_there(rich: Started) -> None:
    got = []
    with pytest.raises(toolmesh.ToolExecutionError), Mesh(rich.url) as mesh:
        for number, item in enumerate(mesh.stream("lab.streams.breaks", {"after": 2})):
            got.append((number, item))
    assert len(got) == 2


def test_leaving_a_stream_closes_the_tool(rich: Started) -> None:
    mark = f"/tmp/mesh-e2e-{uuid.uuid4().hex}"
    mesh = Mesh(rich.url)
    for number in mesh.stream("rich.rich.endless", {"mark": mark}):
        if number == 5:
            break
    gc.collect()
    until(lambda: os.path.exists(mark))
    os.unlink(mark)

    async def main() -> None:
        async with AsyncMesh(rich.url) as other:
            items = other.stream("rich.rich.endless", {"mark": mark})
            assert await anext(items) == 0
            await items.aclose()
            await asyncio.to_thread(until, lambda: os.path.exists(mark))

    asyncio.run(main())
    os.unlink(mark)
    forgotten = mesh.stream("rich.rich.endless", {"mark": mark})
    next(forgotten)
    del forgotten  # a generator that is never finished
    gc.collect()
    until(lambda: os.path.exists(mark))
    os.unlink(mark)
    mesh.close()


def test_a_slow_reader_holds_the_tool_back(rich: Started) -> None:
    mark = f"/tmp/mesh-e2e-{uuid.uuid4().hex}"
    with Mesh(rich.url) as mesh:
        items = mesh.stream("rich.rich.endless", {"mark": mark, "pause": 0})
        next(items)
        time.sleep(3)  # a round of credit: the tool would have counted to 100,000
        items.close()
        until(lambda: os.path.exists(mark))
    assert int(pathlib.Path(mark).read_text()) < 20_000
    os.unlink(mark)


def test_cancelling_a_task_cancels_the_call(rich: Started) -> None:
    mark = f"/tmp/mesh-e2e-{uuid.uuid4().hex}"

    async def main() -> None:
        async with AsyncMesh(rich.url) as mesh:
            task = asyncio.create_task(mesh.call("rich.rich.ended", {"seconds": 60, "mark": mark}))
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(until, lambda: os.path.exists(mark))

    asyncio.run(main())
    assert pathlib.Path(mark).read_text() != "slept"
    os.unlink(mark)


def test_cancel_by_id(both: Any) -> None:
    name = toolmesh_id()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        url_mesh = Mesh(both.mesh._links.settings["servers"])
        running = pool.submit(url_mesh.call, "lab.timing.nap", {"seconds": 30}, rpc_id=name)
        until(lambda: bool(both.run("cancel", name)) or running.done())
        with pytest.raises(toolmesh.CallCancelled):
            running.result()
        url_mesh.close()
    assert both.run("cancel", name) is False


def toolmesh_id() -> str:
    return f"rpc_{uuid.uuid4().hex}"


def test_the_same_id_is_the_same_call(both: Any) -> None:
    name = toolmesh_id()
    first = both.call("lab.bank.withdraw", {"account": "alice", "amount": 1}, rpc_id=name)
    assert both.call("lab.bank.withdraw", {"account": "alice", "amount": 1}, rpc_id=name) == first
    with pytest.raises(toolmesh.InvalidRequest):
        both.call("lab.bank.withdraw", {"account": "alice", "amount": 2}, rpc_id=name)


def test_tools_are_callables(rich: Started) -> None:
    wrong: Any
    with Mesh(rich.url) as mesh:
        tools = {tool.id: tool for tool in mesh.tools("rich.")}
        assert len(tools) == 13 and all(name.startswith("rich.") for name in tools)
        tool = tools["rich.rich.defaults"]
        assert tool.__name__ == "defaults" and inspect.getdoc(tool) == tool.description == "What it was called with."
        assert str(inspect.signature(tool)).startswith("(first: int, second: str = 'two', third: ")
        assert typing.get_type_hints(tool)["second"] is str
        assert tool(1) == {"first": 1, "second": "two", "third": None}
        assert tool(1, "b", third=0.5, other=7) == {"first": 1, "second": "b", "third": 0.5, "other": 7}
        for wrong in (lambda: tool(), lambda: tool("x"), lambda: tool(1, 2, 3), lambda: tool(1, first=2)):
            with pytest.raises(toolmesh.InvalidArguments) as raised:
                wrong()
            assert raised.value.started is False
        assert list(tools["rich.rich.numbers"].stream(3)) == [0, 1, 2]
        assert tools["rich.rich.typed"].__annotations__["raw"] is bytes
        assert tools["rich.rich.typed"].__annotations__["on"] is datetime.date
        assert asyncio.run(tool.acall(2))["first"] == 2
        assert mesh.search("what was a tool called with", limit=1)[0](1) == tool(1)
        assert mesh.search("xyzzy") == []

    async def main() -> None:
        async with AsyncMesh(rich.url) as other:
            tool = await other.tool("rich.rich.defaults")
            assert (await tool(3))["first"] == 3
            assert [one.id for one in await other.search("what was a tool called with", limit=1)] == [tool.id]
            assert [item async for item in (await other.tool("rich.rich.numbers")).stream(2)] == [0, 1]

    asyncio.run(main())


def test_sync_calls_work_inside_a_running_loop_and_in_threads(rich: Started) -> None:
    mesh = Mesh(rich.url)

    async def main() -> int:
        assert await mesh.acall("rich.rich.size", {"text": "four"}) == 4
        assert [item async for item in mesh.astream("rich.rich.numbers", {"count": 3})] == [0, 1, 2]
        return typing.cast(int, mesh.call("rich.rich.size", {"text": "four"}))

    assert asyncio.run(main()) == 4
    assert asyncio.run(main()) == 4
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        calls = [pool.submit(mesh.call, "rich.rich.echo", {"value": number}) for number in range(400)]
        assert [one.result() for one in calls] == list(range(400))
    mesh.close()
    assert mesh.call("rich.rich.size", {"text": ""}) == 0, "a closed mesh connects anew"
    mesh.close()


def test_answers_find_their_calls(rich: Started) -> None:
    async def main() -> None:
        async with AsyncMesh(rich.url) as mesh:
            waits = [0.3, 0.0, 0.2, 0.1]
            got = await asyncio.gather(*[mesh.call("lab.timing.nap", {"seconds": wait}) for wait in waits])
            assert got == [f"napped {wait:g} s" for wait in waits]

    asyncio.run(main())


def test_asyncio_run_twice(rich: Started) -> None:
    mesh = AsyncMesh(rich.url)

    async def main() -> Any:
        return await mesh.call("rich.rich.size", {"text": "x"})  # never closed: its loop's end does that

    assert [asyncio.run(main()), asyncio.run(main())] == [1, 1]


def test_a_closed_loop(rich: Started) -> None:
    mesh = AsyncMesh(rich.url)
    with pytest.raises(RuntimeError):
        mesh.call("rich.rich.size", {"text": "x"}).send(None)  # outside of any loop


def _child(url: str, mesh: Mesh, answers: Any) -> None:
    try:
        answers.put(mesh.call("rich.rich.size", {"text": "child"}))
    except BaseException as failure:
        answers.put(repr(failure))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork(rich: Started) -> None:
    mesh = Mesh(rich.url)
    assert mesh.call("rich.rich.size", {"text": "x"}) == 1
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_child, args=(rich.url, mesh, answers))
    child.start()
    assert answers.get(timeout=30) == 5
    child.join(30)
    assert child.exitcode == 0
    assert mesh.call("rich.rich.size", {"text": "xy"}) == 2, "the parent's connection is its own"
    mesh.close()


def test_scope(rich: Started) -> None:
    with Mesh(rich.url) as mesh:
        with toolmesh.scope(timeout=0.3):
            with toolmesh.scope(timeout=60), pytest.raises(toolmesh.ToolTimeout):
                mesh.call("lab.timing.nap", {"seconds": 20})
            with pytest.raises(toolmesh.ToolTimeout):
                mesh.call("rich.rich.size", {"text": ""})
        assert mesh.call("rich.rich.size", {"text": ""}) == 0
        with toolmesh.scope(session="other"):
            assert mesh.session_name == "other"
            with pytest.raises(toolmesh.PermissionDenied):
                mesh.call("rich.rich.size", {"text": ""})
        with pytest.raises(toolmesh.PermissionDenied) as raised:
            mesh.session("other").call("rich.rich.size", {"text": ""})
        assert raised.value.started is False


def test_nested_calls_have_the_same_classes(rich: Started) -> None:
    with Mesh(rich.url) as mesh:
        assert mesh.call("rich.rich.nested", {"tool": "rich.rich.size", "args": {"text": 3}}) == (
            "InvalidArguments invalid_arguments False")
        assert mesh.call("rich.rich.nested", {"tool": "lab.timing.slow", "args": {"seconds": 20}}) == (
            "ToolTimeout deadline_exceeded True")


def test_no_mesh() -> None:
    with pytest.raises(toolmesh.Unavailable, match="mesh up"):
        Mesh("nats://127.0.0.1:1").call("a.b")
    with pytest.raises(toolmesh.MeshError):
        Mesh("no url").call("a.b")
    with pytest.raises(toolmesh.MeshError):
        Mesh("nats://127.0.0.1:1", creds="/nowhere/at.all").call("a.b")


def test_a_server_without_a_mesh() -> None:
    with Mesh(os.environ["MESH_E2E_EMPTY"]) as mesh:
        with pytest.raises(toolmesh.Unavailable, match="no mesh"):
            mesh.tools()
        with pytest.raises(toolmesh.Unavailable, match="no mesh"):
            mesh.call("a.b")


def test_a_broker_that_goes_away_and_comes_back(start: Callable[..., Started], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolmesh._client.streams._AWAY", 5.0)  # a minute is too long for a test
    one = start()
    one.run("install", str(HERE / "indexes" / "rich"))
    mesh = Mesh(one.url)
    assert mesh.call("rich.rich.size", {"text": "x"}) == 1
    items = mesh.stream("rich.rich.numbers", {"count": 100_000, "pause": 0.01})
    next(items)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(mesh.call, "rich.rich.ended", {"seconds": 60, "mark": "/tmp/never"})
        time.sleep(0.5)
        one.kill()
        with pytest.raises(toolmesh.MeshError) as raised:
            running.result(30)
    assert raised.value.code in ("unavailable", "node_lost")
    with pytest.raises(toolmesh.MeshError) as raised:
        mesh.call("rich.rich.size", {"text": "x"})
    assert raised.value.started is False
    with pytest.raises(toolmesh.Unavailable):
        collections.deque(items, 0)
    another = start(one.url.removeprefix("nats://"))

    def again() -> bool:
        try:
            return bool(mesh.call("rich.rich.size", {"text": "xy"}) == 2)
        except toolmesh.Unavailable:
            return False

    until(again)
    mesh.close()
    another.kill()


def test_a_stream_goes_on_over_a_lost_connection(rich: Started) -> None:
    async def main() -> None:
        async with AsyncMesh(rich.url) as mesh:
            got = []
            async for item in mesh.stream("rich.rich.numbers", {"count": 300, "pause": 0.01}):
                got.append(item)
                if item == 20:
                    link = mesh._links.here()
                    assert link._nc is not None and link._nc._transport is not None
                    link._nc._transport.close()  # type: ignore[no-untyped-call]  # as if the cable were pulled
            assert got == list(range(300))

    asyncio.run(main())


PROGRAM = """
import sys, threading, time
sys.path.insert(0, {source!r})
from toolmesh import Mesh
mesh = Mesh({url!r})
mesh.call("rich.rich.size", {{"text": ""}})
items = mesh.stream("rich.rich.numbers", {{"count": 100000, "pause": 0.01}})
next(items)
threading.Thread(target=lambda: mesh.call("lab.timing.nap", {{"seconds": 60}}), daemon=True).start()
time.sleep(0.5)
print("at the end")
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", program], capture_output=True, text=True,
                          timeout=60)


def test_an_interpreter_that_ends_with_calls_in_flight(rich: Started) -> None:
    done = run(PROGRAM.format(source=SOURCE, url=rich.url))
    assert (done.returncode, done.stdout, done.stderr) == (0, "at the end\n", "")


ASYNC_PROGRAM = """
import asyncio, sys
sys.path.insert(0, {source!r})
from toolmesh import AsyncMesh
async def main():
    asyncio.get_running_loop().slow_callback_duration = float("inf")  # on a busy machine it is said of this loop
    mesh = AsyncMesh({url!r})
    asyncio.create_task(mesh.call("lab.timing.nap", {{"seconds": 60}}))
    async for item in mesh.stream("rich.rich.numbers", {{"count": 100000, "pause": 0.01}}):
        if item == 3:
            return
asyncio.run(main())
asyncio.run(main())
print("at the end")
"""


def test_a_loop_that_ends_with_calls_in_flight(rich: Started) -> None:
    done = run(ASYNC_PROGRAM.format(source=SOURCE, url=rich.url))
    assert (done.returncode, done.stdout, done.stderr) == (0, "at the end\n", "")


def test_interrupting_a_call(rich: Started) -> None:
    calling = """print('calling', flush=True)
try:
    mesh.call('lab.timing.nap', {'seconds': 60})
except KeyboardInterrupt:
    print('interrupted')"""
    program = PROGRAM.format(source=SOURCE, url=rich.url).replace("time.sleep(0.5)", calling)
    running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "calling\n"
    time.sleep(0.3)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (0, "interrupted\nat the end\n", "")


def test_memory_is_flat(rich: Started) -> None:
    async def main() -> None:
        async with AsyncMesh(rich.url) as mesh:
            for _ in range(200):
                await mesh.call("lab.timing.nap", {"seconds": 0})
            link = mesh._links.here()
            assert not link.pending and len(link._tasks) < 5
            gc.collect()
            before = len(gc.get_objects())
            for _ in range(2000):
                await mesh.call("lab.timing.nap", {"seconds": 0})
            gc.collect()
            assert len(gc.get_objects()) - before < 500

    asyncio.run(main())


def test_an_item_that_does_not_come_in_time(both: Any) -> None:
    with pytest.raises(toolmesh.ToolTimeout) as caught:
        both.collect("rich.rich.numbers", {"count": 2, "pause": 60}, idle=0.5)
    assert caught.value.details == {"limit": "idle"}
    for idle in (None, 50):
        with pytest.raises(toolmesh.ToolTimeout) as caught:
            both.collect("rich.rich.numbers", {"count": 2, "pause": 60}, timeout=0.5, idle=idle)
        assert caught.value.details.get("limit") != "idle"
    assert both.collect("rich.rich.numbers", {"count": 3}, idle=20) == [0, 1, 2]
