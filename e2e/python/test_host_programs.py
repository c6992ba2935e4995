"""Programs that serve functions: how they drain, die, fork and end."""

import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest
from conftest import Started
from hosting import SOURCE, children, name, until

import toolmesh
from toolmesh import Mesh

pytestmark = pytest.mark.usefixtures("binary")

PROGRAM = """
import sys, time, threading
from toolmesh import mesh

@mesh.tool
def add(a: int) -> int:
    return a + 1

began = []

@mesh.tool
def slow(seconds: float) -> str:
    began.append(seconds)
    time.sleep(seconds)
    return "slept"

@mesh.tool
def begun() -> int:
    return len(began)

{more}
mesh.serve(index=sys.argv[2], servers=sys.argv[1], node=sys.argv[2])
print("served")
"""


def program(url: str, index: str, more: str = "", *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-X", "dev", *options, "-c", PROGRAM.format(more=more), url, index],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "PYTHONPATH": SOURCE})


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
        until(lambda: client.call(f"{index}.begun") == 8)
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
        until(lambda: client.call(f"{index}.begun") == 1)
        running.kill()
        with pytest.raises(toolmesh.WorkerCrashed):
            slow.result(20)
        running.communicate()
        until(lambda: not os.path.exists(f"/proc/{bridge}"))
        until(lambda: index not in opened.run("ls", "--json"))


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
    lines = []
    for line in running.stderr:
        lines.append(line)
        if "No such file" in line:
            break
    running.terminate()
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, "served\n"), "".join(lines) + err


def test_a_node_id_of_another_process(opened: Started) -> None:
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
        assert third.poll() is None, third.communicate()
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
