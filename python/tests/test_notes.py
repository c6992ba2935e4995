"""What Annotated says of a value beside its type is held to, or warned of."""

import datetime
import decimal
import enum
import re
import uuid
from typing import Annotated, Any

import pydantic
import pytest

from tests.shaped import Bounds, of
from toolmesh._worker.schemas.values import Mismatch

DAY = datetime.date(2020, 1, 1)
D = decimal.Decimal
OLD = pydantic.VERSION.startswith("1.")


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


def load(annotation, value, *default):
    tool = of(annotation, *default)
    assert tool.described.warnings == []
    return tool.bind({"x": value})[1]["x"]


def refused(annotation, value, *default):
    with pytest.raises(Mismatch) as caught:
        load(annotation, value, *default)
    assert caught.value.pointer == "/x" and caught.value.expected and caught.value.got
    return caught.value


@pytest.mark.parametrize("annotation,good,bad", [
    (Annotated[datetime.date, Bounds(ge=DAY)], "2020-01-01", "2019-12-31"),
    (Annotated[datetime.date, Bounds(gt=DAY, lt=datetime.date(2021, 1, 1))], "2020-01-02", "2021-01-01"),
    (Annotated[datetime.date | None, Bounds(ge=DAY)], "2020-01-01", "2019-12-31"),
    (Annotated[datetime.timedelta, Bounds(le=datetime.timedelta(hours=1))], 3600, 3601),
    (Annotated[datetime.timedelta, Bounds(multiple_of=datetime.timedelta(seconds=2))], 4, 3),
    (Annotated[bytes, Bounds(max_length=2)], "aGk=", "aGkh"),
    (Annotated[bytes, Bounds(min_length=2)], "aGk=", "aA=="),
    (Annotated[bytes | None, Bounds(max_length=2)], "aGk=", "aGkh"),
    (Annotated[D, Bounds(ge=1)], "1.0", "0.5"),
    (Annotated[D, Bounds(multiple_of=D("0.1"))], "0.3", "0.35"),
    (Annotated[D, Bounds(multiple_of=D("0.3"))], "-1.20", "1e5"),
    (Annotated[D, Bounds(multiple_of=30)], "1.20e2", "1e1"),
    (Annotated[float, Bounds(ge=D("0.1"))], 0.2, 0.05),
    (Annotated[Level, {"ge": 2}], 2, None),
    (Annotated[set[int], Bounds(max_length=2)], [1, 2], None),
    (Annotated[datetime.datetime, Bounds(ge=datetime.datetime(2020, 1, 1))], "2020-01-01T00:00:00",
     "2020-01-01T00:00:00Z"),
], ids=str)
def test_constraints_outside_the_schema_are_checked_on_the_value(annotation, good, bad):
    load(annotation, good)
    if bad is not None:
        error = refused(annotation, bad)
        assert error.expected in error.message


def test_multiples_of_any_size_are_checked_quickly():
    # Written out, such a number keeps the worker from all else for minutes.
    cents: Any = Annotated[D, Bounds(multiple_of=D("0.01"))]
    assert load(cents, "0e-999999999") == 0
    assert load(cents, "1e300") == D("1e300")
    for number in ("1e999999999", "1e-999999999"):
        refused(cents, number)


def test_null_has_no_bounds():
    assert load(Annotated[datetime.date | None, Bounds(ge=DAY)], None) is None
    assert load(Annotated[Any, Bounds(ge=1)], "a") == "a"


def test_a_bound_decides_between_the_members_of_a_union():
    union: Any = Annotated[str, Bounds(max_length=3)] | bytes
    assert load(union, "abc") == "abc"
    assert load(union, "test") == b"\xb5\xeb-"


def test_annotated_types():
    import annotated_types as at
    for annotation, good, bad in (
        (Annotated[datetime.date, at.Ge(DAY)], "2020-01-01", "2019-12-31"),
        (Annotated[datetime.date, at.Interval(ge=DAY, lt=datetime.date(2021, 1, 1))], "2020-01-01", "2021-01-01"),
        (Annotated[bytes, at.Len(1, 2)], "aGk=", "aGkh"),
        (Annotated[bytes, at.MaxLen(2)], "aGk=", "aGkh"),
        (Annotated[str, at.Predicate(str.islower)], "a", "A"),
        (Annotated[int, at.Predicate(lambda value: value % 2 == 1)], 1, 2),
        (at.LowerCase[str], "a", "A"),
    ):
        load(annotation, good)
        refused(annotation, bad)
    assert "islower" in refused(Annotated[str, at.Predicate(str.islower)], "A").message
    assert of(Annotated[int, at.Interval(ge=1, lt=3)]).described.input_schema["properties"]["x"] == {
        "type": "integer", "minimum": 1, "exclusiveMaximum": 3,
    }
    assert of(Annotated[float, at.Unit("m")]).described.warnings == ["x: the constraint Unit(unit='m') is not checked"]


@pytest.mark.skipif(OLD, reason="of version 2 of pydantic")
def test_pydantic_checks_its_own():
    def odd(value):
        if value % 2 == 0:
            raise ValueError("not odd")
        return value * 10

    def trimmed(value):
        return value.strip() if isinstance(value, str) else value

    money: Any = Annotated[D, pydantic.Field(max_digits=3, decimal_places=1)]
    load(money, "10.5")
    refused(money, "10.55")
    assert load(pydantic.UUID4, str(uuid.UUID(int=1, version=4)))
    refused(pydantic.UUID4, str(uuid.UUID(int=1, version=1)))
    assert load(Annotated[int, pydantic.AfterValidator(odd)], 1.0) == 10
    assert "not odd" in refused(Annotated[int, pydantic.AfterValidator(odd)], 2).message
    assert load(Annotated[str, pydantic.BeforeValidator(trimmed)], " a ") == "a"
    assert load(Annotated[bytes, pydantic.AfterValidator(bytes.upper)], "aGk=") == b"HI"
    assert load(Annotated[str, pydantic.StringConstraints(to_upper=True)], "a") == "A"
    assert load(pydantic.conint(ge=3), 3) == 3
    assert load(int, 3, pydantic.Field(3, ge=2)) == 3
    assert load(D, "10.5", pydantic.Field(D(1), max_digits=3)) == D("10.5")
    refused(D, "10.55", pydantic.Field(..., max_digits=3))
    given = of(Annotated[int, "how many", pydantic.WithJsonSchema({"type": "integer", "examples": [1]})])
    assert given.described.input_schema["properties"]["x"] == {
        "type": "integer", "examples": [1], "description": "how many",
    }

    class Own:
        pass

    found = of(Annotated[Own, pydantic.AfterValidator(odd)]).described.warnings
    assert len(found) == 2 and "is not checked" in found[1] and "0x" not in found[1]


@pytest.mark.skipif(not OLD, reason="of version 1 of pydantic")
def test_types_of_the_first_pydantic():
    assert of(pydantic.conint(ge=3)).described.input_schema["properties"]["x"] == {"type": "integer", "minimum": 3}
    assert load(pydantic.conint(ge=3), 3) == 3
    refused(pydantic.conint(ge=3), 2)
    assert load(list[pydantic.conint(ge=3)], [3, 4]) == [3, 4]  # type: ignore[misc]
    load(pydantic.UUID4, str(uuid.UUID(int=1, version=4)))
    refused(pydantic.UUID4, str(uuid.UUID(int=1, version=1)))
    pattern = pydantic.constr(regex="^a")  # type: ignore[call-arg]
    assert load(pattern, "ab") == "ab"
    refused(pattern, "b")
    refused(D, "10.55", pydantic.Field(..., max_digits=3))
    assert re.match("http", load(pydantic.HttpUrl, "http://a.example/"))
