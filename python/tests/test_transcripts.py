"""What agent and worker said to each other, recorded: the worker says it again.

The files are executor/internal/frame/testdata/*.txt; a Go test there reads the same ones. A line is a frame: its
sender (> is the agent, < the worker), its type, the 16 bytes of its header, its body as a JSON text of one byte per
character.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from toolmesh._worker.wire import frames

HERE = pathlib.Path(__file__).resolve().parent
TRANSCRIPTS = HERE.parent.parent / "executor" / "internal" / "frame" / "testdata"
PROGRAM = """
import asyncio, mmap, sys
from toolmesh._worker import mesh
from toolmesh._worker.calls import coroutines, output, plain
from toolmesh._worker.schemas import binding, schema

def greet(name: str, times: int = 1) -> str:
    print("greeting", name)
    return " ".join(["hello", name] * times)

def numbers(upto: int):
    for n in range(upto):
        yield {"n": n}

def relay(text: str) -> str:
    return mesh.call("other.tool", {"text": text})["said"]

async def echo(text: str) -> str:
    return text

async def forever():
    await asyncio.sleep(1e6)

functions = [greet, numbers, relay, echo, forever]
tools = [binding.Tool(f.__name__, f, schema.kind_of(f), schema.signature(f)) for f in functions]
inp, out, page = int(sys.argv[2]), int(sys.argv[3]), memoryview(mmap.mmap(-1, 4096)).cast("Q")
about = b'{"pid": 1}'
if sys.argv[1] == "plain":
    worker = plain.Worker(tools)
    worker.install()
    worker.start(inp, out, page, 1 << 20, about, None)
else:
    coroutines.start(tools, inp, out, page, 1 << 20, about)
"""


def lines(path: pathlib.Path) -> list[tuple[str, str, bytes, bytes]]:
    """(sender, type, header, body) of each frame of a transcript."""
    found = []
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            sender, kind, header, body = line.split(" ", 3)
            found.append((sender, kind, bytes.fromhex(header), json.loads(body).encode("latin-1")))
    return found


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_recorded_frames_match_their_description(path):
    assert lines(path)
    for _, kind, header, body in lines(path):
        length, number, _, _, _ = frames.HEADER.unpack(header)
        assert number == getattr(frames, kind), kind
        assert length == len(body), kind


@pytest.mark.parametrize("kind", ["plain", "coroutines"])
def test_the_worker_answers_as_it_was_recorded(kind, tmp_path):
    inp, to = os.pipe()
    source, out = os.pipe()
    path = os.pathsep.join([str(HERE.parent / "src"), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, kind, str(inp), str(out)],
        pass_fds=(inp, out), env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL,
    )
    os.close(inp)
    os.close(out)
    reader = frames.Reader(source)
    try:
        for sender, name, header, body in lines(TRANSCRIPTS / f"{kind}.txt"):
            if sender == ">":
                frames.write_all(to, header + body)
                continue
            got = reader.next()
            assert got is not None, f"the worker ended before {name}"
            _, *fields = frames.HEADER.unpack(header)
            assert got == (*fields, body), name
        assert reader.next() is None
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()
        os.close(to)
        os.close(source)
