"""The section "python" of the benchmarks: our client, our host and our adapters against what people use else.

Started by ../python.go with the URL of a mesh and the ids of a Go tool and a warm Python tool, which do the same.
Each side has its turn in every round; a ratio is taken within a round, and the median of those is told, as a line of
JSON for each row. Peers that are not installed, or do not start, are left out, which the row says.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

ARGS = {"order": "A-1041", "amount": 7}
RESULT = {"order": "A-1041", "refunded": 7}
BODY = json.dumps(ARGS, separators=(",", ":")).encode()
CALLERS = 64

RESPONDER = """
import asyncio, json, sys
import nats

async def main():
    nc = await nats.connect(sys.argv[1])
    async def answer(message):
        arguments = json.loads(message.data)
        await message.respond(json.dumps({"order": arguments["order"], "refunded": arguments["amount"]}).encode())
    await nc.subscribe("bench.python", queue="q", cb=answer)
    await nc.flush()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await nc.close()

asyncio.run(main())
"""

HOST = """
import sys
from toolmesh import mesh

@mesh.tool
def refund(order: str, amount: int) -> dict:
    "Pay an order's amount back."
    return {"order": order, "refunded": amount}

mesh.serve(index="pyhost", servers=sys.argv[1])
"""

HTTP = """
import sys
from fastmcp import FastMCP

server = FastMCP("bench")

@server.tool
def refund(order: str, amount: int) -> dict:
    return {"order": order, "refunded": amount}

server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False, log_level="ERROR")
"""


def tell(what: str, ratio: float = 0, ours: str = "", raw: str = "", must: float = 0, goal: float = 0,
         least: bool = False) -> None:
    """Prints a row."""
    print(json.dumps({"what": what, "ours": ours, "raw": raw, "ratio": ratio, "must": must, "goal": goal,
                      "least": least}), flush=True)


def micros(seconds: float) -> str:
    """For people."""
    return f"{seconds * 1e6:.0f} µs"


class Turns:
    """Rounds of several sides, which take turns. A side returns seconds per call."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.sides: dict[str, Callable[[], float]] = {}
        self.took: dict[str, list[float]] = {}

    def run(self) -> None:
        """Runs them; the first round counts for nothing."""
        names = list(self.sides)
        for number in range(self.rounds + 1):
            for name in names:
                took = self.sides[name]()
                if number:
                    self.took.setdefault(name, []).append(took)
            names = names[1:] + names[:1]

    def ratio(self, one: str, other: str) -> float:
        """The median of the ratios within a round."""
        return statistics.median(a / b for a, b in zip(self.took[one], self.took[other], strict=True))

    def median(self, name: str) -> float:
        """Seconds per call."""
        return statistics.median(self.took[name])


def sequential(call: Callable[[], Any], count: int) -> float:
    """Seconds per call of one caller: the median."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def threads(call: Callable[[], Any], count: int, callers: int) -> float:
    """Seconds per call of many threads together."""
    def some() -> None:
        for _ in range(count // callers):
            call()

    all_of_them = [threading.Thread(target=some) for _ in range(callers)]
    began = time.perf_counter()
    for one in all_of_them:
        one.start()
    for one in all_of_them:
        one.join()
    return (time.perf_counter() - began) / (count // callers * callers)


async def tasks(call: Callable[[], Awaitable[Any]], count: int, callers: int) -> float:
    """Seconds per call of many tasks together."""
    async def some() -> None:
        for _ in range(count // callers):
            await call()

    began = time.perf_counter()
    await asyncio.gather(*[some() for _ in range(callers)])
    return (time.perf_counter() - began) / (count // callers * callers)


async def one_by_one(call: Callable[[], Awaitable[Any]], count: int) -> float:
    """Seconds per call of one task: the median."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


@contextlib.contextmanager
def child(program: str, *args: str, ready: str = "ready", environment: dict[str, str] | None = None) -> Iterator[Any]:
    """A program that runs meanwhile. Its standard input ends when it is to end."""
    process = subprocess.Popen([sys.executable, "-c", program, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, env={**os.environ, **(environment or {})})
    assert process.stdout is not None and process.stdin is not None
    try:
        if ready:
            assert process.stdout.readline().strip() == ready
        yield process
    finally:
        process.stdin.close()
        process.terminate()
        process.wait(30)
        process.stdout.close()


def clients(settings: argparse.Namespace) -> None:
    """Our client against nats-py's own requests."""
    import nats

    from toolmesh import AsyncMesh, Mesh

    loop = asyncio.new_event_loop()
    with child(RESPONDER, settings.url), Mesh(settings.url) as mesh:
        raw = loop.run_until_complete(nats.connect(settings.url))
        ours = AsyncMesh(settings.url)

        def plain(subject: str) -> Callable[[], Awaitable[Any]]:
            async def call() -> None:
                json.loads((await raw.request(subject, BODY, timeout=10)).data)
            return call

        def run(work: Any) -> float:
            return float(loop.run_until_complete(work))

        assert mesh.call(settings.go, ARGS) == mesh.call(settings.python, ARGS) == RESULT
        go, remote = f"tools.default.{settings.go}", mesh.tool(settings.go)
        turns = Turns(settings.rounds)
        turns.sides = {
            "raw go": lambda: run(one_by_one(plain(go), settings.calls)),
            "raw responder": lambda: run(one_by_one(plain("bench.python"), settings.calls)),
            "sync go": lambda: sequential(lambda: mesh.call(settings.go, ARGS), settings.calls),
            "remote go": lambda: sequential(lambda: remote(**ARGS), settings.calls),
            "sync python": lambda: sequential(lambda: mesh.call(settings.python, ARGS), settings.calls),
            "async go": lambda: run(one_by_one(lambda: ours.call(settings.go, ARGS), settings.calls)),
            "async python": lambda: run(one_by_one(lambda: ours.call(settings.python, ARGS), settings.calls)),
            "raw go 64": lambda: run(tasks(plain(go), 4 * settings.calls, CALLERS)),
            "async go 64": lambda: run(tasks(lambda: ours.call(settings.go, ARGS), 4 * settings.calls, CALLERS)),
            "sync go 64": lambda: threads(lambda: mesh.call(settings.go, ARGS), 4 * settings.calls, CALLERS),
        }
        turns.run()
        for name, one, other, must, goal in (
            ("sync call of a Go tool / raw nats-py request of it", "sync go", "raw go", 2.0, 1.3),
            ("call of a RemoteTool, a Go tool / raw nats-py request of it", "remote go", "raw go", 2.0, 1.3),
            ("async call of a Go tool / raw nats-py request of it", "async go", "raw go", 1.3, 1.1),
            ("sync call of a warm Python tool / nats-py to nats-py", "sync python", "raw responder", 2.0, 1.4),
            ("async call of a warm Python tool / nats-py to nats-py", "async python", "raw responder", 1.5, 1.2),
            ("64 async callers of a Go tool / nats-py's", "async go 64", "raw go 64", 1.5, 1.2),
            ("64 threads calling a Go tool / 64 nats-py tasks", "sync go 64", "raw go 64", 0, 2.0),
        ):
            tell("python: " + name, turns.ratio(one, other), micros(turns.median(one)), micros(turns.median(other)),
                 must, goal)
        settings.alone = turns.median("sync python")
        loop.run_until_complete(ours.close())
        loop.run_until_complete(raw.close())
    loop.close()


def memory(settings: argparse.Namespace) -> None:
    """100,000 calls and what they leave behind."""
    from toolmesh import AsyncMesh

    def resident() -> float:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    async def main() -> tuple[float, float]:
        async with AsyncMesh(settings.url) as mesh:
            await tasks(lambda: mesh.call(settings.go, ARGS), 10_000, CALLERS)
            gc.collect()
            before = resident()
            await tasks(lambda: mesh.call(settings.go, ARGS), settings.many, CALLERS)
            gc.collect()
            return before, resident()

    before, after = asyncio.run(main())
    tell(f"python: memory after {settings.many} calls / before", after / before, f"{after:.1f} MB", f"{before:.1f} MB",
         1.1, 1.02)


def host(settings: argparse.Namespace) -> None:
    """Our host against a plain nats-py responder."""
    import nats

    loop = asyncio.new_event_loop()
    environment = {"TOOLMESH_BINARY": str(pathlib.Path(__file__).resolve().parents[2] / "bin" / "mesh")}
    with child(RESPONDER, settings.url), child(HOST, settings.url, ready="", environment=environment):
        raw = loop.run_until_complete(nats.connect(settings.url))

        def plain(subject: str) -> Callable[[], Awaitable[Any]]:
            async def call() -> None:
                json.loads((await raw.request(subject, BODY, timeout=10)).data)
            return call

        async def ready() -> None:
            while True:
                with contextlib.suppress(nats.errors.Error):
                    await plain("tools.default.pyhost.refund")()
                    return
                await asyncio.sleep(0.05)

        loop.run_until_complete(asyncio.wait_for(ready(), 30))
        turns = Turns(settings.rounds)
        turns.sides = {
            name: lambda subject=subject: float(  # type: ignore[misc]
                loop.run_until_complete(tasks(plain(subject), 4 * settings.calls, CALLERS)))
            for name, subject in (("ours", "tools.default.pyhost.refund"), ("raw", "bench.python"))
        }
        turns.run()
        tell("python: calls/s served by a Python host, 64 callers / a nats-py responder",
             1 / turns.ratio("ours", "raw"), f"{1 / turns.median('ours'):.0f}/s",
             f"{1 / turns.median('raw'):.0f}/s", 0.35, 0.7, True)
        loop.run_until_complete(raw.close())
    loop.close()


def versus(settings: argparse.Namespace, name: str, alone: Callable[[], Any] | None,
           many: Callable[[int], float] | None, one: float, together: float, calls: int) -> None:
    """Rows of a peer: how many times faster a warm Python tool is."""
    from toolmesh import AsyncMesh, Mesh

    loop = asyncio.new_event_loop()
    with Mesh(settings.url) as mesh:
        if alone is not None:
            turns = Turns(3)
            turns.sides = {"ours": lambda: sequential(lambda: mesh.call(settings.python, ARGS), settings.calls),
                           "peer": lambda: sequential(alone, calls)}
            turns.run()
            tell(f"python: {name} / sync call of a warm Python tool, one caller", 1 / turns.ratio("ours", "peer"),
                 micros(turns.median("ours")), micros(turns.median("peer")), one / 2, one, True)
        if many is not None:
            ours = AsyncMesh(settings.url)
            turns = Turns(2)
            turns.sides = {
                "ours": lambda: float(loop.run_until_complete(
                    tasks(lambda: ours.call(settings.python, ARGS), 8 * settings.calls, CALLERS))),
                "peer": lambda: many(calls),
            }
            turns.run()
            tell(f"python: {name} / warm Python tool, 64 callers", 1 / turns.ratio("ours", "peer"),
                 micros(turns.median("ours")), micros(turns.median("peer")), together / 2, together, True)
            loop.run_until_complete(ours.close())
    loop.close()


def stores(settings: argparse.Namespace) -> None:
    """The stores library with the same function, in an environment of its own, as it runs remote indexes."""
    from stores.indexes import LocalIndex

    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "tools.toml").write_text('[index]\ntools = ["bill.refund"]\n')
        (pathlib.Path(folder) / "bill.py").write_text(
            "def refund(order: str, amount: int) -> dict:\n    return {'order': order, 'refunded': amount}\n")
        index = LocalIndex(folder, create_venv=True)

        def call() -> None:
            assert index.execute("bill.refund", ARGS) == RESULT

        versus(settings, "stores", call, lambda count: threads(call, max(count, CALLERS), CALLERS), 120, 400, 20)


def fastmcp(settings: argparse.Namespace) -> None:
    """A fastmcp server over HTTP, by its own client."""
    import socket

    from fastmcp import Client

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    loop = asyncio.new_event_loop()
    with child(HTTP, str(port), ready=""):
        client = Client(f"http://127.0.0.1:{port}/mcp")

        async def open_() -> None:
            for _ in range(200):
                try:
                    await client.__aenter__()
                    return
                except Exception:
                    await asyncio.sleep(0.1)
            raise RuntimeError("the fastmcp server does not answer")

        loop.run_until_complete(open_())

        async def call() -> None:
            await client.call_tool("refund", ARGS)

        versus(settings, "fastmcp over HTTP", lambda: loop.run_until_complete(call()),
               lambda count: float(loop.run_until_complete(tasks(call, count, CALLERS))), 8, 25, 320)
        loop.run_until_complete(client.__aexit__(None, None, None))
    loop.close()


def ray(settings: argparse.Namespace) -> None:
    """A Ray actor."""
    import ray as library

    library.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    @library.remote
    class Bill:
        def refund(self, order: str, amount: int) -> dict[str, Any]:
            return {"order": order, "refunded": amount}

    actor = Bill.remote()

    def many(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count // CALLERS):
            library.get([actor.refund.remote(**ARGS) for _ in range(CALLERS)])
        return (time.perf_counter() - began) / (count // CALLERS * CALLERS)

    try:
        versus(settings, "a Ray actor", lambda: library.get(actor.refund.remote(**ARGS)), many, 2.5, 6, 640)
    finally:
        library.shutdown()


def dspy(settings: argparse.Namespace) -> None:
    """Our DSPy tool against a dspy.Tool on a local function and one plain call."""
    import dspy as library

    from toolmesh import Mesh

    def refund(order: str, amount: int) -> dict[str, Any]:
        """Pay an order's amount back."""
        return {"order": order, "refunded": amount}

    with Mesh(settings.url) as mesh:
        local = library.Tool(refund)
        (ours,) = mesh.dspy_tools(settings.python)  # type: ignore[attr-defined]
        assert ours(**ARGS) == RESULT
        turns = Turns(settings.rounds)
        turns.sides = {
            "ours": lambda: sequential(lambda: ours(**ARGS), settings.calls),
            "local": lambda: sequential(lambda: (local(**ARGS), mesh.call(settings.python, ARGS)), settings.calls),
        }
        turns.run()
        tell("python: our DSPy tool / a dspy.Tool on a local function and a plain call", turns.ratio("ours", "local"),
             micros(turns.median("ours")), micros(turns.median("local")), 1.1, 1.0)


def main() -> None:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser()
    for name in ("url", "go", "python"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("parts", nargs="*")
    settings = parser.parse_args()
    for name, part, needs in (("clients", clients, ""), ("memory", memory, ""), ("host", host, ""),
                              ("dspy", dspy, "dspy"), ("stores", stores, "stores"), ("fastmcp", fastmcp, "fastmcp"),
                              ("ray", ray, "ray")):
        if settings.parts and name not in settings.parts:
            continue
        try:
            if needs:
                importlib.import_module(needs)
        except ImportError as failure:
            tell(f"python: {name} left out: {failure}")
            continue
        try:
            part(settings)
        except Exception as failure:
            tell(f"python: {name} failed: {type(failure).__name__}: {failure}")


if __name__ == "__main__":
    main()
