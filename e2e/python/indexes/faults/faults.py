import asyncio
import os
import pathlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator

secret = "a private function of the module"


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exits(how: str) -> None:
    sys.exit(3) if how == "sys" else os._exit(4)


def floods(size: int) -> int:
    sys.stderr.write("x" * size)
    os.write(2, b"y" * size)
    print("z" * size)
    return size


def environment(name: str) -> str | None:
    """A variable as the tool sees it."""
    return os.environ.get(name)


def divides(by: int) -> float:
    return 1 / by


def meet(folder: str, name: str, others: int) -> int:
    """Waits until so many are in the folder."""
    pathlib.Path(folder, name).touch()
    while len(os.listdir(folder)) < others:
        time.sleep(0.01)
    return others


async def ameet(folder: str, name: str, others: int) -> int:
    pathlib.Path(folder, name).touch()
    while len(os.listdir(folder)) < others:
        await asyncio.sleep(0.01)
    return others


def nothing() -> Iterator[int]:
    yield from ()


def breaks(after: int) -> Iterator[int]:
    yield from range(after)
    raise ZeroDivisionError("in the middle")


async def later(n: int) -> int:
    return n


async def streams(n: int) -> AsyncIterator[int]:
    for one in range(n):
        yield one


def weird() -> set[int]:
    return {3}


def shout(text: str) -> str:
    print("on stdout")
    return text.upper()


def hidden() -> str:
    return secret
