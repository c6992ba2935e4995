"""Models of both versions of pydantic: their schemas are theirs, and ours."""

import copy
import datetime
import json
from typing import Any, List, Literal, Optional, Union

import pytest

from toolmesh._worker import schema
from toolmesh._worker.binding import Tool

pytest.importorskip("pydantic")
import pydantic  # noqa: E402 - where it is

OLD = pydantic.VERSION.startswith("1.")


class Day(pydantic.BaseModel):
    on: Optional[datetime.date] = None


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    days: List[Day] = []


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


class Owner(pydantic.BaseModel):
    pet: Union[Cat, Dog] = pydantic.Field(..., discriminator="kind")


def of(function):
    return Tool("f", function, "sync", schema.signature(function))


def own_schema(model: Any) -> Any:
    return model.schema() if OLD else model.model_json_schema()


def test_describing_a_tool_leaves_the_models_schema_as_it_was():
    def function(x: Day, y: Owner) -> Owner:
        raise NotImplementedError

    before = [copy.deepcopy(own_schema(one)) for one in (Day, Owner)]
    for _ in range(2):
        of(function)
    assert [own_schema(one) for one in (Day, Owner)] == before


def test_null_is_said_once():
    def function(x: Day) -> Day:
        raise NotImplementedError

    found = of(function).described
    for one in (found.input_schema["properties"]["x"], found.output_schema):
        members = one["properties"]["on"]["anyOf"]
        assert members == [{"type": "string", "format": "date"}, {"type": "null"}]


def test_references_of_discriminators_are_moved_too():
    class Other:
        class Cat(pydantic.BaseModel):
            kind: Literal["cat"]
            lives: int

        class Owner(pydantic.BaseModel):
            pet: Any

    class Second(pydantic.BaseModel):
        pet: Union[Other.Cat, Dog] = pydantic.Field(..., discriminator="kind")

    def function(x: Owner, y: Second) -> Owner:
        raise NotImplementedError

    found = of(function).described
    for one in (found.input_schema, found.output_schema):
        for place in _places(one):
            name = place.removeprefix("#/$defs/")
            assert name != place and name in one["$defs"]
    mapping = found.input_schema["properties"]["y"]["properties"]["pet"]["discriminator"]["mapping"]
    assert "lives" in found.input_schema["$defs"][mapping["cat"].removeprefix("#/$defs/")]["properties"]
    json.dumps(found.output_schema)


def _places(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [found for one in schema for found in _places(one)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
    own += schema.get("discriminator", {}).get("mapping", {}).values()
    return own + [found for one in schema.values() for found in _places(one)]
