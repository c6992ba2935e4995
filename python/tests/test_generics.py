"""Classes that stand for what they are given, and the classes below them."""

import dataclasses
import datetime
import enum
import sys
import typing
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import pytest

from tests import shaped
from toolmesh._worker.schemas.values import Mismatch

T = TypeVar("T")
U = TypeVar("U")


class Col(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class OBox(Generic[T]):
    v: T


@dataclasses.dataclass
class Sub(OBox[Col]):
    pass


@dataclasses.dataclass
class SubSub(Sub):
    n: int = 0


@dataclasses.dataclass
class Two(OBox[list[U]], Generic[T, U]):  # its T is not that of OBox
    t: "T"


@dataclasses.dataclass
class Kept(Two[int, datetime.date]):
    pass


class Colors(list[T]):
    pass


class Reds(Colors[Col]):
    pass


def of(annotation):
    tool = shaped.of(annotation)
    assert tool.described.warnings == []
    return tool


def load(annotation, value):
    return of(annotation).bind({"x": value})[1]["x"]


DAY = datetime.date(2026, 1, 31)


def test_fields_that_are_inherited_have_their_types():
    described = of(Sub).described.input_schema["properties"]["x"]
    assert described["properties"] == {"v": {"type": "string", "enum": ["red"]}}
    assert load(Sub, {"v": "red"}) == Sub(Col.RED)
    assert load(SubSub, {"v": "red", "n": 1.0}) == SubSub(Col.RED, 1)
    assert load(Kept, {"v": ["2026-01-31"], "t": 1.0}) == Kept([DAY], 1)
    assert load(Two[Col, int], {"v": [1.0], "t": "red"}) == Two([1], Col.RED)
    for annotation, value, pointer in (
        (Sub, {"v": "blue"}, "/x/v"),
        (SubSub, {"v": "blue"}, "/x/v"),
        (Kept, {"v": ["soon"], "t": 1}, "/x/v/0"),
    ):
        with pytest.raises(Mismatch) as caught:
            load(annotation, value)
        assert caught.value.pointer == pointer


def test_a_list_below_a_generic_list():
    made = load(Reds, ["red"])
    assert made == [Col.RED] and type(made) is Reds


def defaulted(name, default) -> Any:
    """A type variable with a default, as Python 3.13 and typing_extensions make it."""
    made: Any = TypeVar(name)  # type: ignore[misc]  # named by the caller
    if sys.version_info >= (3, 13):
        return TypeVar(name, default=default)
    made.has_default, made.__default__ = lambda: True, default
    return made


if typing.TYPE_CHECKING:
    V = TypeVar("V")
else:
    V = defaulted("V", Col)


@dataclasses.dataclass
class Plain(Generic[V]):
    v: V
    vs: list[V] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Below(Plain):  # type: ignore[type-arg]  # what is left out is the matter
    pass


def test_missing_type_arguments_have_their_default():
    for annotation in (Plain, Below):
        assert load(annotation, {"v": "red", "vs": ["red"]}) == annotation(Col.RED, [Col.RED])
        with pytest.raises(Mismatch) as caught:
            load(annotation, {"v": "red", "vs": ["blue"]})
        assert caught.value.pointer == "/x/vs/0"
    assert load(Plain[int], {"v": 1.0}) == Plain(1)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="type variables have no defaults in its syntax")
def test_aliases_are_completed_by_defaults():
    names: dict[str, Any] = {}
    exec("type Two[A, B=list[A]] = tuple[A, B]", names)
    assert load(names["Two"][int], [1.0, [2.0]]) == (1, [2])
    assert load(names["Two"][int, str], [1, "a"]) == (1, "a")
    with pytest.raises(Mismatch) as caught:
        load(names["Two"][int], [1, ["a"]])
    assert caught.value.pointer == "/x/1/0"


def test_attrs_classes_too():
    import attrs

    @attrs.define
    class Box(Generic[T]):
        v: T

    @attrs.define
    class Named(Box[Col]):
        n: int

    made = load(Named, {"v": "red", "n": 1})
    assert type(made) is Named and made.v is Col.RED


if sys.version_info >= (3, 11):

    class Pair(NamedTuple, Generic[T, U]):
        a: T
        b: U

    class IntPair(Pair[int, U]):
        pass

    class TDG(TypedDict, Generic[T]):
        day: T
        days: "list[T]"

    class TDS(TDG[datetime.date]):
        n: int

    class Link(TypedDict, Generic[T]):
        item: T
        next: "Link[T] | None"

    def test_named_tuples_and_typed_dicts():
        quoted: Any = IntPair[Literal["q"]]
        described = of(quoted).described.input_schema["properties"]["x"]["prefixItems"]
        assert described == [{"title": "a", "type": "integer"}, {"title": "b", "type": "string", "enum": ["q"]}]
        assert load(quoted, [1.0, "q"]) == IntPair(1, "q")
        assert load(TDS, {"day": "2026-01-31", "days": ["2026-01-31"], "n": 1}) == {"day": DAY, "days": [DAY], "n": 1}
        links = {"item": "2026-01-31", "next": {"item": "2026-01-31", "next": None}}
        assert load(Link[datetime.date], links) == {"item": DAY, "next": {"item": DAY, "next": None}}
        for annotation, value in ((quoted, [1, "r"]), (TDS, {"day": "soon", "days": [], "n": 1})):
            with pytest.raises(Mismatch):
                load(annotation, value)

    @dataclasses.dataclass
    class Chain:
        n: int
        next: typing.Self | None = None

    @dataclasses.dataclass
    class Longer(Chain):
        m: int = 0

    def test_self_is_the_class_it_stands_in():
        assert load(Chain, {"n": 1, "next": {"n": 2}}) == Chain(1, Chain(2))
        assert load(Longer, {"n": 1, "next": {"n": 2, "m": 3}}) == Longer(1, Longer(2, None, 3))
