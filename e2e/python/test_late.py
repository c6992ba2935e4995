"""What arrives after its time does not run."""

import asyncio
import os
import uuid

import pytest
from conftest import Started

import toolmesh
from toolmesh import AsyncMesh


def test_calls_delayed_by_the_network_do_not_run(rich: Started) -> None:
    """Once the client has been told the time, a call that arrives after its time is refused."""

    async def main() -> None:
        passes = asyncio.Event()
        passes.set()
        pipes = set()

        async def pipe(source: asyncio.StreamReader, to: asyncio.StreamWriter, held: bool) -> None:
            try:
                while data := await source.read(1 << 16):
                    if held:
                        await passes.wait()
                    to.write(data)
            finally:
                to.close()

        async def accept(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            host, port = rich.url.removeprefix("nats://").rsplit("@", 1)[-1].split(":")
            answers, requests = await asyncio.open_connection(host, int(port))
            for one in (pipe(source, requests, True), pipe(answers, to, False)):
                pipes.add(asyncio.ensure_future(one))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        between = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        mark = f"/tmp/mesh-e2e-{uuid.uuid4().hex}"
        async with AsyncMesh(between) as mesh:
            assert await mesh.call("rich.rich.size", {"text": "x"}, timeout=30) == 1
            link = mesh._links.here()
            while link._clock.deadline(0) is None:
                await asyncio.sleep(0.01)
            assert "Mesh-Deadline" in link.headers(mesh._call("rich.rich.size", None, 5, None, False, None, None))
            for _ in range(3):
                passes.clear()
                with pytest.raises(toolmesh.ToolTimeout):
                    await mesh.call("rich.rich.ended", {"seconds": 0, "mark": mark}, timeout=0.1)
                passes.set()  # a second after its time, for which the client has waited for an answer
                assert await mesh.call("rich.rich.size", {"text": "xy"}, timeout=30) == 2
            assert not os.path.exists(mark)
            assert await mesh.call("rich.rich.ended", {"seconds": 0, "mark": mark}, timeout=30)
            assert os.path.exists(mark)
            os.unlink(mark)
        server.close()
        for one in pipes:
            one.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)

    asyncio.run(main())
