"""Annotations that stay text."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .eager import Movie


@dataclass
class Node:
    value: int
    next: Node | None = None
    kin: list[Node] | None = None


class Left(t.TypedDict):
    right: Right | None


class Right(t.TypedDict):
    left: Left | None


def nodes(a: Node, b: Left, c: t.Optional[Node] = None) -> list[Node]: ...


def only_for_checkers(a: Sequence[int], b: Movie | None, c: int, d: list[Movie] = None) -> Movie: ...


def new_words(a: int | None, b: list[int] | str = "x", c: "int" = 1, *, d: t.Any = None) -> dict[str, int | None]: ...
