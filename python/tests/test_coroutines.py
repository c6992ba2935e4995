"""A real worker of coroutines, which this test speaks to over pipes as an agent does.

What a pipe brings at once is what the order of things hangs on: so the frames
here are written in one piece, or in pieces that are chosen.
"""

import json
import os
import pathlib
import subprocess
import sys
import typing

import pytest

from toolmesh._worker.wire.frames import (
    CALL,
    CANCEL,
    ERROR,
    EXIT,
    HEADER,
    LOG,
    PING,
    PONG,
    READY,
    RESULT,
    STREAM,
    YIELD,
    Reader,
)

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "src"

WORKER = """
import asyncio, mmap, sys
from toolmesh._worker.calls import coroutines, output
from toolmesh._worker.schemas import binding, schema

async def echo(value):
    return value

async def count(n: int):
    for i in range(n):
        yield i

async def cancel_all():
    for task in asyncio.all_tasks():
        task.cancel()

async def close_all():
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.get_coro().close()

async def wait():
    await asyncio.get_running_loop().create_future()

async def factory():
    asyncio.get_running_loop().set_task_factory(lambda *_, **__: 1 / 0)

async def threshold():
    import gc
    return gc.get_threshold()[0]

async def signalled(where: str):
    import signal
    from toolmesh._worker.calls import threads
    page[0] = threads.running.get()
    called, frame = set(), sys._getframe()
    if where == "asyncio":
        names = {"__name__": "asyncio", "sys": sys}
        exec(compile("def stand(): return sys._getframe()", asyncio.tasks.__file__, "exec"), names)
        frame = names["stand"]()
    handler = signal.getsignal(signal.SIGURG)
    raised = False
    sys.setprofile(lambda f, event, _: called.add(f.f_code.co_filename) if event == "call" else None)
    try:
        handler(signal.SIGURG, frame)
    except asyncio.CancelledError:
        raised = True
    finally:
        sys.setprofile(None)
    return [raised, sorted(file for file in called if file not in (coroutines.__file__, asyncio.tasks.__file__))]

async def print_later():
    async def later():
        await over.wait()
        print("a line\\nand a half", end="")
    kept.append(asyncio.create_task(later()))

async def rooms():
    over.set()
    await asyncio.gather(*kept)
    outlet = output._installed[0]
    return [len(outlet.partial), len(outlet.budgets)]

kept, over = [], asyncio.Event()
functions = [echo, count, cancel_all, close_all, wait, factory, threshold, signalled, print_later, rooms]
tools = [binding.Tool(f.__name__, f, schema.kind_of(f), schema.signature(f)) for f in functions]
output.keep_ends()
page = memoryview(mmap.mmap(-1, 4096)).cast("Q")
coroutines.start(tools, int(sys.argv[1]), int(sys.argv[2]), page, 1 << 26, b"{}")
"""
SLOTS = {name: slot for slot, name in enumerate(
    ("echo", "count", "cancel_all", "close_all", "wait", "factory", "threshold", "signalled", "print_later",
     "rooms"))}


class Worker:
    """The process and its pipes."""

    def __init__(self):
        inp, self.to = os.pipe()
        self.source, out = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(inp), str(out)],
            pass_fds=(inp, out), env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        os.close(inp)
        os.close(out)
        self.reader = Reader(self.source)
        self.calls = 0
        assert self.next()[0] == READY

    def call(self, tool, arguments=None, flags=0):
        """(id, frame) of a call that is yet to be written."""
        self.calls += 1
        body = json.dumps(arguments or {}).encode()
        return self.calls, HEADER.pack(len(body), CALL, flags, SLOTS[tool], self.calls) + body

    def write(self, *frames):
        """Writes frames in one piece."""
        data = b"".join(frames)
        while data:
            data = data[os.write(self.to, data):]

    def next(self):
        """(type, id, body) of the next frame that is no output."""
        while True:
            frame = self.reader.next()
            assert frame is not None, "the worker has ended"
            kind, _, _, call, body = frame
            if kind != LOG:
                return kind, call, body

    def settled(self):
        """The frames up to the answer to a PING that is written now."""
        self.write(HEADER.pack(0, PING, 0, 0, 1 << 40))
        found: list[typing.Any] = []
        while True:
            frame = self.next()
            if frame[0] == PONG:
                return found
            found.append(frame)

    def ends(self, *calls):
        """The terminals of calls, by id. Fails if one has two."""
        found: dict[int, typing.Any] = {}
        while len(found) < len(calls):
            kind, call, body = self.next()
            assert kind in (RESULT, ERROR) and call in calls and call not in found, (kind, call, body)
            found[call] = kind, json.loads(body)
        assert self.settled() == []
        return found

    def end(self):
        """Has it end as an agent does, and says whether it did so in good order."""
        os.close(self.to)
        code = self.process.wait(30)
        os.close(self.source)
        return code


@pytest.fixture
def worker():
    one = Worker()
    try:
        yield one
    finally:
        code = one.end()
    assert code == 0


def test_every_call_of_one_piece_is_answered(worker):
    calls = [worker.call("echo", {"value": i}) for i in range(500)]
    worker.write(*(frame for _, frame in calls))
    found = worker.ends(*(call for call, _ in calls))
    assert [found[call] for call, _ in calls] == [(RESULT, i) for i in range(500)]


@pytest.mark.parametrize("size", [1, 7, 16, 17, 40, 4096])
def test_how_the_frames_are_cut_does_not_matter(worker, size):
    values = ["", "a", "b" * 300, "c" * 70_000 if size > 16 else "c" * 700, None]
    calls = [worker.call("echo", {"value": value}) for value in values]
    data = b"".join(frame for _, frame in calls)
    for at in range(0, len(data), size):
        worker.write(data[at : at + size])
    found = worker.ends(*(call for call, _ in calls))
    assert [found[call][1] for call, _ in calls] == values


def test_large_arguments_come_in_many_pieces(worker):
    text = "x" * (20 << 20)
    call, frame = worker.call("echo", {"value": text})
    worker.write(frame)
    assert worker.ends(call)[call] == (RESULT, text)


def test_a_call_that_is_cancelled_before_its_first_step_has_not_started(worker):
    call, frame = worker.call("echo", {"value": 1})
    other, second = worker.call("echo", {"value": 2})
    worker.write(frame, HEADER.pack(0, CANCEL, 0, 0, call), second)
    found = worker.ends(call, other)
    assert found[call][0] == ERROR
    assert (found[call][1]["code"], found[call][1]["started"]) == ("cancelled", False)
    assert found[other] == (RESULT, 2)


def test_a_call_that_is_cancelled_later_has_started(worker):
    call, frame = worker.call("wait")
    worker.write(frame)
    assert worker.settled() == []
    other, second = worker.call("echo", {"value": 2})
    worker.write(HEADER.pack(0, CANCEL, 0, 0, call), second)
    found = worker.ends(call, other)
    assert (found[call][1]["code"], found[call][1]["started"]) == ("cancelled", True)
    assert found[other] == (RESULT, 2)


@pytest.mark.parametrize("tool", ["cancel_all", "close_all"])
def test_a_tool_that_ends_all_tasks_leaves_each_call_its_one_end(worker, tool):
    before, first = worker.call("wait")
    worker.write(first)
    assert worker.settled() == []
    hostile, second = worker.call(tool)
    after, third = worker.call("echo", {"value": 1})  # it comes to its first step after the hostile one
    worker.write(second, third)
    ends: dict[int, int] = {}
    while len(ends) < 3:
        for kind, call, _ in worker.settled():  # the agent asks now and then
            assert kind in (RESULT, ERROR) and call not in ends
            ends[call] = kind
    assert ends == {before: ERROR, hostile: RESULT, after: ERROR}
    call, frame = worker.call("echo", {"value": "on"})
    worker.write(frame)
    assert worker.ends(call) == {call: (RESULT, "on")}


def test_a_factory_of_tasks_that_a_tool_sets_is_not_for_calls(worker):
    for tool, want in (("factory", None), ("echo", 1)):
        call, frame = worker.call(tool, {"value": 1} if tool == "echo" else None)
        worker.write(frame)
        assert worker.ends(call) == {call: (RESULT, want)}


def test_items_of_two_streams_come_in_order(worker):
    one, first = worker.call("count", {"n": 2000}, STREAM)
    two, second = worker.call("count", {"n": 2000}, STREAM)
    worker.write(first, second)
    items: dict[int, list[int]] = {one: [], two: []}
    ends = 0
    while ends < 2:
        kind, call, body = worker.next()
        if kind == YIELD:
            items[call].append(json.loads(body))
        else:
            ends += 1
    assert items == {one: list(range(2000)), two: list(range(2000))}


@pytest.mark.parametrize(("where", "raises"), [("tool", True), ("asyncio", False)])
def test_the_handler_calls_nothing_that_a_second_signal_takes_for_a_tool(worker, where, raises):
    call, frame = worker.call("signalled", {"where": where})
    worker.write(frame)
    assert worker.ends(call)[call] == (RESULT, [raises, []])


def test_garbage_is_collected_rarely_and_still(worker):
    call, frame = worker.call("threshold")
    worker.write(frame)
    assert worker.ends(call)[call][1] == 10_000


def test_output_after_the_end_of_calls_takes_no_room(worker):
    worker.write(*(worker.call("print_later")[1] for _ in range(5)))
    worker.ends(1, 2, 3, 4, 5)
    call, frame = worker.call("rooms")
    worker.write(frame)
    assert worker.ends(call)[call] == (RESULT, [1, 1])


def test_the_worker_ends_on_request(worker):
    worker.write(HEADER.pack(0, EXIT, 0, 0, 0))
    assert worker.process.wait(30) == 0
