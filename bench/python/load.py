"""Calls at a rate, for the sections "overload" and "slow": load.py URL RATE SECONDS TIMEOUT; tells what came of it."""

import asyncio
import json
import sys
import time

from toolmesh import AsyncMesh, MeshError


async def main() -> None:
    """Makes the calls."""
    url, rate, seconds, timeout = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    took: list[float] = []
    ended = {"Served": 0, "Late": 0, "Busy": 0, "Other": 0}

    async with AsyncMesh(servers=url) as mesh:
        async def call() -> None:
            began = time.monotonic()
            try:
                await mesh.call("load.load.work", timeout=timeout)
                ended["Served"] += 1
                took.append(time.monotonic() - began)
            except MeshError as failure:
                what = {"busy": "Busy", "deadline_exceeded": "Late"}.get(failure.code, "Other")
                ended[what] += 1
                if what == "Other":
                    print(failure, file=sys.stderr)

        async def learn() -> None:
            for _ in range(50):
                await call()

        await asyncio.gather(*(learn() for _ in range(2)))
        took.clear()
        ended.update(dict.fromkeys(ended, 0))
        began = time.monotonic()
        calls = []
        for number in range(rate * seconds):
            await asyncio.sleep(began + number / rate - time.monotonic())
            calls.append(asyncio.create_task(call()))
        lasted = time.monotonic() - began
        await asyncio.gather(*calls)
    took.sort()
    p99 = int(took[len(took) * 99 // 100] * 1e9) if took else 0
    print(json.dumps({**ended, "P99": p99, "Attempt": p99, "Else": p99, "Took": int(lasted * 1e9)}))


asyncio.run(main())
