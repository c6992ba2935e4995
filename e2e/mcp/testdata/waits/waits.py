"""A tool that shows whether it was cancelled."""

import asyncio
from pathlib import Path

from toolmesh import mesh


async def wait(path: str) -> str:
    """Waits for ten minutes. It makes the file PATH.begun, and PATH if it is cancelled."""
    Path(path + ".begun").touch()
    mesh.progress(0.5, "begun")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        Path(path).touch()
        raise
    return "done"
