"""What the conformance cases call: as an index, and served by host.py. The Go host of the suite has the same."""

import asyncio
import pathlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from toolmesh import mesh


def echo(value: Any) -> Any:
    return value


def add(a: int, b: int = 1) -> int:
    return a + b


def raw(data: bytes) -> bytes:
    return data[::-1]


def fail(message: str) -> None:
    raise ValueError(message)


def wait(seconds: float, mark: str = "", value: Any = None) -> Any:
    """Sleeps; the file mark says how it ended, where one is named."""
    how = "cut"
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.01)
        how = "slept"
    finally:
        if mark:
            pathlib.Path(mark).write_text(how)
    return value


async def count(to: int, pause: float = 0) -> AsyncIterator[int]:
    for number in range(to):
        yield number
        if pause:
            await asyncio.sleep(pause)


def breaks(after: int) -> Iterator[int]:
    yield from range(after)
    raise ValueError("broken")


def endless(mark: str) -> Iterator[int]:
    """Counts until it is closed, and then writes the file mark."""
    number = 0
    try:
        while True:
            yield number
            number += 1
            time.sleep(0.001)
    finally:
        pathlib.Path(mark).write_text("closed")


def unserializable() -> Any:
    return {"fine": 1, "bad": object()}


def big(size: int) -> str:
    return "x" * size


def once(mark: str) -> int:
    """How often it ran."""
    with pathlib.Path(mark).open("a") as file:
        file.write(".")
    return pathlib.Path(mark).stat().st_size


def optional(given: int | None) -> Any:
    return "null" if given is None else given


def nothing() -> None:
    pass


def nested(tool: str, args: dict[str, Any]) -> Any:
    return mesh.call(tool, args)


def relayed(tool: str, args: dict[str, Any]) -> Iterator[Any]:
    """The items of another tool's stream, each with what a call in between says."""
    for item in mesh.stream(tool, args):
        yield [item, mesh.call(tool.rpartition(".")[0] + ".add", {"a": item})]


def length(text: str) -> int:
    return len(text)
