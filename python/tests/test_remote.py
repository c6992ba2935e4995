"""A tool as a Python callable: its signature, and the names of its arguments."""

import asyncio
import datetime
import decimal
import typing
import uuid
from types import SimpleNamespace

import pytest

import toolmesh
from toolmesh.remote import Description, annotation, declared


def described(properties, required=(), **more):
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return Description({"id": "i.m.f", "description": "Does it.", "input_schema": {**schema, **more}})


def test_further_positional_arguments():
    from toolmesh._core import schema

    def rest(first: int, *values: int, unit: str = "m") -> list[int]:
        return [first, *values]

    made = schema.signature(rest)
    told = Description({"id": "a.rest", "input_schema": made.input_schema, "varargs": "values"})
    assert told.arguments((1, 2, 3), {"unit": "s"}) == {"first": 1, "values": (2, 3), "unit": "s"}
    assert told.arguments((1,), {}) == {"first": 1}
    named = {"values": [2, 3]}
    assert told.arguments((1,), named) == {"first": 1, "values": [2, 3]} and named == {"values": [2, 3]}
    assert typing.get_type_hints(told)["values"] == list[int]  # what frameworks call it with, by name
    with pytest.raises(toolmesh.InvalidArguments, match="values is given by position and by name"):
        told.arguments((1, 2), {"values": [3]})


@pytest.mark.parametrize(("schema", "expected"), [
    ({"type": "string"}, str),
    ({"type": "integer"}, int),
    ({"type": "number"}, float),
    ({"type": "boolean"}, bool),
    ({"type": "array", "items": {"type": "integer"}}, list[int]),
    ({"type": "array"}, list),
    ({"type": "object"}, dict[str, typing.Any]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, dict[str, int]),
    ({"type": ["string", "null"]}, typing.Optional[str]),  # noqa: UP045  # as it is made
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, str | int),
    ({"enum": ["a", 1]}, typing.Literal["a", 1]),
    ({"const": "a"}, typing.Literal["a"]),
    ({"type": "string", "format": "date-time"}, datetime.datetime),
    ({"type": "string", "format": "date"}, datetime.date),
    ({"type": "string", "format": "uuid"}, uuid.UUID),
    ({"type": "string", "contentEncoding": "base64"}, bytes),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, tuple[int, str]),
    ({"$ref": "#/$defs/Node"}, dict[str, typing.Any]),
    ({}, typing.Any),
    (True, typing.Any),
])
def test_annotations(schema, expected):
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    assert annotation(schema, {"Node": node}) == expected


def test_types_of_the_description_become_annotations():
    from toolmesh._core import schema

    def tool(a: int, b: str | None, c: bytes, d: datetime.datetime, e: uuid.UUID, f: decimal.Decimal,
             g: list[tuple[int, str]], h: typing.Literal["x", "y"] = "x"):
        pass

    made = schema.signature(tool)
    told = Description({"id": "a.b", "input_schema": made.input_schema})
    assert str(told.__signature__) == (
        "(a: int, b: Optional[str], c: bytes, d: datetime.datetime, e: uuid.UUID, f: "
        f"{str(told.__signature__.parameters['f']).removeprefix('f: ')}, "
        "g: list[tuple[int, str]], h: Literal['x', 'y'] = 'x')")


def test_signature():
    tool = described({"a": {"type": "integer"}, "b": {"type": "string", "default": "x"}, "c": {"type": "integer"},
                      "from": {"type": "string"}, "x-y": {}}, ["a", "c"])
    assert str(tool.__signature__) == "(a: int, b: str = 'x', *, c: int, **further)"
    assert tool.arguments((1,), {"c": 2, "from": "z", "x-y": 3}) == {"a": 1, "c": 2, "from": "z", "x-y": 3}
    assert tool.__name__ == "f" and tool.__qualname__ == "i.m.f" and tool.__doc__ == "Does it."


@pytest.mark.parametrize(("positional", "keywords", "message"), [
    ((1, 2), {}, "too many positional arguments"), ((1,), {"a": 2}, "a is given by position and by name"),
])
def test_arguments_without_one_name_are_refused_here(positional, keywords, message):
    tool = described({"a": {"type": "integer"}}, ["a"])
    with pytest.raises(toolmesh.InvalidArguments, match=message) as raised:
        tool.arguments(positional, keywords)
    assert raised.value.started is False and raised.value.origin == "caller"


def test_types_and_missing_arguments_are_checked_where_the_tool_runs():
    tool = described({"a": {"type": "integer"}}, ["a"])
    assert tool.arguments(("x",), {"b": 1}) == {"a": "x", "b": 1} and tool.arguments((), {}) == {}


def test_bytes_of_plain_calls_are_written_as_declared():
    schema = {
        "properties": {
            "raw": {"type": "string", "contentEncoding": "base64"}, "any": {}, "more": {"$ref": "#/$defs/M"},
            "maybe": {"anyOf": [{"type": "string", "contentEncoding": "base64"}, {"type": "null"}]},
        },
        "$defs": {"M": {"type": "array", "items": {"type": "string", "contentEncoding": "base64"}}},
    }
    body = b'{"raw":{"$bytes":"AA=="},"any":{"$bytes":"AA=="},"more":[{"$bytes":"AA=="}],"maybe":{"$bytes":"AA=="}}'
    import json

    assert json.loads(declared(body, schema)) == {
        "raw": "AA==", "any": {"$bytes": "AA=="}, "more": ["AA=="], "maybe": "AA=="}


def test_tools_are_described_with_few_requests(monkeypatch):
    """An answer describes as many as fit into a message, and null for a tool that was removed."""
    asked = []

    async def registry(_session, verb, question):
        asked.append(len(question.get("tools", ())))
        if verb == "list":
            return {"tools": [{"id": f"a.t{one:04}", "state": "serving"} for one in range(700)]}
        told = [{"id": one} for one in question["tools"][:400]]
        return {"tools": [None, *told[1:]]}

    mesh = toolmesh.AsyncMesh()
    monkeypatch.setattr(mesh._links, "here", lambda: SimpleNamespace(registry=registry))
    found = asyncio.run(mesh.tools())
    assert [one.id for one in found] == [f"a.t{one:04}" for one in range(700) if one not in (0, 400)]
    assert asked == [0, 500, 300]


def test_a_registry_that_describes_nothing(monkeypatch):
    async def registry(_session, verb, _question):
        return {"tools": [{"id": "a.b"}] if verb == "search" else []}

    mesh = toolmesh.AsyncMesh()
    monkeypatch.setattr(mesh._links, "here", lambda: SimpleNamespace(registry=registry))
    with pytest.raises(toolmesh.ProtocolError):
        asyncio.run(mesh.search("words"))
