"""Tools that yield items."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import TypedDict


class Word(TypedDict):
    """One word and where it stands."""

    index: int
    word: str


def countdown(start: int = 3, pause: float = 0.2) -> Iterator[int]:
    """Count down to zero.

    Args:
        start: The first number.
        pause: Seconds between two numbers.
    """
    for number in range(start, -1, -1):
        yield number
        if number:
            time.sleep(pause)


async def words(text: str, pause: float = 0.05) -> AsyncIterator[Word]:
    """The words of a text, one by one.

    Args:
        text: The text to split.
        pause: Seconds between two words.
    """
    for index, word in enumerate(text.split()):
        if index:
            await asyncio.sleep(pause)
        yield Word(index=index, word=word)


def breaks(after: int = 2) -> Iterator[str]:
    """Yield some items, then fail.

    Args:
        after: How many items come before the failure.
    """
    for number in range(1, after + 1):
        yield f"item {number}"
    raise RuntimeError(f"broke after {after} items, as asked")
