"""What is unpacked in a tuple, and in further arguments."""

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

STRING, INTEGER = ({"type": kind} for kind in ("string", "integer"))
Tuple: Any = tuple


@pytest.mark.parametrize("annotation", [
    Tuple[int, Unpack[tuple[str, ...]], bool], Tuple[Unpack[tuple[str, ...]]], Tuple[int, Unpack[tuple[str, bool]]],
], ids=str)
def test_a_tuple_with_an_unpacked_part_is_open(annotation):
    tool = of(annotation)
    assert tool.described.input_schema["properties"]["x"] == {} and len(tool.described.warnings) == 1
    assert tool.bind({"x": [1, "a", True]})[1] == {"x": [1, "a", True]}


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


def test_further_named_arguments_of_a_typed_dict():
    class More(typing.TypedDict):
        a: int

    def function(**more):
        return more

    function.__annotations__["more"] = Unpack[More]
    found = schema.signature(function)
    assert found.input_schema["properties"] == {"a": INTEGER} and found.input_schema["required"] == ["a"]
