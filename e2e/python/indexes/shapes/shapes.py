# mypy: ignore-errors
# Annotations that are old, bare or missing are rows of the table, too.
"""One tool for each row of the table of stores' types; each gives back what it was given, as repr where JSON hides it."""

import enum
import typing
from typing import Any, Dict, List, Literal, Optional, Tuple, TypedDict, Union


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Person(TypedDict):
    name: str
    likes: Color
    hates: Color
    kind: Literal["a", "b"]
    tags: Tuple[str]


class Loose(TypedDict, total=False):
    name: str


class Tree(TypedDict):
    value: int
    children: "list[Tree]"


def text(bar: str):
    """Gives back a text.

    It has two paragraphs.
    """
    return bar


def integer(bar: int):
    return bar


def number(bar: float):
    return bar


def truth(bar: bool):
    return bar


def text_default(bar: str = "test"):
    return bar


def bare_default(bar="test"):
    return bar


def optional_default(bar: Optional[str] = "test"):
    return bar


def optional_none(bar: Optional[str] = None):
    return bar


def optional(bar: Optional[str]):
    return bar


def union(bar: Union[str, int]):
    return bar


def union_default(bar: Union[str, int] = "x"):
    return bar


def literal(bar: Literal["a", "b"]):
    return bar


def literal_default(bar: Literal["a", "b"] = "a"):
    return bar


def literal_integer(bar: Literal[1, 2]):
    return bar


def literals(bar: Union[Literal["a"], Literal["b"]]):
    return bar


def literal_list(bar: list[Literal[1, 2]]):
    return bar


def color(bar: Color):
    return repr(bar)


def color_default(bar: Color = Color.RED):
    return repr(bar)


def level(bar: Level):
    return repr(bar)


def mixed(bar: Mixed):
    return repr(bar)


def person(bar: Person):
    return repr(bar["likes"])


def loose(bar: Loose):
    return bar


def tree(bar: Tree) -> Tree:
    return bar


def integers(bar: List[int]):
    return bar


def nested(bar: list[list[int]]):
    return bar


def people(bar: list[Loose]):
    return bar


def bare_list(bar: list):
    return bar


def old_list(bar: List):
    return bar


def mapping(bar: dict):
    return bar


def old_mapping(bar: Dict):
    return bar


def counts(bar: dict[str, int]):
    return bar


def one_tuple(bar: Tuple[str]):
    return repr(bar)


def pair(bar: tuple[int, str]):
    return repr(bar)


def integers_tuple(bar: tuple[int, ...]):
    return repr(bar)


def either(bar: Union[Loose, Color]):
    return repr(bar)


def anything(bar: Any):
    return bar


def untyped(bar):
    return bar


def unique(bar: set[int]):
    return repr(bar)


def described(bar: typing.Annotated[int, "how many"]):
    return bar


def named(bar: int, **further: int):
    return further


def positional(bar: int, /, baz: int = 2):
    return [bar, baz]
