"""Event loops that the package makes for functions of its users. Under python -X dev asyncio checks what runs on them,
but does not report how long a step took: on a busy machine that says nothing of the step."""

from __future__ import annotations

import asyncio
import math
import typing

if typing.TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    T = typing.TypeVar("T")


def new() -> asyncio.AbstractEventLoop:
    """A new loop, which its caller closes."""
    loop = asyncio.new_event_loop()
    loop.slow_callback_duration = math.inf
    return loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """asyncio.run on such a loop."""
    async def main() -> T:
        asyncio.get_running_loop().slow_callback_duration = math.inf
        return await work

    return asyncio.run(main())
