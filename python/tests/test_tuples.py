"""Tuples of every length."""

import sys
import typing
from typing import Any

import pytest

from tests.shaped import of
from toolmesh._worker.schemas import schema
from toolmesh._worker.schemas.binding import Tool
from toolmesh._worker.schemas.values import Mismatch

Unpack: Any
if sys.version_info >= (3, 11):
    Unpack = typing.Unpack
else:
    import typing_extensions

    Unpack = typing_extensions.Unpack

STRING, INTEGER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "boolean"))
Tuple: Any = tuple
MIDDLE = Tuple[int, Unpack[tuple[str, ...]], bool]
LAST = Tuple[int, Unpack[tuple[str, ...]]]
SPLICED = Tuple[int, Unpack[tuple[str, bool]]]
DEEP = Tuple[int, Unpack[Tuple[str, Unpack[tuple[bool, ...]]]]]


@pytest.mark.parametrize("annotation,described,warnings", [
    (MIDDLE, {"type": "array", "prefixItems": [INTEGER], "items": {"anyOf": [STRING, BOOLEAN]}, "minItems": 2}, 1),
    (LAST, {"type": "array", "prefixItems": [INTEGER], "items": STRING, "minItems": 1}, 0),
    (Tuple[Unpack[tuple[str, ...]], int], {"type": "array", "items": {"anyOf": [STRING, INTEGER]}, "minItems": 1}, 1),
    (Tuple[Unpack[tuple[str, ...]]], {"type": "array", "items": STRING}, 0),
    (SPLICED, {"type": "array", "prefixItems": [INTEGER, STRING, BOOLEAN], "items": False, "minItems": 3,
               "maxItems": 3}, 0),
    (DEEP, {"type": "array", "prefixItems": [INTEGER, STRING], "items": BOOLEAN, "minItems": 2}, 0),
], ids=str)
def test_description(annotation, described, warnings):
    tool = of(annotation)
    assert tool.described.input_schema["properties"]["x"] == described
    assert len(tool.described.warnings) == warnings


@pytest.mark.parametrize("annotation,value,wanted", [
    (MIDDLE, [1.0, True], (1, True)),
    (MIDDLE, [1, "a", "b", False], (1, "a", "b", False)),
    (LAST, [1], (1,)),
    (LAST, [1, "a", "b"], (1, "a", "b")),
    (DEEP, [1, "a", True, False], (1, "a", True, False)),
    (tuple[str, ...] | MIDDLE, [1, "a", True], (1, "a", True)),
], ids=str)
def test_what_fits(annotation, value, wanted):
    got = of(annotation).bind({"x": value})[1]["x"]
    assert got == wanted and [type(one) for one in got] == [type(one) for one in wanted]


@pytest.mark.parametrize("annotation,value,pointer", [
    (MIDDLE, [1], "/x"),
    (MIDDLE, "a", "/x"),
    (MIDDLE, [1, "a", "b"], "/x/2"),
    (MIDDLE, [1, True, True], "/x/1"),
    (MIDDLE, ["a", "a", True], "/x/0"),
    (LAST, [], "/x"),
    (LAST, [1, 2], "/x/1"),
], ids=str)
def test_what_does_not(annotation, value, pointer):
    with pytest.raises(Mismatch) as caught:
        of(annotation).bind({"x": value})
    assert caught.value.pointer == pointer


def rest(*a):
    return a


def test_further_arguments_that_are_a_tuple():
    rest.__annotations__["a"] = Unpack[tuple[int, str]]
    tool = Tool("f", rest, "sync", schema.signature(rest))
    assert tool.described.input_schema["properties"]["a"] == {
        "type": "array", "prefixItems": [INTEGER, STRING], "items": False, "minItems": 2, "maxItems": 2,
    }
    assert tool.bind({"a": [1.0, "x"]}) == ([1, "x"], {})
    assert tool.bind({}, [1, "x"]) == ([1, "x"], {})
    for given in ([], [1], [1, 2], [1, "x", 3]):
        with pytest.raises(Mismatch):
            tool.bind({"a": given})


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the syntax is of Python 3.11")
def test_the_star_is_unpack():
    names: dict[str, Any] = {"typing": typing}
    exec("def f(x: tuple[int, *tuple[str, ...], bool], *a: *tuple[int, str]): return x, a", names)
    tool = Tool("f", names["f"], "sync", schema.signature(names["f"]))
    assert tool.described.input_schema["properties"]["x"]["items"] == {"anyOf": [STRING, BOOLEAN]}
    assert tool.bind({"x": [1, "a", True], "a": [1, "b"]}) == ([(1, "a", True), 1, "b"], {})
    with pytest.raises(Mismatch):
        tool.bind({"x": [1, True], "a": [1, 2]})


def test_further_named_arguments_of_a_typed_dict():
    class More(typing.TypedDict):
        a: int

    def function(**more):
        return more

    function.__annotations__["more"] = Unpack[More]
    found = schema.signature(function)
    assert found.input_schema["properties"] == {"a": INTEGER} and found.input_schema["required"] == ["a"]
