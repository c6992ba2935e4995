"""Compare version numbers with whatever `packaging` this index is locked to."""

from importlib.metadata import version as installed
from typing import TypedDict

from packaging.version import parse


class Newest(TypedDict):
    """The newest of some versions, and what decided it."""

    newest: str
    order: list[str]
    decided_by: str


def newest(candidates: list[str]) -> Newest:
    """The newest of some version numbers.

    `packaging` before 22 orders any text; from 22 on it raises InvalidVersion
    for what is no version by PEP 440, such as "2004d".

    Args:
        candidates: The version numbers, at least one.
    """
    if not candidates:
        raise ValueError("give at least one version")
    order = sorted(candidates, key=parse)
    return Newest(newest=order[-1], order=order, decided_by=f"packaging {installed('packaging')}")


def library() -> str:
    """The version of `packaging` that this index runs with."""
    return installed("packaging")
