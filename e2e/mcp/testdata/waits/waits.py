"""A tool that shows whether it was cancelled, and one with a large result."""

import asyncio
from pathlib import Path

from toolmesh import mesh


async def wait(path: str) -> str:
    """Waits for ten minutes. It makes the file PATH.begun, and PATH if it is cancelled."""
    try:  # a cancel may come as soon as the file is there, before the first await
        Path(path + ".begun").touch()
        mesh.progress(0.5, "begun")
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        Path(path).touch()
        raise
    return "done"


def large() -> list[str]:
    """Returns more than a model's context should get, and more than the Python SDK reads of an event: 1 MiB."""
    return ["a row of a large result"] * 50_000
