"""Annotations that are evaluated when the module is imported."""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import math
import pathlib
import re
import sys
import typing
import uuid
from collections import abc, namedtuple
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import InitVar, dataclass, field
from datetime import timedelta
from ipaddress import IPv4Address
from typing import (
    Annotated, Any, ClassVar, Dict, Final, Generator, Iterable, List, Literal, NamedTuple, NewType, Optional, Tuple,
    TypedDict, TypeVar, Union,
)

from . import deep
from .deep import models as m
from .deep.models import *  # noqa: F403
from .deep.models import Size as Extent

LIMIT = 5 * 60
NAMES = ("a", "b")
SHARED = ["changed", "later"]
Text = Union[str, bytes]
UserId = NewType("UserId", int)
Row = Dict[str, Any]
N = TypeVar("N", bound=int)
Either = TypeVar("Either", int, str)
Pair = namedtuple("Pair", "left right", defaults=[1])
Spot = NamedTuple("Spot", [("x", int), ("y", "float")])
Options = TypedDict("Options", {"deep": bool, "how-far": int}, total=False)
Kind = enum.Enum("Kind", "ONE TWO")


class Color(enum.Enum):
    """Colors."""

    RED = "red"
    BLUE = "blue"
    CRIMSON = "red"

    @property
    def shown(self) -> str:
        return self.value.title()


class Level(enum.IntEnum):
    LOW = enum.auto()
    HIGH = LOW + 4


class Word(str, enum.Enum):
    A = "a"
    B = "b"


class Odd(enum.Enum):
    PAIR = (1, 2)
    OTHER = (3, 4)


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Point:
    """A place.

    Args:
        x: to the right
        y: upwards
    """

    x: int
    y: float = 0.5
    color: Color = Color.RED
    tags: List[str] = field(default_factory=list)
    note: str = field(default=None, metadata={"description": "what to know"})
    hidden: int = field(default=1, init=False)
    count: ClassVar[int] = 0
    seed: InitVar[int] = 3


@dataclasses.dataclass(repr=False)
class Solid(Point):
    """More than a point."""

    z: Optional["Solid"] = None


class Movie(TypedDict):
    """A film.

    Attributes:
        title: on the poster
    """

    title: str
    color: Color


class Sequel(Movie, total=False):
    of: "Movie"
    more: List["Sequel"]


class Tree(TypedDict):
    name: str
    children: "list[Tree]"


class Cell(NamedTuple):
    at: Point
    value: Optional[str] = None


class Name(str):
    pass


class Tags(List[str]):
    pass


class Custom:
    pass


def basic(a: int, b: str, c: float, d: bool, e: None, f: bytes, g: Any, h: object, i) -> None:
    """Short.

    More.

    Args:
        a: first
        b: second
    """


def defaults(
    a: int = -1, b: str = "x" "y", c: Optional[str] = None, d: float = 1e3, e=True, f: tuple = (1, 2), g: list = [1],  # noqa: B006
    h: Color = Color.BLUE, i: int = LIMIT, j: timedelta = timedelta(seconds=3), k: str = None, l: Any = len,
    m: int = 1 << 10, n: float = math.pi, o: dict = {"a": [None]}, p: pathlib.Path = pathlib.Path("/x"),  # noqa: B006
    q: tuple = NAMES, r: bytes = b"hi", s: decimal.Decimal = decimal.Decimal("1.5"), t: int = sys.maxsize,
    u: Level = Level.HIGH, v: object = Custom, w: frozenset = frozenset(), x: bool = not True,
) -> int:
    return 1


def times(
    a: datetime.date, b: datetime.datetime, c: datetime.time, d: timedelta, e: uuid.UUID, f: decimal.Decimal,
    g: pathlib.Path, h: re.Pattern, i: IPv4Address, j: "pathlib.PurePosixPath", k: re.Pattern[str],
) -> datetime.date: ...


def unions(
    a: Optional[int], b: Union[str, int], c: Union[None, str], d: "int | str | None", e: Text, f: Union[Literal["a"], Literal["b"]],
    g: Optional[Movie], h: Union[Movie, Color], i: Union[list[int], str],
) -> Optional[Movie]: ...


def choices(
    a: Literal["a", "b"], b: Literal[1, -2], c: Literal[True, 1, "x", None], d: List[Literal[1, 2]], e: Literal[b"hi"],
    f: Literal[Color.RED], g: Color, h: Level, i: Word, j: Odd, k: Mode, l: Kind = Kind.ONE,
) -> Color: ...


def containers(
    a: list, b: List, c: list[Any], d: List[List[int]], e: abc.Sequence[int], f: Iterable[str], g: set[int], h: frozenset,
    i: collections.deque, j: tuple, k: Tuple[int, str], l: tuple[int, ...], m: Tuple[()], n: dict, o: Dict, p: dict[str, int],
    q: dict[int, str], r: typing.Mapping[Color, int], s: collections.defaultdict[str, int], t: collections.OrderedDict,
    u: typing.MutableSet[str], v: dict[Literal["a", "b"], int], w: Row, x: List[Row],
) -> Dict[str, List[int]]: ...


def records(
    a: Point, b: Solid, c: Movie, d: Sequel, e: Tree, f: Cell, g: Pair, h: Spot, i: Options, j: Point = None,
) -> List[Solid]: ...


def notes(
    a: Annotated[int, "how many"], b: Annotated[Optional[str], {"description": "text", "maxLength": 3}],
    c: Annotated[Annotated[int, "inner"], "outer"], d: Final[int], e: List[Annotated[str, "each"]], f: "Annotated[int, 'quoted']",
) -> Annotated[int, "a number"]: ...


def others(
    a: UserId, b: N, c: Either, d: Name, e: Tags, f: Custom, g: Callable[[int], str], h: complex, i: type[int], j: abc.Sized,
    k: Point | None, l: "Missing", m: "list[Missing]", n: List["Missing"],  # type: ignore[name-defined]  # noqa: F821
) -> "Gone": ...  # type: ignore[name-defined]  # noqa: F821


def varied(a, b=2, /, c=3, *rest: int, d, e=5, **more: Color) -> None: ...


def from_elsewhere(
    a: m.Size, b: deep.models.Size, c: Extent, d: Shade, e: m.Alias, f: m.datetime.date,  # type: ignore[name-defined]  # noqa: F405
) -> m.Size: ...


def plain_return() -> Iterable[int]: ...


def generator(n: int) -> Iterator[Color]:
    """Numbers."""
    yield Color.RED


def full(n: int) -> Generator[str, None, int]:
    yield ""
    return 1


async def coroutine(n: int) -> Movie: ...


async def agenerator() -> AsyncIterator[Point]:
    """Points."""
    for _ in range(3):
        yield Point(1)


def inner_yield() -> int:
    def inner():
        yield 1

    return sum(inner())


@functools.lru_cache(maxsize=None)
def cached(a: int) -> int:
    """Kept."""
    return a


REGISTERED = []


def register(function):
    REGISTERED.append(function)
    return function


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def retried(times: int):
    def decorate(function):
        @functools.wraps(function)
        async def wrapper(*args, **kwargs):
            return await function(*args, **kwargs)

        return wrapper

    return decorate


@register
def registered(a: int, b: str = "x") -> int:
    """Registered."""


@register
@logged
def wrapped(a: int, b: Color) -> str:
    """Wrapped."""


@retried(times=3)
async def persistent(a: Movie) -> Movie:
    """Persistent."""


@typing.overload
def overloaded(a: int) -> int: ...
@typing.overload
def overloaded(a: str) -> str: ...
def overloaded(a):
    """One of two."""


alias = basic

if sys.version_info >= (3, 8):
    def newer(a: int) -> int: ...
else:
    def newer(a: str) -> str: ...

try:
    from typing import Awaitable
except ImportError:
    Awaitable = None


async def tried(a: int) -> Awaitable[int]: ...
