"""What the worker makes of functions: the schemas that render's tests begin with.

Prints worker.json. Run it again when the worker's schemas change:

    PYTHONPATH=python/src python3 tool/render/testdata/worker.py > tool/render/testdata/worker.json
"""

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import typing
import uuid
from typing import Annotated, Any, List, Literal, NamedTuple, NotRequired, Optional, TypedDict, Union

import pydantic
import pydantic.v1

from toolmesh._worker.schemas import schema


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flavour(str, enum.Enum):
    SWEET = "sweet"
    NONE = ""


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"
    TEXT_ONE = "1"


class Odd(enum.Enum):
    PAIR = (1, 2)
    OTHER = (3, 4)


class Movie(TypedDict):
    """A film.

    Args:
        title: as on the poster
    """

    title: str
    color: Color
    genre: Literal["drama", "comedy"]
    pair: tuple[str]


class Partial(TypedDict, total=False):
    a: int
    b: Optional[str]


class Marked(TypedDict):
    a: int
    b: NotRequired[str]


class Tree(TypedDict):
    name: str
    children: "list[Tree]"


class Left(TypedDict):
    right: "Optional[Right]"


class Right(TypedDict):
    left: "Optional[Left]"
    value: int


class Empty(TypedDict):
    pass


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5
    color: Color = Color.RED


@dataclasses.dataclass
class Node:
    value: int
    next: Optional["Node"] = None


class Pair(NamedTuple):
    a: int
    b: str = "x"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int = pydantic.Field(9, ge=0, le=9)


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    tricks: dict[str, int] = {}


class Owner(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=1)
    pet: Annotated[Union[Cat, Dog], pydantic.Field(discriminator="kind")]
    friends: "list[Owner]" = []


class OldAddress(pydantic.v1.BaseModel):
    street: str
    zip: Optional[str]


class OldPerson(pydantic.v1.BaseModel):
    name: str
    home: OldAddress = pydantic.v1.Field(..., description="where")


UserId = typing.NewType("UserId", int)
EMPTY = object()

# name: annotation, or (annotation, default)
PARAMETERS: dict[str, Any] = {
    "str": str, "int": int, "float": float, "bool": bool, "none": None,
    "str_default": (str, "x"), "unannotated_default": (EMPTY, "x"), "optional_default": (Optional[str], "x"),
    "optional_none": (Optional[str], None), "optional_required": Optional[str], "int_default": (int, 3),
    "union_str_int": Union[str, int], "union_null_first": Union[None, str, int],
    "union_default": (Union[str, int], "x"), "union_int_float": Union[int, float], "union_bool_str": Union[bool, str],
    "literal_str": Literal["a", "b"], "literal_str_default": (Literal["a", "b"], "a"), "literal_int": Literal[1, 2],
    "list_literal_int": list[Literal[1, 2]], "optional_literal_int": (Optional[Literal[1, 2]], None),
    "literal_true_one": Literal[True, 1], "literal_mixed": Literal["a", 1, None], "literal_empty": Literal["", "a"],
    "literal_collide": Literal["1", 1, True, "true", None, "null"],
    "union_literals": Union[Literal["a"], Literal["b"]], "union_literal_int": Union[Literal["auto"], int],
    "enum": Color, "enum_default": (Color, Color.RED), "int_enum": Level, "str_enum": Flavour, "mixed_enum": Mixed,
    "odd_enum": Odd, "typed_dict": Movie, "typed_dict_partial": Partial, "typed_dict_marked": Marked,
    "typed_dict_empty": Empty, "list_typed_dict": list[Movie], "optional_typed_dict": (Optional[Movie], None),
    "tree": Tree, "list_tree": list[Tree], "mutual": Left, "optional_tree": (Optional[Tree], None),
    "list_str": List[str], "list_int": List[int], "list_bool": List[bool], "list_float": List[float],
    "list_list": list[list[int]], "list_bare": list, "list_typing": List, "list_any": list[Any],
    "dict_bare": dict, "dict_int": dict[str, int], "dict_optional": (Optional[dict], None),
    "dict_nested": dict[str, dict[str, Movie]], "dict_of_int_keys": dict[int, str],
    "dict_of_literals": dict[Literal["a", "b"], int], "ordered": collections.OrderedDict[str, int],
    "tuple_one": tuple[str], "tuple_two": tuple[int, str], "tuple_same": tuple[float, float],
    "tuple_open": tuple[int, ...], "tuple_bare": tuple, "tuple_nested": tuple[tuple[int, str], tuple[str, int]],
    "union_dict_enum": Union[Movie, Color], "union_list_str": Union[list[int], str],
    "union_lists": Union[list[int], list[str]], "union_movie_point": Union[Movie, Point, None],
    "set": set, "set_str": set[str], "frozenset": frozenset[int], "bytes": bytes, "any": Any, "object": object,
    "annotated_text": Annotated[int, "how many"], "path": pathlib.Path, "date": datetime.date,
    "datetime": datetime.datetime, "time": datetime.time, "timedelta": datetime.timedelta, "uuid": uuid.UUID,
    "decimal": decimal.Decimal, "dataclass": Point, "node": Node, "optional_node": Optional[Node],
    "named_tuple": Pair, "new_type": UserId, "complex": complex, "custom": (object, None),
    "field": Annotated[int, pydantic.Field(ge=3, lt=10, multiple_of=2, description="a few")],
    "field_text": Annotated[str, pydantic.Field(min_length=1, max_length=5, pattern="^a")],
    "field_list": Annotated[list[int], pydantic.Field(min_length=1, max_length=3)],
    "cat": Cat, "dog": Dog, "owner": Owner, "old_person": OldPerson, "pets": list[Union[Cat, Dog]],
}


def one(annotation: Any, default: Any = EMPTY) -> Any:
    def function(x):
        """Does one thing."""

    if default is not EMPTY:
        function.__defaults__ = (default,)
    if annotation is not EMPTY:
        function.__annotations__["x"] = annotation
    return function


def nothing() -> None:
    """Takes nothing."""


def unannotated(a, b=1):
    pass


def everything(a, b=2, /, c=3, *rest: int, d: Optional[str], e=5, **more: Color) -> Tree:
    """Every kind of parameter.

    Args:
        a: the first
        c: "quoted"
        rest: numbers
    """


def free(**anything):
    pass


def unicode_names(größe: int, naïve_option: str = "ü", _: bool = False) -> dict[str, bytes]:
    pass


def many(
    query: str, limit: int = 10, *, since: Optional[datetime.date] = None, tags: list[str] = [],  # noqa: B006
    point: Point = Point(1), mode: Literal["fast", "exact"] = "fast", box: tuple[float, float] = (0.0, 1.0),
) -> list[Movie]:
    """Search.

    Args:
        query: what to look for
        limit: how many
    """


def stream(n: int) -> typing.Iterator[Movie]:
    yield {}


def unresolved(a: "Missing", b: int) -> "Gone":  # noqa: F821
    pass


FUNCTIONS = [nothing, unannotated, everything, free, unicode_names, many, stream, unresolved]


def main() -> None:
    made = {}
    for name, given in PARAMETERS.items():
        made[name] = one(*given) if isinstance(given, tuple) else one(given)
    made.update({function.__name__: function for function in FUNCTIONS})
    tools = []
    for name, function in made.items():
        found = schema.signature(function)
        tools.append({
            "name": name, "description": found.description, "input_schema": found.input_schema,
            "output_schema": found.output_schema, "warnings": found.warnings,
        })
    print("[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in tools) + "\n]")


if __name__ == "__main__":
    main()
