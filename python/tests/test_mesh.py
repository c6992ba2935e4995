"""What a tool gets from `from toolmesh import mesh`, inside a worker and outside."""

import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
import typing

import pytest

from toolmesh._worker import mesh
from toolmesh._worker.calls import channel
from toolmesh._worker.wire.frames import HEADER, LOG, Reader

if typing.TYPE_CHECKING:
    from toolmesh._worker.wire.frames import Frame

WORKER = pathlib.Path(__file__).resolve().parent.parent / "src" / "toolmesh" / "_worker"


def test_outside_a_mesh_a_call_says_so():
    for attempt in (
        lambda: mesh.call("weather.forecast", {"city": "Oslo"}),
        lambda: next(mesh.stream("weather.forecast")),
        lambda: mesh.acall("weather.forecast").send(None),
    ):
        with pytest.raises(mesh.MeshError) as caught:
            attempt()
        assert caught.value.code == "unavailable"
        assert caught.value.started is False
        assert "weather.forecast" in str(caught.value)


def test_outside_a_mesh_progress_does_nothing():
    mesh.progress(0.5, "half")
    mesh.progress(float("nan"))
    mesh.progress(text="on")


def test_outside_a_mesh_secrets_are_environment_variables(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "abc")
    assert mesh.secret("SOME_TOKEN") == "abc"
    monkeypatch.delenv("SOME_TOKEN")
    with pytest.raises(KeyError) as caught:
        mesh.secret("SOME_TOKEN")
    assert isinstance(caught.value, mesh.MeshError)
    assert "SOME_TOKEN" in str(caught.value)


@pytest.mark.parametrize(("calls", "raised", "says"), [
    ([("a.b", {})], mesh.MeshError, "no tool is being called"),
    ([7], TypeError, "call 0 of the batch is 7"),
    ([("a.b", {}), ()], TypeError, "call 1 of the batch"),
    ([(7, {})], TypeError, "by its id"),
    ([("a.b", {}, 1, 2)], TypeError, "call 0"),
    ([("a.b", {}, 0)], ValueError, "timeout"),
    ([("a.b", {}, float("nan"))], ValueError, "timeout"),
])
def test_invalid_batches_are_refused(calls, raised, says):
    with pytest.raises(raised, match=says):
        mesh.batch(calls)
    with pytest.raises(raised, match=says):
        mesh.abatch(calls).send(None)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_is_above_zero(timeout, monkeypatch):
    class Untouched:
        call = None

    monkeypatch.setattr(channel, "current", Untouched())
    with pytest.raises(ValueError, match="timeout"):
        mesh.call("a.b", timeout=timeout)


def test_a_tool_is_named_by_text():
    with pytest.raises(TypeError, match="id"):
        mesh.call(mesh.call)  # type: ignore[arg-type]


def run(tmp_path, code):
    """Runs code in an interpreter that has the worker under its private name, as the agent writes it."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "_toolmesh_worker").symlink_to(WORKER)
    head = f"import sys; sys.path[:0] = [{str(private)!r}, {str(tmp_path / 'site')!r}]\n"
    done = subprocess.run([sys.executable, "-I", "-c", head + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WITH_SITE = "from _toolmesh_worker import FOLDER; sys.path.append(FOLDER + 'site')\n"


def test_a_worker_offers_toolmesh(tmp_path):
    said = run(tmp_path, WITH_SITE + "from toolmesh import mesh, MeshError\n"
               "print(mesh.__name__, MeshError is mesh.MeshError)")
    assert said == "_toolmesh_worker.mesh True"


def test_an_installed_toolmesh_comes_first_and_finds_the_same_mesh(tmp_path):
    package = tmp_path / "site" / "toolmesh"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from _toolmesh_worker import mesh\ninstalled = True\n")
    said = run(tmp_path, WITH_SITE + "import toolmesh\nfrom _toolmesh_worker import mesh\n"
               "print(toolmesh.installed, toolmesh.mesh is mesh)")
    assert said == "True True"


def test_without_a_worker_toolmesh_is_there_only_if_installed(tmp_path):
    said = run(tmp_path, "try:\n    from toolmesh import mesh\nexcept ImportError:\n    print('not installed')")
    assert said == "not installed"


def test_processes_of_a_tool_import_its_module(tmp_path):
    """From Python 3.14 on multiprocessing starts them so, if it is not told otherwise."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "tools.py").write_text("""
from toolmesh import MeshError, mesh

def work(x):
    mesh.progress(0.5)
    try:
        mesh.call("a.b")
    except MeshError as failure:
        return x, failure.code
""")
    said = run(tmp_path, WITH_SITE + "del sys.path[0]\nimport concurrent.futures, multiprocessing, tools\n"
               "with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as pool:\n"
               "    print(pool.submit(tools.work, 3).result(30))")
    assert said == "(3, 'unavailable')"


def test_a_reader_loses_nothing_to_a_handler_that_raises():
    """Frames of all sizes, while a signal handler raises in the midst of reading them."""

    class Rang(Exception):
        pass

    def ring(*_):
        raise Rang

    frames = [HEADER.pack(size, LOG, 0, 0, number) + bytes([number % 251]) * size
              for number, size in enumerate([0, 1, 15, 17, 70_000, 300_000] * 20)]
    inp, out = os.pipe()
    # What other tests left would be collected meanwhile, and a handler that raises in a finalizer is nobody's to catch.
    gc.collect()
    gc.disable()

    def write():
        for frame in frames:
            view = memoryview(frame)
            while view:
                view = view[os.write(out, view[:1000]):]
        os.close(out)

    old = signal.signal(signal.SIGALRM, ring)
    writer = threading.Thread(target=write)
    writer.start()
    reader, rang = Reader(inp), 0
    got: list[Frame] = []
    try:
        more = True
        while more:
            try:
                while more:  # inside: the signal may come between two reads, too
                    signal.setitimer(signal.ITIMER_REAL, 0.0005)
                    more = reader.take(got.append)
            except Rang:
                rang += 1  # it comes once for each setitimer: never here
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Rang:
        pass  # the last one, between the end and the line above
    finally:
        signal.signal(signal.SIGALRM, old)
        gc.enable()
        writer.join()
        os.close(inp)
    # A frame whose handing over was cut short may come twice, and none is lost.
    numbers = [call for _, _, _, call, _ in got]
    assert sorted(set(numbers)) == list(range(len(frames))) and numbers == sorted(numbers)
    for _, _, _, call, body in got:
        assert HEADER.pack(len(body), LOG, 0, 0, call) + body == frames[call]
    assert rang > 0
