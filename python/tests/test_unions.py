"""Which member of a union a value goes to."""

import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid
from typing import Annotated, Any, Literal, NewType, TypedDict

import pytest

from toolmesh._client.results import _typed
from toolmesh._worker.schemas import schema, shapes
from toolmesh._worker.schemas.binding import Tool
from toolmesh._worker.schemas.values import Mismatch


class Color(enum.Enum):
    RED = "red"


class Name(str):
    pass


class Dated(TypedDict):
    on: datetime.date


class Noted(TypedDict):
    on: str


@dataclasses.dataclass
class Blob:
    data: bytes


@dataclasses.dataclass
class Text:
    data: str


@dataclasses.dataclass
class Meeting:
    name: str
    on: datetime.date | None = None


@dataclasses.dataclass
class Person:
    name: str
    mail: str = ""


@dataclasses.dataclass
class Leaf:
    kids: "list[Leaf | Branch]"
    on: datetime.date


@dataclasses.dataclass
class Branch:
    kids: "list[Leaf | Branch]"
    on: datetime.date
    height: int = 0


UserName = NewType("UserName", str)
DAY = datetime.date(2026, 1, 31)


def load(annotation, value):
    def function(x):
        return x

    function.__annotations__["x"] = annotation
    tool = Tool("f", function, "sync", schema.signature(function))
    assert tool.described.warnings == []
    return tool.bind({"x": value})[1]["x"]


@pytest.mark.parametrize("annotation,value,wanted", [
    (str | bytes, "test", "test"),
    (bytes | str, "test", "test"),
    (bytes | UserName, "test", "test"),
    (bytes | Annotated[str, "text"] | None, "test", "test"),
    (bytes | (str | int), "test", "test"),
    (list[bytes | str], ["test"], ["test"]),
    (list[bytes] | list[str], ["test"], ["test"]),
    (list[list[bytes]] | list[list[str]], [["test"]], [["test"]]),
    (dict[str, bytes] | dict[str, str], {"a": "test"}, {"a": "test"}),
    (dict[datetime.date, int] | dict[str, int], {"2026-01-31": 1}, {"2026-01-31": 1}),
    (tuple[bytes, int] | tuple[str, int], ["test", 1], ("test", 1)),
    (Dated | Noted, {"on": "2026-01-31"}, {"on": "2026-01-31"}),
    (Blob | Text, {"data": "test"}, Text("test")),
    # A field that was not sent says nothing.
    (Meeting | Person, {"name": "a"}, Meeting("a")),
    (Person | Meeting, {"name": "a"}, Person("a")),
    (Person | Meeting, {"name": "a", "on": "2026-01-31"}, Meeting("a", DAY)),
    (Meeting | Person, {"name": "a", "mail": "b"}, Person("a", "b")),
    (dict[str, datetime.date] | dict[str, Any], {"a": "2026-01-31"}, {"a": "2026-01-31"}),
    (list[Dated] | list[Noted | int], [{"on": "2026-01-31"}], [{"on": "2026-01-31"}]),
    (Meeting | Person | None, {"name": "a", "on": "2026-01-31"}, Meeting("a", DAY)),
    (datetime.date | str, "2026-01-31", "2026-01-31"),
    (Name | datetime.date, "2026-01-31", DAY),
    (Name | pathlib.Path, "a", pathlib.Path("a")),
    (Name | Color, "red", Color.RED),
    (Name | datetime.date, "soon", Name("soon")),
    (datetime.datetime | str, "2026-01-31T00:00:00", "2026-01-31T00:00:00"),
    (uuid.UUID | str, "12345678-1234-5678-1234-567812345678", "12345678-1234-5678-1234-567812345678"),
    (pathlib.Path | str, "a", "a"),
    (decimal.Decimal | str, "1.5", "1.5"),
    (decimal.Decimal | str, 1.5, decimal.Decimal("1.5")),
    (Name | str, "a", "a"),
    (Color | str, "red", Color.RED),
    (Color | str, "blue", "blue"),
    (str | Color, "red", "red"),
    (Color | bytes | str, "red", Color.RED),
    (str | Literal["a", 1], 1, 1),
    # Without str, as ever.
    (bytes | int, "test", b"\xb5\xeb-"),
    (datetime.date | None, "2026-01-31", DAY),
    (datetime.datetime | datetime.date, "2026-01-31", DAY),
    (list[bytes] | dict[str, str], ["test"], [b"\xb5\xeb-"]),
    (bytes | Any, "test", b"\xb5\xeb-"),
    (str | list[datetime.date], ["2026-01-31"], [DAY]),
    # A set only of what it can hold.
    (set[int] | list[int], [3, 1, 3, 2], [3, 1, 3, 2]),
    (set[int] | list[int], [3, 1.0, 1], [3, 1, 1]),
    (set[int] | list[int], [3, 1, 2], {1, 2, 3}),
    (frozenset[tuple[int, int]] | list[list[int]], [[1, 2], [1, 2]], [[1, 2], [1, 2]]),
    (set[int | bool] | list[int | bool], [1, True], [1, True]),
], ids=str)
def test_a_text_goes_to_str_where_there_is_one(annotation, value, wanted):
    got = load(annotation, value)
    assert got == wanted and type(got) is type(wanted)
    if isinstance(got, (list, tuple)):
        assert [type(one) for one in got] == [type(one) for one in wanted]


def test_str_comes_before_conversions_of_pydantic():
    import pydantic

    assert load(pydantic.HttpUrl | str, "http://a.example/") == "http://a.example/"
    assert str(load(pydantic.HttpUrl | None, "http://a.example/")) == "http://a.example/"


@pytest.mark.parametrize("annotation,value,pointer,other", [
    (set, [1, True], "/x/1", "item 0"),
    (set[int | bool | str], ["1", 1, "a", True], "/x/3", "item 1"),
    (set[int], [2, 1, 1.0], "/x/2", "item 1"),
    (frozenset[bool | float], [0, False], "/x/1", "item 0"),
    (set[datetime.datetime], ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00"], "/x/1", "item 0"),
])
def test_a_set_loses_nothing(annotation, value, pointer, other):
    with pytest.raises(Mismatch) as caught:
        load(annotation, value)
    assert caught.value.pointer == pointer
    assert f"equals {other} in Python" in caught.value.message


def test_the_order_of_a_union_counts_for_a_result():
    """Unions of the same members are equal, whatever their order, which says what a text becomes."""
    class Color(str, enum.Enum):
        RED = "red"

    kinds = Color | str, str | Color, Color | str
    assert [type(_typed(b'"red"', kind, "t")) for kind in kinds] == [Color, str, Color]


def test_a_recursive_union_reads_a_value_once_more_for_each_level(monkeypatch):
    """A value that no member keeps is refused once by each union, not once for each way to it: 2^depth."""
    refused: list[Any] = []

    def described(value: Any) -> str:
        refused.append(value)
        return "refused"

    monkeypatch.setattr(shapes, "describe", described)
    value: Any = {"kids": [], "on": "2026-01-31"}
    wanted = Leaf([], DAY)
    for _ in range(10):
        value, wanted = {"kids": [value], "on": "2026-01-31"}, Leaf([wanted], DAY)
    assert load(Leaf | Branch, value) == wanted
    assert len(refused) < 10 * 10 * 10
