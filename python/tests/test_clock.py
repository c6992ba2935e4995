"""What the client makes of the time that a node tells it."""

import asyncio
import time

import pytest

from toolmesh._client.clock import Clock

NOW = time.time() * 1000


@pytest.mark.parametrize(
    ("now", "bound"),
    [(None, 0), (1e308, 0), (float("nan"), 0), (-1, 1), (NOW, -1e15), (NOW, 1e308), (NOW, None)],
)
def test_nonsense_is_no_time(now: object, bound: object) -> None:
    async def said() -> dict[str, object]:
        return {"now_ms": now, "bound_ms": bound}

    clock = Clock()
    assert clock.asks()
    asyncio.run(clock.measure(said()))
    assert clock.deadline(5) is None
