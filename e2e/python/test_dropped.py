"""A mesh that is dropped, after a fork and at the interpreter's end: it closes, and nothing is printed."""

import os
import subprocess
import sys

import pytest
from conftest import Started
from hosting import SOURCE, name

pytestmark = pytest.mark.usefixtures("binary")

HEAD = """
import asyncio, gc, os, resource, sys, threading, time
from toolmesh import AsyncMesh, Host, Mesh, MeshError
url = sys.argv[1]
async def own(work):  # what asyncio says of the program's own loop on a busy machine is not about the mesh
    asyncio.get_running_loop().slow_callback_duration = float("inf")
    return await work
size = "rich.rich.size", {"text": "four"}
"""


def run(url: str, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", HEAD + program, url], capture_output=True, text=True,
                          timeout=120, env={**os.environ, "PYTHONPATH": SOURCE})


def test_a_dropped_mesh_closes(rich: Started) -> None:
    """500 of them, with 64 files."""
    done = run(rich.url, """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
for _ in range(100):
    assert Mesh(url).call(*size) == 4
for _ in range(100):
    assert list(Mesh(url).stream('rich.rich.numbers', {'count': 2})) == [0, 1]
for _ in range(100):
    Mesh(url).session('default').tool('rich.rich.size')(text='four')
async def main():
    for _ in range(100):
        assert await AsyncMesh(url).call(*size) == 4
    for _ in range(100):
        assert await Mesh(url).acall(*size) == 4
asyncio.run(own(main()))
""", "-X", "dev", "-W", "error")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mesh_that_is_dropped_as_its_loop_ends_closes(rich: Started) -> None:
    """However far it has come until then: it takes ten turns of the loop."""
    done = run(rich.url, """
async def main(turns):
    mesh = AsyncMesh(url)
    assert await mesh.call(*size) == 4
    del mesh
    for _ in range(turns):
        await asyncio.sleep(0)
for turns in range(12):
    asyncio.run(own(main(turns)))
    gc.collect()
""", "-X", "dev", "-W", "error")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mesh_keeps_no_loop_that_has_ended(rich: Started) -> None:
    done = run(rich.url, """
mesh = AsyncMesh(url)
async def main():
    return await mesh.call(*size)
for _ in range(50):
    assert asyncio.run(own(main())) == 4
gc.collect()
kept = [one for one in gc.get_objects() if isinstance(one, asyncio.AbstractEventLoop)]
print(len(kept) <= 2, len(os.listdir('/proc/self/fd')) < 20)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")


@pytest.mark.parametrize("used", ["mesh.call(*size)", "pass"])
def test_a_call_after_the_end(rich: Started, used: str) -> None:
    done = run(rich.url, f"""
mesh = Mesh(url)
class Late:
    def __del__(self):
        mesh.call(*size)
late = Late()
late.me = late  # what the interpreter collects at its end
{used}
""")
    assert done.returncode == 0 and "toolmesh.Unavailable: " in done.stderr, done.stderr
    assert "the interpreter is shutting down" in done.stderr and "closed" not in done.stderr


FORKS = """
def child(what):
    pid = os.fork()
    if not pid:
        try:
            what()
            os._exit(0)
        except BaseException as failure:
            print(repr(failure), flush=True)
            os._exit(1)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
    os.kill(pid, 9)
    print("the child hangs", flush=True)

mesh = Mesh(url)
assert mesh.call(*size) == 4
"""


def test_a_fork_while_another_thread_encodes(rich: Started) -> None:
    done = run(rich.url, FORKS + """
import collections.abc
inside, go_on = threading.Event(), threading.Event()
class Slow(collections.abc.Mapping):
    def __iter__(self):
        inside.set()
        go_on.wait()
        return iter(["a"])
    def __len__(self):
        return 1
    def __getitem__(self, key):
        return 1
thread = threading.Thread(target=lambda: print(mesh.call("rich.rich.echo", {"value": Slow()})))
thread.start()
inside.wait()
child(lambda: mesh.call("rich.rich.echo", {"value": {1: 2}}))
go_on.set()
thread.join()
""")
    assert (done.returncode, done.stdout) == (0, "{'a': 1}\n"), done.stderr


def test_a_fork_while_any_lock_is_held(rich: Started) -> None:
    done = run(rich.url, FORKS + """
import toolmesh.dspy, toolmesh.stores._sources
from toolmesh import _locks
host = Host(index="x")
cached = toolmesh.dspy.CachedRPCProxyTool("rich.rich.size", mesh=mesh)
held = list(_locks._all)
print(len(held) >= 5)
for one in held:
    one.acquire()
def use():
    assert mesh.call(*size) == 4 and cached(text="four") == 4
    toolmesh.dspy.end_session("none")
    host.tool(len, name="length")
    with toolmesh.stores._sources._lock:
        pass
child(use)
for one in held:
    one.release()
""")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_value_that_calls_the_mesh_while_it_is_written(rich: Started) -> None:
    done = run(rich.url, """
import collections.abc
class Asks(collections.abc.Mapping):
    def __iter__(self):
        return iter(["size"])
    def __len__(self):
        return 1
    def __getitem__(self, key):
        return mesh.call(*size)
mesh = Mesh(url)
threading.Timer(60, lambda: os._exit(3)).start()
print(mesh.call("rich.rich.echo", {"value": [Asks(), Asks()]}), flush=True)
os._exit(0)
""")
    assert (done.returncode, done.stdout) == (0, "[{'size': 4}, {'size': 4}]\n"), done.stderr


QUIET = {
    "Mesh": """
# Mesh, dropped
assert Mesh(url).call(*size) == 4
# Mesh, closed
with Mesh(url) as mesh:
    assert mesh.call(*size) == 4
# Mesh in a loop
async def main():
    assert await mesh.acall(*size) == 4
mesh = Mesh(url)
asyncio.run(own(main()))
# Mesh, a call that is cancelled
async def main():
    try:
        await asyncio.wait_for(mesh.acall('lab.timing.nap', {'seconds': 30}), 0.2)
    except asyncio.TimeoutError:
        pass
mesh = Mesh(url)
asyncio.run(own(main()))
# Mesh, a stream that is left
next(Mesh(url).stream('rich.rich.numbers', {'count': 1000, 'pause': 0.1}))
# a slow step on the mesh's own loop
from toolmesh._client.background import background
async def slow():
    time.sleep(0.3)
background.run(slow)
# nobody there
try:
    Mesh('nats://127.0.0.1:1').call(*size)
except MeshError:
    pass
# Mesh
mesh = Mesh(url)
assert mesh.call(*size) == 4
""",
    "Mesh, forked": """
mesh = Mesh(url)
assert mesh.call(*size) == 4
pid = os.fork()
assert mesh.call(*size) == 4
if not pid:
    sys.exit()
assert os.waitpid(pid, 0)[1] == 0
""",
    "AsyncMesh": """
# AsyncMesh
async def main():
    mesh = AsyncMesh(url)
    assert await mesh.call(*size) == 4
asyncio.run(own(main()))
# AsyncMesh, closed
async def main():
    async with AsyncMesh(url) as mesh:
        assert await mesh.call(*size) == 4
asyncio.run(own(main()))
# AsyncMesh, twice
mesh = AsyncMesh(url)
async def main():
    assert await mesh.call(*size) == 4
asyncio.run(own(main()))
asyncio.run(own(main()))
# AsyncMesh, a loop of its own
loop = asyncio.new_event_loop()
mesh = AsyncMesh(url)
assert loop.run_until_complete(own(mesh.call(*size))) == 4
loop.run_until_complete(mesh.close())
loop.close()
# AsyncMesh, a call that is cancelled
async def main():
    mesh = AsyncMesh(url)
    try:
        await asyncio.wait_for(mesh.call('lab.timing.nap', {'seconds': 30}), 0.2)
    except asyncio.TimeoutError:
        pass
asyncio.run(own(main()))
""",
    "Index of stores": """
from toolmesh.stores import Index
async def slow():
    time.sleep(0.2)
async def items():
    time.sleep(0.2)
    yield 1
index = Index([slow, items])
index.execute("slow")
assert index.execute("items") == 1
""",
}


@pytest.mark.parametrize("what", QUIET)
def test_nothing_is_written_to_stderr(rich: Started, what: str) -> None:
    done = run(rich.url, QUIET[what], "-X", "dev", "-W", "ignore:This process:DeprecationWarning")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_host_writes_nothing_to_stderr(opened: Started) -> None:
    done = run(opened.url, f"""
host = Host(index={name()!r}, servers=url)
@host.tool
async def add(a: int) -> int:
    time.sleep(0.2)  # as a busy machine would have it
    return a + 1
with host, Mesh(url) as mesh:
    assert mesh.call(host._index + ".add", {{"a": 1}}) == 2
""", "-X", "dev")
    assert (done.returncode, done.stderr) == (0, "")
