"""Tools for the tests of the Python client."""

import dataclasses
import datetime
import decimal
import pathlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

from toolmesh import MeshError, mesh


@dataclasses.dataclass
class Parcel:
    """What the post takes."""

    id: uuid.UUID
    sent: datetime.datetime
    weight: decimal.Decimal
    content: bytes
    tags: list[str]


def echo(value: Any) -> Any:
    """What it was given."""
    return value


def typed(parcel: Parcel, on: datetime.date, raw: bytes = b"") -> Parcel:
    """A parcel, a day later and with raw behind its content."""
    return dataclasses.replace(parcel, sent=parcel.sent + datetime.timedelta(days=1), content=parcel.content + raw,
                               tags=[*parcel.tags, on.isoformat()])


class Overdrawn(Exception):
    """An account has too little."""

    def __init__(self, account: str, lacking: int) -> None:
        self.account, self.lacking = account, lacking
        super().__init__(f"{account} lacks {lacking}")


def fails(account: str) -> None:
    """Fails, of a cause."""
    try:
        raise KeyError(account)
    except KeyError as cause:
        raise Overdrawn(account, 7) from cause


def endless(mark: str, pause: float = 0.001) -> Iterator[int]:
    """Counts until it is closed, and then writes the file mark."""
    number = 0
    try:
        while True:
            yield number
            number += 1
            if pause:
                time.sleep(pause)
    finally:
        pathlib.Path(mark).write_text(str(number))


def numbers(count: int, pause: float = 0) -> Iterator[int]:
    """The numbers from 0."""
    for number in range(count):
        yield number
        if pause:
            time.sleep(pause)


def many(count: int, size: int) -> Iterator[str]:
    """Texts of a size."""
    for number in range(count):
        yield f"{number}:" + "x" * size


def nested(tool: str, args: dict[str, Any]) -> str:
    """The name of the class and the code of what a call of another tool raises."""
    try:
        mesh.call(tool, args)
    except MeshError as failure:
        return f"{type(failure).__name__} {failure.code} {isinstance(failure, TimeoutError)}"
    return "fine"


def described(tool: str) -> str:
    """The description of another tool, or what is not known of it."""
    try:
        return str(mesh.describe(tool)["description"])
    except MeshError as failure:
        return f"{type(failure).__name__} {failure.details.get('nearest')}"


def ended(seconds: float, mark: str) -> str:
    """Sleeps; the file mark tells how it ended."""
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.01)
    except BaseException as failure:
        pathlib.Path(mark).write_text(type(failure).__name__)
        raise
    pathlib.Path(mark).write_text("slept")
    return "slept"


def size(text: str) -> int:
    """The length of a text."""
    return len(text)


def defaults(first: int, second: str = "two", *, third: float | None = None, **further: int) -> dict[str, Any]:
    """What it was called with.

    Args:
        first: The first one.
        second: The second one.
    """
    return {"first": first, "second": second, "third": third, **further}


def handed(value: Any) -> list[Any]:
    """The value, by a task that it hands in."""
    task = mesh.submit("rich.rich.echo", {"value": value})
    return [task.wait(), mesh.task(task.id).state()]


async def ahanded(value: Any) -> list[Any]:
    """As handed, in a coroutine."""
    task = await mesh.asubmit("rich.rich.echo", {"value": value})
    return [await task.wait(), await task.state()]
