"""Work that takes a given time. It needs nothing but Python."""

import time
from collections.abc import Iterator


def echo(n: int, ms: int) -> int:
    """The number, after a time."""
    time.sleep(ms / 1000)
    return n


def count(n: int, ms: int) -> Iterator[int]:
    """The numbers below n, with a time before each."""
    for i in range(n):
        time.sleep(ms / 1000)
        yield i


def job(n: int, ms: int) -> int:
    """As echo, for durable tasks."""
    time.sleep(ms / 1000)
    return n
