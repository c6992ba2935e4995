"""Models of both versions of pydantic: their schemas are theirs, and ours."""

import copy
import datetime
import enum
import json
from typing import Annotated, Any, List, Literal, Optional, Union

import pydantic
import pytest

from toolmesh._worker.schemas import schema
from toolmesh._worker.schemas.binding import Tool
from toolmesh._worker.schemas.values import Mismatch

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


class Several(pydantic.BaseModel):
    n: int = 0
    u: Union[int, List[int]] = 0
    s: str = pydantic.Field("a", min_length=1)
    m: int = pydantic.Field(3, ge=3)
    l: Literal["a", "b"] = "a"  # noqa: E741


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


def test_null_is_listed_once():
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


def refusal(annotation: Any, value: Any) -> Mismatch:
    def function(x): ...

    function.__annotations__["x"] = annotation
    with pytest.raises(Mismatch) as caught:
        of(function).bind({"x": value})
    return caught.value


@pytest.mark.parametrize("annotation,value,pointer,expected", [
    (Day, {"on": "soon"}, "/x/on", "a valid date or datetime"),
    (Cat, {"kind": "cat", "days": {}}, "/x/days", "a valid array"),
    (Cat, {}, "/x/kind", "a value"),
    (Owner, {"pet": {"kind": "cat", "days": [{"on": "soon"}]}}, "/x/pet/days/0/on", "a valid date or datetime"),
    (Cat, {"kind": "cow"}, "/x/kind", "'cat'"),
    (Several, {"n": "x"}, "/x/n", "a valid integer"),
    (Several, {"u": "x"}, "/x/u", "a valid integer"),
    (Several, {"s": ""}, "/x/s", "have at least 1 character"),
    (Several, {"m": 1}, "/x/m", "greater than or equal to 3"),
    (Several, {"l": "c"}, "/x/l", "'a' or 'b'"),
])
def test_a_refusal_has_the_place_and_pydantics_message(annotation, value, pointer, expected):
    error = refusal(annotation, value)
    assert error.pointer == pointer
    assert OLD and error.expected or error.expected == expected
    assert error.got and error.message


@pytest.mark.parametrize("value", [{"kind": "cow"}, {}, 1])
def test_a_refusal_of_a_union_names_its_discriminator(value):
    error = refusal(Owner, {"pet": value})
    assert error.pointer.startswith("/x/pet") and "kind" in error.message or value == 1


@pytest.mark.skipif(OLD, reason="version 1 asks fields alone")
def test_a_callable_discriminator_is_not_a_field():
    def kind(value):
        return value.get("kind") if isinstance(value, dict) else value.kind

    union: Any = Union[
        Annotated[Cat, pydantic.Tag("cat")], Annotated[Dog, pydantic.Tag("dog")]
    ]
    pets = Annotated[union, pydantic.Discriminator(kind)]

    def function(x):
        return x

    function.__annotations__["x"] = list[pets]
    for cow in ({"kind": "cow"}, {}):
        with pytest.raises(Mismatch) as caught:
            of(function).bind({"x": [{"kind": "dog"}, cow]})
        assert caught.value.pointer == "/x/1"
        assert "kind() is required" not in caught.value.message


class Reach(enum.Enum):
    NEAR = 1.0
    EVERYWHERE = float("inf")


class Light(pydantic.BaseModel):
    reach: Reach = Reach.NEAR


def test_a_definition_that_is_not_json_costs_only_itself():
    def function(x: Light, y: Day) -> Light:
        raise NotImplementedError

    described = of(function).described
    for found in (described.input_schema, described.output_schema):
        assert found is not None and found["$defs"]["Reach"] == {}
    assert described.input_schema["properties"]["y"]["type"] == "object"
    assert [text for text in described.warnings if "Reach is not JSON" in text]


@pytest.mark.skipif(OLD, reason="version 1 asks for validators")
def test_a_type_that_pydantic_refuses_has_the_reason():
    class Refusing:
        @classmethod
        def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
            raise RuntimeError("not today")

    def function(x: Refusing):
        raise NotImplementedError

    assert "RuntimeError: not today" in of(function).described.warnings[0]


class Itself(pydantic.BaseModel):
    """Its schemas are by methods of its own, which take what this library asks for and no more."""

    @classmethod
    def schema(cls, by_alias: bool = True) -> dict[str, Any]:  # type: ignore[override]  # without a template
        return super().schema(by_alias)

    if not OLD:

        @classmethod
        def model_json_schema(cls, mode: Any = "validation") -> dict[str, Any]:  # type: ignore[override]
            return super().model_json_schema(mode=mode)


class Brief(Itself):
    day: Day
    later: Optional["Brief"] = None


class Namesakes:
    class Day(pydantic.BaseModel):
        hours: int


class Shift(Itself):
    day: Namesakes.Day


def test_a_model_may_describe_itself():
    def function(x: Brief):
        raise NotImplementedError

    described = of(function).described
    assert not described.warnings and {"Brief", "Day"} <= described.input_schema["$defs"].keys()
    assert described.input_schema["$defs"]["Brief"]["properties"]["day"] == {"$ref": "#/$defs/Day"}


def test_a_model_that_describes_itself_keeps_its_own_definitions():
    def function(x: Brief, y: Shift):
        raise NotImplementedError

    found = of(function).described.input_schema
    assert found["properties"]["y"]["properties"]["day"] == {"$ref": "#/$defs/Day_"}
    assert found["$defs"]["Day_"]["properties"].keys() == {"hours"} != found["$defs"]["Day"]["properties"].keys()
