"""What is refused because it would be changed, and what is said only when it is true."""

import dataclasses
import datetime
import inspect
from typing import Annotated, Any, Literal

import pytest

from tests.shaped import Bounds, of
from toolmesh._worker.schemas import schema
from toolmesh._worker.schemas.docstring import parse
from toolmesh._worker.schemas.values import Mismatch


def load(annotation, value):
    return of(annotation).bind({"x": value})[1]["x"]


@pytest.mark.parametrize("annotation,value", [
    (datetime.datetime, "2026-01-31T12:00:00.1234567Z"),
    (datetime.time, "12:00:00.0000001"),
    (datetime.timedelta, 1e-7),
    (datetime.timedelta, 0.1234567),
    (dict[float, int], {"nan": 1}),
    (dict[float, int], {"inf": 1}),
    (dict[float, int], {" 1 ": 1}),
    (dict[float, int], {"1_0": 1}),
    (dict[float, int], {"01": 1}),
    (dict[float, int], {"1e999": 1}),
    (dict[int, int], {"1_0": 1}),
], ids=str)
def test_values_that_lose_precision_are_refused(annotation, value):
    with pytest.raises(Mismatch):
        load(annotation, value)


@pytest.mark.parametrize("annotation,value,wanted", [
    (datetime.datetime, "2026-01-31T12:00:00.123456000", datetime.datetime(2026, 1, 31, 12, 0, 0, 123456)),
    (datetime.time, "12:00:00.1", datetime.time(12, 0, 0, 100000)),
    (datetime.timedelta, 0.1, datetime.timedelta(milliseconds=100)),
    (datetime.timedelta, 0.123456, datetime.timedelta(microseconds=123456)),
    (datetime.timedelta, 1000000.000001, datetime.timedelta(seconds=1000000, microseconds=1)),
    (datetime.timedelta, -1.5, datetime.timedelta(seconds=-1.5)),
    (datetime.timedelta, 90, datetime.timedelta(seconds=90)),
    (dict[float, int], {"1.5": 1, "-1e3": 2, "0": 3}, {1.5: 1, -1000.0: 2, 0.0: 3}),
], ids=str)
def test_exact_values_arrive(annotation, value, wanted):
    assert load(annotation, value) == wanted


@pytest.mark.parametrize("annotation,default", [
    (int, "auto"),
    (Literal["a"], "b"),
    (list[int], ["a"]),
    (Annotated[int, Bounds(ge=3)], 2),
    (Annotated[str, Bounds(max_length=2)], "abc"),
    (bool, 1),
], ids=str)
def test_a_default_that_its_schema_refuses_is_not_shown(annotation, default):
    found = of(annotation, default).described
    assert "default" not in found.input_schema["properties"]["x"]
    assert found.input_schema.get("required", []) == []
    assert len(found.warnings) == 1 and "its default" in found.warnings[0]


@pytest.mark.parametrize("annotation,default", [
    (int, 3), (float, 3), (int, None), (str, "a"), (Any, 1), (list[int], [1]),
    (datetime.date, datetime.date(2020, 1, 1)),
    (Annotated[int, Bounds(ge=3)], 3), (tuple[int, str], (1, "a")), (set[int], {1}), (bytes, b"a"),
    (datetime.timedelta, datetime.timedelta(seconds=1)), (dict[str, int], {"a": 1}),
], ids=str)
def test_a_default_that_fits_is_shown(annotation, default):
    found = of(annotation, default).described
    assert "default" in found.input_schema["properties"]["x"] and found.warnings == []


@dataclasses.dataclass
class Own:
    x: int
    y: int = 0

    def __init__(self, text: str, *, scale: float = 1.0) -> None:
        self.x = len(text)
        self.y = int(scale)


@dataclasses.dataclass(init=False)
class Bare:
    x: int = 3


@dataclasses.dataclass
class Under(Own):
    z: int = 0

    def __init__(self, when: datetime.date) -> None:
        super().__init__("abc")
        self.z = when.year


def test_a_dataclass_with_its_own_init_is_described_by_it():
    found = of(Own).described.input_schema["properties"]["x"]
    assert found == {
        "type": "object",
        "properties": {"text": {"type": "string"}, "scale": {"type": "number", "default": 1.0}},
        "required": ["text"],
        "additionalProperties": False,
    }
    made = load(Own, {"text": "abc", "scale": 2})
    assert (made.x, made.y) == (3, 2)
    assert load(Bare, {}).x == 3
    assert of(Bare).described.input_schema["properties"]["x"]["properties"] == {}
    assert load(Under, {"when": "2026-01-31"}).z == 2026
    for annotation, value in ((Own, {"x": 1}), (Bare, {"x": 1}), (Under, {"text": "a"})):
        with pytest.raises(Mismatch):
            load(annotation, value)

    def result() -> Own:
        return Own("a")

    output = schema.signature(result).output_schema
    assert output is not None and set(output["properties"]) == {"x", "y"}


def test_docstrings_of_further_arguments_and_results():
    def function(a: int, **more: int) -> int:
        """Args:
            a: the first
            **more: what else
                there is

        Returns:
            what it makes
        """
        return a

    found = schema.signature(function)
    assert found.description == ""
    assert found.input_schema["properties"]["a"]["description"] == "the first"
    assert found.input_schema["additionalProperties"] == {"type": "integer", "description": "what else there is"}
    assert found.output_schema == {"type": "integer", "description": "what it makes"}

    def untyped(**more):
        """Does it.

        :param more: what else
        :returns: nothing
        """

    found = schema.signature(untyped)
    assert found.input_schema["additionalProperties"] == {"description": "what else"}
    assert found.output_schema is None and found.description == "Does it."


@pytest.mark.parametrize("doc,text", [
    ("Does it.\n\nReturns:\n    dict: The rows.\n", "The rows."),
    ("Does it.\n\nReturns:\n    The rows: all\n    of them.\n", "The rows: all of them."),
    ("Does it.\n\nReturns\n-------\ndict\n    The rows.\n", "The rows."),
    ("Does it.\n\n:returns: The rows.\n", "The rows."),
    ("Does it.\n\nYields:\n    Rows.\n", "Rows."),
    ("Does it.", ""),
])
def test_docstrings_of_results(doc, text):
    assert parse(inspect.cleandoc(doc))[2] == text


def test_a_section_beside_the_quotes():
    def function(a, b):
        """Args:
            a: first
            b: second
               of them
        """

    assert parse(inspect.getdoc(function)) == ("", {"a": "first", "b": "second of them"}, "")
