"""From signatures to schemas, and from JSON values to what functions expect."""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import pathlib
import sys
import typing
import uuid
from collections import abc
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict, Union

import pytest
from typing_extensions import Unpack

from toolmesh._worker.schemas import schema, values
from toolmesh._worker.schemas.binding import Tool
from toolmesh._worker.schemas.values import Mismatch

EMPTY = object()


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


class Odd(enum.Enum):
    PAIR = (1, 2)
    OTHER = (3, 4)


class Movie(TypedDict):
    title: str
    color: Color


class Partial(TypedDict, total=False):
    a: int
    b: str


class Tree(TypedDict):
    name: str
    children: "list[Tree]"


class TwoOfOne(TypedDict):
    first: Color
    second: Color
    left: Movie
    right: Movie


@dataclasses.dataclass
class Point:
    """A place.

    Args:
        x: to the right
        y: upwards
    """

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


UserId = NewType("UserId", int)
T = typing.TypeVar("T", bound=int)


class Bounds:
    def __init__(self, **limits):
        self.__dict__.update(limits)


class Custom:
    pass


def of(annotation, default=EMPTY):
    """The schema and the conversion of one parameter."""

    def function(x):
        return x

    if default is not EMPTY:
        function.__defaults__ = (default,)
    function.__annotations__["x"] = annotation
    return Tool("f", function, "sync", schema.signature(function))


def property_of(tool):
    return tool.described.input_schema["properties"]["x"]


def load(tool, value):
    positional, keyword = tool.bind({"x": json.loads(json.dumps(value))})
    return tool.function(*positional, **keyword)


STRING, INTEGER, NUMBER, BOOLEAN, NULL = ({"type": kind} for kind in ("string", "integer", "number", "boolean", "null"))
MOVIE = {
    "type": "object",
    "properties": {"title": STRING, "color": {"type": "string", "enum": ["red", "blue"]}},
    "required": ["title", "color"],
    "additionalProperties": False,
}

# annotation, schema, [(JSON value, Python value)]
CONFORMANCE = [
    (str, STRING, [("a", "a")]),
    (int, INTEGER, [(1, 1), (1.0, 1)]),
    (float, NUMBER, [(1.5, 1.5), (1, 1.0)]),
    (bool, BOOLEAN, [(True, True)]),
    (None, NULL, [(None, None)]),
    (Any, {}, [([1, "a", None], [1, "a", None])]),
    (object, {}, [({"a": 1}, {"a": 1})]),
    (Optional[str], {"anyOf": [STRING, NULL]}, [("a", "a"), (None, None)]),
    (Union[str, int], {"anyOf": [STRING, INTEGER]}, [("1", "1"), (1, 1)]),
    (Union[int, float], {"anyOf": [INTEGER, NUMBER]}, [(1, 1), (1.5, 1.5)]),
    (Union[bool, int], {"anyOf": [BOOLEAN, INTEGER]}, [(True, True), (1, 1)]),
    (Union[None, str, int], {"anyOf": [NULL, STRING, INTEGER]}, [(None, None), (3, 3)]),
    (Union[Literal["a"], Literal["b"]], {"type": "string", "enum": ["a", "b"]}, [("a", "a"), ("b", "b")]),
    (Union[list[int], str], {"anyOf": [{"type": "array", "items": INTEGER}, STRING]}, [([1.0], [1]), ("x", "x")]),
    (Union[datetime.date, str], {"anyOf": [{"type": "string", "format": "date"}, STRING]},
     [("2026-01-31", "2026-01-31"), ("soon", "soon")]),
    (Union[Movie, Color], {"anyOf": [MOVIE, {"type": "string", "enum": ["red", "blue"]}]},
     [("red", Color.RED), ({"title": "t", "color": "blue"}, {"title": "t", "color": Color.BLUE})]),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, [("b", "b")]),
    (Literal[1, 2], {"type": "integer", "enum": [1, 2]}, [(2, 2), (2.0, 2)]),
    (Literal[True, 1, "a", None], {"type": ["boolean", "integer", "string", "null"], "enum": [True, 1, "a", None]},
     [(True, True), (1, 1), (None, None)]),
    (list[Literal[1, 2]], {"type": "array", "items": {"type": "integer", "enum": [1, 2]}}, [([1, 2], [1, 2])]),
    (Color, {"type": "string", "enum": ["red", "blue"]}, [("red", Color.RED)]),
    (Level, {"type": "integer", "enum": [1, 2]}, [(2, Level.HIGH)]),
    (Mixed, {"type": ["integer", "string"], "enum": [1, "two"]}, [(1, Mixed.ONE), ("two", Mixed.TWO)]),
    (Odd, {"type": "string", "enum": ["PAIR", "OTHER"]}, [("PAIR", Odd.PAIR)]),
    (list, {"type": "array", "items": {}}, [([1, "a"], [1, "a"])]),
    (typing.List, {"type": "array", "items": {}}, [([1], [1])]),
    (list[Any], {"type": "array", "items": {}}, [([1], [1])]),
    (list[list[int]], {"type": "array", "items": {"type": "array", "items": INTEGER}}, [([[1.0]], [[1]])]),
    (typing.List[str], {"type": "array", "items": STRING}, [(["a"], ["a"])]),
    (abc.Sequence[int], {"type": "array", "items": INTEGER}, [([1.0], [1])]),
    (typing.Iterable[str], {"type": "array", "items": STRING}, [(["a"], ["a"])]),
    (set[int], {"type": "array", "items": INTEGER, "uniqueItems": True}, [([1, 2], {1, 2})]),
    (frozenset, {"type": "array", "items": {}, "uniqueItems": True}, [(["a"], frozenset("a"))]),
    (collections.deque, {"type": "array", "items": {}}, [([1], collections.deque([1]))]),
    (tuple, {"type": "array", "items": {}}, [([1, "a"], (1, "a"))]),
    (typing.Tuple, {"type": "array", "items": {}}, [([1], (1,))]),
    (tuple[int, str], {"type": "array", "prefixItems": [INTEGER, STRING], "items": False, "minItems": 2, "maxItems": 2},
     [([1, "a"], (1, "a"))]),
    (tuple[int, ...], {"type": "array", "items": INTEGER}, [([1, 2, 3], (1, 2, 3))]),
    (dict, {"type": "object", "additionalProperties": True}, [({"a": 1}, {"a": 1})]),
    (typing.Dict, {"type": "object", "additionalProperties": True}, [({"a": 1}, {"a": 1})]),
    (dict[str, int], {"type": "object", "additionalProperties": INTEGER}, [({"a": 1.0}, {"a": 1})]),
    (dict[int, str],
     {"type": "object", "additionalProperties": STRING, "propertyNames": {"pattern": "^(0|-?[1-9][0-9]*)$"}},
     [({"1": "a"}, {1: "a"})]),
    (abc.Mapping[str, Color], {"type": "object", "additionalProperties": {"type": "string", "enum": ["red", "blue"]}},
     [({"a": "red"}, {"a": Color.RED})]),
    (Movie, MOVIE, [({"title": "t", "color": "red"}, {"title": "t", "color": Color.RED})]),
    (list[Movie], {"type": "array", "items": MOVIE},
     [([{"title": "t", "color": "red"}], [{"title": "t", "color": Color.RED}])]),
    (Optional[Movie], {"anyOf": [MOVIE, NULL]}, [(None, None)]),
    (TwoOfOne, None, [({"first": "red", "second": "blue", "left": {"title": "l", "color": "red"},
                        "right": {"title": "r", "color": "blue"}},
                       {"first": Color.RED, "second": Color.BLUE, "left": {"title": "l", "color": Color.RED},
                        "right": {"title": "r", "color": Color.BLUE}})]),
    (Partial, {"type": "object", "properties": {"a": INTEGER, "b": STRING}, "additionalProperties": False},
     [({}, {}), ({"a": 1.0}, {"a": 1})]),
    (Pair, {"type": "array", "prefixItems": [{"type": "integer", "title": "a"}, {"type": "string", "title": "b"}],
            "items": False, "minItems": 1, "maxItems": 2}, [([1], Pair(1)), ([1, "y"], Pair(1, "y"))]),
    (bytes, {"type": "string", "contentEncoding": "base64"}, [("aGk=", b"hi")]),
    (datetime.date, {"type": "string", "format": "date"}, [("2026-01-31", datetime.date(2026, 1, 31))]),
    (datetime.datetime, {"type": "string", "format": "date-time"},
     [("2026-01-31T12:00:00Z", datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc))]),
    (datetime.time, {"type": "string", "format": "time"}, [("12:30:00", datetime.time(12, 30))]),
    (datetime.timedelta, {"type": "number", "description": "seconds"}, [(1.5, datetime.timedelta(seconds=1.5))]),
    (uuid.UUID, {"type": "string", "format": "uuid"},
     [("12345678123456781234567812345678", uuid.UUID(int=0x12345678123456781234567812345678))]),
    (pathlib.Path, {"type": "string", "format": "path"}, [("/a/b", pathlib.Path("/a/b"))]),
    (decimal.Decimal, {"anyOf": [NUMBER, STRING]}, [("1.10", decimal.Decimal("1.10")), (1.5, decimal.Decimal("1.5"))]),
    (UserId, INTEGER, [(1.0, 1)]),
    (T, INTEGER, [(1, 1)]),
    (Annotated[int, "how many"], {"type": "integer", "description": "how many"}, [(1.0, 1)]),
    (Annotated[int, Bounds(ge=1, lt=10, description="few")],
     {"type": "integer", "minimum": 1, "exclusiveMaximum": 10, "description": "few"}, [(1, 1)]),
    (Annotated[str, Bounds(min_length=1, pattern="^a")],
     {"type": "string", "minLength": 1, "pattern": "^a"}, [("a", "a")]),
    (Annotated[list[int], Bounds(max_length=3)], {"type": "array", "items": INTEGER, "maxItems": 3}, [([1], [1])]),
]


@pytest.mark.parametrize("annotation,expected,pairs", CONFORMANCE, ids=lambda value: str(value)[:60])
def test_conformance(annotation, expected, pairs):
    tool = of(annotation)
    if expected is not None:
        assert property_of(tool) == expected
    assert tool.described.input_schema["required"] == ["x"]
    assert tool.described.input_schema["additionalProperties"] is False
    assert tool.described.warnings == []
    for raw, wanted in pairs:
        got = load(tool, raw)
        assert got == wanted
        assert type(got) is type(wanted)
    json.dumps(tool.described.input_schema, allow_nan=False)


@pytest.mark.parametrize("annotation,value,at", [
    (Color, "green", "/x"),
    (list[Color], ["red", "green"], "/x/1"),
    (Movie, {"title": "t", "color": "green"}, "/x/color"),
    (dict[str, Color], {"a/b": "green"}, "/x/a~1b"),
    (int, "one", "/x"),
    (int, 1.5, "/x"),
    (float, "1", "/x"),
    (bytes, "no base64!", "/x"),
    (datetime.date, "yesterday", "/x"),
    (uuid.UUID, "no", "/x"),
    (decimal.Decimal, "x", "/x"),
    (tuple[int, str], [1], "/x"),
    (Point, {"y": 1}, "/x/x"),
    (Point, {"x": 1, "z": 1}, "/x/z"),
    (Union[int, Color], "green", "/x"),
    (dict[int, str], {"a": "b"}, "/x/a"),
    (Pair, [1, "a", 2], "/x"),
], ids=str)
def test_misfitting_values_are_refused_with_their_place(annotation, value, at):
    with pytest.raises(Mismatch) as caught:
        load(of(annotation), value)
    assert caught.value.pointer == at
    assert caught.value.expected and caught.value.got and caught.value.message


def test_a_class_as_a_tool_gives_one_of_itself():
    # What its __init__ returns is None, and none of a call's business.
    found = schema.signature(Point)
    assert found.output_schema is not None and found.output_schema["properties"].keys() == {"x", "y", "color"}
    assert schema.signature(functools.partial(Point, 1)).output_schema == found.output_schema


def test_dataclass():
    tool = of(Point)
    assert property_of(tool) == {
        "type": "object",
        "properties": {
            "x": {"type": "integer", "description": "to the right"},
            "y": {"type": "number", "description": "upwards", "default": 0.5},
            "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        },
        "required": ["x"],
        "additionalProperties": False,
    }
    assert load(tool, {"x": 1.0, "color": "blue"}) == Point(1, 0.5, Color.BLUE)


@pytest.mark.parametrize("annotation,value,wanted", [
    (Tree, {"name": "a", "children": [{"name": "b", "children": []}]},
     {"name": "a", "children": [{"name": "b", "children": []}]}),
    (Node, {"value": 1, "next": {"value": 2}}, Node(1, Node(2))),
    (list[Tree], [{"name": "a", "children": []}], [{"name": "a", "children": []}]),
], ids=str)
def test_recursive_types_refer_to_themselves(annotation, value, wanted):
    tool = of(annotation)
    text = json.dumps(tool.described.input_schema)
    assert '"$ref": "#/$defs/' in text and "$defs" in tool.described.input_schema
    assert load(tool, value) == wanted


def test_recursive_return_type():
    def function() -> Tree:
        return {"name": "a", "children": []}

    output = schema.signature(function).output_schema
    assert output is not None
    assert output["$ref"] == "#/$defs/Tree"
    assert output["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


def test_parameters_without_a_default_are_required():
    def function(a, b: Optional[str], c: Optional[str] = None, d: int = 3, *, e: Color = Color.BLUE):
        pass

    made = schema.signature(function).input_schema
    assert made["required"] == ["a", "b"]
    assert made["properties"]["a"] == {}
    assert made["properties"]["c"] == {"anyOf": [STRING, NULL], "default": None}
    assert made["properties"]["d"] == {"type": "integer", "default": 3}
    assert made["properties"]["e"]["default"] == "blue"


def test_a_default_that_json_cannot_carry_is_left_out():
    def function(a=Custom(), b=float("nan"), c: Any = len):  # noqa: B008 - never called
        pass

    assert all("default" not in one for one in schema.signature(function).input_schema["properties"].values())


def test_null_and_absent_are_different():
    def function(x: Optional[str] = "default"):
        return x

    tool = Tool("f", function, "sync", schema.signature(function))
    for given, wanted in (({}, "default"), ({"x": None}, None), ({"x": "a"}, "a")):
        positional, keyword = tool.bind(given)
        assert function(*positional, **keyword) == wanted


def test_unresolved_names_cost_only_their_own_parameter():
    # Names that do not exist are what this is about.
    def function(a: "Missing", b: int, c: "list[AlsoMissing]" = None) -> "Gone":  # type: ignore[name-defined, assignment]  # noqa: F821
        pass

    found = schema.signature(function)
    assert found.input_schema["properties"] == {"a": {}, "b": INTEGER, "c": {"default": None}}
    assert len(found.warnings) == 3
    assert found.output_schema is None


@pytest.mark.parametrize("annotation", [Custom, abc.Callable[[int], int], complex, type[int]], ids=str)
def test_types_without_json_are_open_with_a_warning(annotation):
    tool = of(annotation)
    assert property_of(tool) == {}
    assert len(tool.described.warnings) == 1


def test_an_annotation_that_is_a_text_of_a_text():
    # What `from __future__ import annotations` makes of x: "int".
    tool = of("'Optional[int]'")
    assert property_of(tool) == {"anyOf": [INTEGER, NULL]} and tool.described.warnings == []
    endless = of("endless")
    endless.function.__globals__["endless"] = "endless"
    found = schema.signature(endless.function)
    assert found.input_schema["properties"]["x"] == {} and len(found.warnings) == 1
    del endless.function.__globals__["endless"]


def test_typed_dict_markers():
    if sys.version_info >= (3, 11):
        from typing import NotRequired, Required
    else:
        from typing_extensions import NotRequired, Required

    class Marked(TypedDict):
        a: int
        b: NotRequired[str]

    assert property_of(of(Marked))["required"] == ["a"]

    class Child(Marked, total=False):
        c: int
        d: Required[int]

    assert sorted(property_of(of(Child))["required"]) == ["a", "d"]


def varied(a, b=2, /, c=3, *rest: int, d, e=5, **more: Color):
    return a, b, c, rest, d, e, more


@pytest.mark.parametrize("given,extra,wanted", [
    ({"a": 1, "d": 4}, None, (1, 2, 3, (), 4, 5, {})),
    ({"a": 1, "d": 4, "c": 9, "x": "red"}, None, (1, 2, 9, (), 4, 5, {"x": Color.RED})),
    ({"a": 1, "d": 4}, [7, 8], (1, 2, 3, (7, 8), 4, 5, {})),
    ({"a": 1, "d": 4, "rest": [7.0]}, None, (1, 2, 3, (7,), 4, 5, {})),
    ({"a": 1, "d": 4, "rest": [7]}, [8], (1, 2, 3, (7, 8), 4, 5, {})),
])
def test_every_kind_of_parameter_is_bound(given, extra, wanted):
    tool = Tool("f", varied, "sync", schema.signature(varied))
    positional, keyword = tool.bind(given, extra)
    assert varied(*positional, **keyword) == wanted


def test_every_kind_of_parameter_is_described():
    made = schema.signature(varied).input_schema
    assert made["required"] == ["a", "d"]
    assert made["properties"]["rest"] == {"type": "array", "items": INTEGER}
    assert made["additionalProperties"] == {"type": "string", "enum": ["red", "blue"]}
    assert "more" not in made["properties"]


def test_surplus_positional_arguments_are_refused():
    def function(a):
        pass

    tool = Tool("f", function, "sync", schema.signature(function))
    with pytest.raises(Mismatch):
        tool.bind({"a": 1}, [2])


def test_output_schema_of_streams_is_that_of_an_item():
    def generator() -> typing.Iterator[int]:
        yield 1

    async def agenerator() -> typing.AsyncIterator[Movie]:
        yield {"title": "t", "color": Color.RED}

    def full() -> typing.Generator[str, None, int]:
        yield ""
        return 1

    def plain() -> typing.Iterable[int]:
        return [1]

    def nothing() -> None:
        pass

    assert schema.signature(generator).output_schema == INTEGER
    assert schema.signature(agenerator).output_schema == MOVIE
    assert schema.signature(full).output_schema == STRING
    assert schema.signature(plain).output_schema == {"type": "array", "items": INTEGER}
    assert schema.signature(nothing).output_schema == NULL


def test_kinds():
    async def coroutine():
        pass

    async def agenerator():
        yield

    def generator():
        yield

    class Object:
        async def __call__(self):
            pass

    assert schema.kind_of(len) == "sync"
    assert schema.kind_of(coroutine) == "async"
    assert schema.kind_of(agenerator) == "async_generator"
    assert schema.kind_of(generator) == "generator"
    assert schema.kind_of(functools.partial(coroutine)) == "async"
    assert schema.kind_of(Object()) == "async"


def test_partials_and_wrappers_show_what_is_left():
    def function(a: int, b: Color):
        """Does it."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    assert list(schema.signature(functools.partial(function, 1)).input_schema["properties"]) == ["b"]
    assert schema.signature(wrapper).input_schema["properties"]["b"]["enum"] == ["red", "blue"]
    assert schema.signature(wrapper).description == "Does it."


def test_descriptions_come_from_the_docstring_and_annotated_wins():
    def function(a: int, b: Annotated[int, "from Annotated"], c: datetime.timedelta):
        """Short.

        Long.

        Args:
            a: from the docstring
            b: not this one
            c: how long

        Returns:
            nothing
        """

    found = schema.signature(function)
    assert found.description == "Short.\n\nLong."
    assert found.input_schema["properties"]["a"]["description"] == "from the docstring"
    assert found.input_schema["properties"]["b"]["description"] == "from Annotated"
    assert found.input_schema["properties"]["c"]["description"] == "how long (seconds)"


def test_declared_bytes_travel_as_base64_and_others_say_what_they_are():
    def declared() -> dict[str, bytes]:
        return {"a": b"hi"}

    def undeclared():
        return {"a": b"hi"}

    def optional() -> Optional[bytes]:
        return None

    def encode(function):
        return Tool("f", function, "sync", schema.signature(function)).encode(function())

    assert encode(declared) == b'{"a":"aGk="}'
    assert encode(undeclared) == b'{"a":{"$bytes":"aGk="}}'
    assert encode(optional) == b"null"


def test_pydantic_models_bring_their_own_schema():
    import pydantic

    class Inner(pydantic.BaseModel):
        n: int

    class Model(pydantic.BaseModel):
        name: str = pydantic.Field(description="who", min_length=1)
        inner: list[Inner] = []

    tool = of(Model)
    made = property_of(tool)
    assert made["properties"]["name"]["description"] == "who"
    assert made["properties"]["inner"]["items"] == {"$ref": "#/$defs/Inner"}
    assert "Inner" in tool.described.input_schema["$defs"]
    assert load(tool, {"name": "a", "inner": [{"n": 1}]}) == Model(name="a", inner=[Inner(n=1)])
    with pytest.raises(Mismatch) as caught:
        load(tool, {"name": "a", "inner": [{"n": "x"}]})
    assert caught.value.pointer == "/x/inner/0/n"
    assert values.encode(Model(name="a")) == b'{"name":"a","inner":[]}'

    def field(x: Annotated[int, pydantic.Field(ge=3, description="three or more")]):
        pass

    assert schema.signature(field).input_schema["properties"]["x"] == {
        "type": "integer", "minimum": 3, "description": "three or more",
    }


@functools.singledispatch
def _dispatched(x: int, y: int = 1) -> list[int]:
    return [x, y]


class _Method:
    @functools.singledispatchmethod
    def dispatched(self, x: int, y: int = 1) -> list[int]:
        return [x, y]

    @dispatched.register
    def _(self, x: str, y: int = 1) -> list[int]:
        return [len(x) * y]

    @functools.singledispatchmethod
    @staticmethod
    def static(x: int, y: int = 1) -> list[int]:
        return [x, y]


def _by_position(function: typing.Callable[..., Any]) -> typing.Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@_by_position
def _positional(x: int, y: int = 2) -> list[int]:
    return [x, y]


@functools.lru_cache
def _cached(x: int, y: int = 2) -> list[int]:
    return [x, y]


@pytest.mark.parametrize(("function", "arguments", "result"), [
    (_dispatched, {"x": 3}, [3, 1]),
    (_dispatched, {"x": 3, "y": 4}, [3, 4]),
    (_Method().dispatched, {"x": 3}, [3, 1]),
    (_Method().dispatched, {"y": 2, "x": 3}, [3, 2]),
    (_Method().static, {"y": 2, "x": 3}, [3, 2]),
    (_positional, {"x": 3}, [3, 2]),
    (_positional, {"y": 4, "x": 3}, [3, 4]),
    (_cached, {"x": 3}, [3, 2]),
])
def test_decorators_that_take_no_names(
    function: typing.Callable[..., Any], arguments: dict[str, Any], result: list[int]
) -> None:
    tool = Tool("t", function, schema.kind_of(function), schema.signature(function))
    positional, keyword = tool.bind(arguments)
    assert function(*positional, **keyword) == result


def _add(x: int, y: int, *, z: int = 1) -> list[int]:
    return [x, y, z]


def _wrapping(made: typing.Callable[..., Any]) -> typing.Callable[..., Any]:
    return functools.update_wrapper(made, _add)


@_wrapping
def _one_less(x):
    return _add(x, 10)


@_wrapping
def _one_more(x: int, y: int, times: int, *, z: int = 1) -> list[int]:
    return _add(x, y, z=z) * times


class Adder:
    def __call__(self, x: int, y: int = 10) -> list[int]:
        return [x, y, 1]

    def bound(self, x: int, y: int = 10) -> list[int]:
        return [x, y, 1]

    half = functools.partialmethod(bound, y=10)

    @classmethod
    def of_class(cls, x: int, y: int = 10) -> list[int]:
        return [x, y, 1]

    @staticmethod
    def static(x: int, y: int = 10) -> list[int]:
        return [x, y, 1]


@pytest.mark.parametrize("function", [
    _wrapping(functools.partial(_add, y=10)),
    _wrapping(functools.partial(_wrapping(functools.partial(_add, z=1)), y=10)),
    functools.wraps(_wrapping(functools.partial(_add, y=10)))(lambda *a, **k: functools.partial(_add, y=10)(*a, **k)),
    _one_less, Adder(), Adder().bound, Adder().half, Adder.of_class, Adder.static,
    functools.lru_cache(functools.partial(_add, y=10)), functools.partial(Adder(), y=10),
    functools.partial(functools.partial(_add, y=10), z=1),
], ids=lambda one: getattr(one, "__qualname__", type(one).__name__))
def test_a_callable_takes_the_parameters_that_it_shows(function: typing.Callable[..., Any]) -> None:
    found = schema.signature(function)
    assert found.input_schema["required"] == ["x"]
    assert found.input_schema["properties"]["x"]["type"] == "integer"
    tool = Tool("t", function, schema.kind_of(function), found)
    positional, keyword = tool.bind({"x": 3})
    assert function(*positional, **keyword) == [3, 10, 1]


def test_a_wrapper_with_a_parameter_more_shows_it() -> None:
    assert schema.signature(_one_more).input_schema["required"] == ["x", "y", "times"]
    assert schema.signature(_one_more).output_schema == {"type": "array", "items": {"type": "integer"}}


def test_hidden_signatures_are_reported() -> None:
    def hidden(*args, **kwargs):
        """Does it."""

    def fields(**fields: str) -> None:
        """Takes what it is given."""

    assert "functools.wraps" in schema.signature(hidden).warnings[0]
    assert schema.signature(fields).warnings == []


def test_callers_write_the_alias() -> None:
    import pydantic

    def renamed(x: Annotated[int, pydantic.Field(alias="user-id")], y: int = pydantic.Field(2, validation_alias="Y"),
                *, z: Annotated[str, pydantic.Field(alias="x")] = "", **rest: int) -> list[Any]:
        """Has names that Python would not.

        Args:
            x: Who it is.
        """
        return [x, y, z, rest]

    found = schema.signature(renamed)
    assert list(found.input_schema["properties"]) == ["user-id", "Y", "z"]
    assert found.as_dict("t", "sync")["positional"] == ["user-id", "Y"]
    assert found.input_schema["required"] == ["user-id"]
    assert found.input_schema["properties"]["user-id"]["description"] == "Who it is."
    assert [one.partition(" of ")[0] for one in found.warnings] == ["z: the alias 'x'"], "x is another's name"
    tool = Tool("t", renamed, "sync", found)
    for given, result in (({"user-id": 3, "Y": 4}, [3, 4, "", {}]), ({"user-id": 3}, [3, 2, "", {}]),
                          ({"user-id": 3, "more": 1}, [3, 2, "", {"more": 1}])):
        positional, keyword = tool.bind(given)
        assert renamed(*positional, **keyword) == result
    with pytest.raises(values.Mismatch, match="user-id is required: integer"):
        tool.bind({"Y": 3})


class _Further(typing.TypedDict, total=False):
    max: int


def test_a_parameter_with_an_alias_has_no_second_name() -> None:
    import pydantic

    Few = Annotated[int, pydantic.Field(alias="max", le=10)]  # noqa: N806

    def checked(limit: Few = 5, **rest: int) -> None: ...
    def open_ended(limit: Few = 5, **rest: Any) -> None: ...
    def keyword_only(*, limit: Few = 5, **rest: int) -> None: ...
    def after_others(limit: Few = 5, *more: int, **rest: int) -> None: ...
    def unpacked(limit: Annotated[int, pydantic.Field(alias="most", le=10)] = 5, **rest: Unpack[_Further]) -> None: ...
    def alone(limit: Few = 5) -> None: ...

    for function in (checked, open_ended, keyword_only, after_others, unpacked, alone):
        tool = Tool("t", function, "sync", schema.signature(function))
        for given in ({"max": 3, "limit": 999}, {"limit": 999}, {"limit": 3}):
            with pytest.raises(values.Mismatch, match="t has no argument limit") as refused:
                tool.bind(given)
            assert refused.value.pointer == "/limit"
    tool = Tool("t", after_others, "sync", schema.signature(after_others))
    with pytest.raises(values.Mismatch, match="t has no argument limit"):
        tool.bind({"max": 3, "limit": 999}, [1])


def test_an_alias_that_further_arguments_have_is_not_used() -> None:
    import pydantic

    def clashes(limit: Annotated[int, pydantic.Field(alias="max")] = 5, **rest: Unpack[_Further]) -> None: ...

    found = schema.signature(clashes)
    assert list(found.input_schema["properties"]) == ["limit", "max"]
    assert found.warnings == ["limit: the alias 'max' of its Field is not used; callers give limit"]
    positional, keyword = Tool("t", clashes, "sync", found).bind({"limit": 3, "max": 4})
    assert not positional and keyword == {"limit": 3, "max": 4}


def test_a_partial_has_the_description_of_its_function() -> None:
    def greet(greeting: str, name: str) -> str:
        """Greet somebody."""
        return f"{greeting}, {name}"

    made = functools.partial(greet, "hello")
    assert schema.signature(made).description == "Greet somebody."
    made.__doc__ = "Say hello."
    assert schema.signature(made).description == "Say hello."


Tree_ = typing.Union[dict[str, "Tree_"], list["Tree_"], str, int, float, bool, None]
Ping = typing.Union[int, list["Pong"]]
Pong = typing.Union[str, list["Ping"]]


def test_an_alias_that_refers_to_itself_is_described() -> None:
    def whole(tree: Tree_) -> Tree_:
        return tree

    def turns(ping: Ping, again: "Ping") -> None: ...

    made = schema.signature(whole)
    assert set(made.input_schema["$defs"]) == {"Tree_"}
    tool = Tool("t", whole, "sync", made)
    value = {"a": [1, None, {"b": ["c", 2.5]}]}
    assert tool.bind({"tree": value}) == ((), {"tree": value})
    assert json.loads(tool.encode(value)) == value
    tool = Tool("t", turns, "sync", schema.signature(turns))
    ping = ["x", [1, ["y", [2]]]]
    assert tool.bind({"ping": ping, "again": 1})[1]["ping"] == ping
    with pytest.raises(Mismatch):
        tool.bind({"ping": ["x", [1, ["y", ["not an int"]]]], "again": 1})
