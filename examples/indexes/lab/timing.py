"""Tools that take their time."""

import asyncio
import time


def slow(seconds: float = 10) -> str:
    """Block for a while; the index gives this tool two seconds.

    Args:
        seconds: How long to block.
    """
    time.sleep(seconds)
    return f"slept {seconds:g} s"


async def nap(seconds: float = 0.1) -> str:
    """Wait without blocking: many of these share one worker.

    Args:
        seconds: How long to wait.
    """
    await asyncio.sleep(seconds)
    return f"napped {seconds:g} s"
