"""Numbers arrive as they were sent, or not at all."""

import dataclasses
import decimal
import enum
from typing import Any, Literal

import pytest

from tests.shaped import of
from toolmesh._worker.schemas import schema, values
from toolmesh._worker.schemas.binding import Tool
from toolmesh._worker.schemas.values import Mismatch


def sent(tool, text):
    """What the function gets of {"x": text}, as the worker reads it."""
    body = b'{"x":%s}' % text.encode()
    positional, keyword = tool.bind(tool.decode(body), None, body)
    assert not values._texts
    return tool.function(*positional, **keyword)


class Big(enum.Enum):
    ODD = 9007199254740992


@pytest.mark.parametrize("annotation,text,pointer", [
    (int, "9007199254740993.0", "/x"),
    (int, "-9007199254740993.0", "/x"),
    (int, "9007199254740993e0", "/x"),
    (int, "10000000000000000000001.0", "/x"),
    (int, "1e23", "/x"),
    (list[int], "[1,9007199254740993.0]", "/x/1"),
    (dict[str, int], '{"a":9007199254740993.0}', "/x/a"),
    (bool | int, "9007199254740993.0", "/x"),
    (str | list[int], "[9007199254740993.0]", "/x/0"),
    (Literal[9007199254740992], "9007199254740993.0", "/x"),
    (Big, "9007199254740993.0", "/x"),
])
def test_an_integer_that_a_float_cannot_hold_is_refused(annotation, text, pointer):
    with pytest.raises(Mismatch) as caught:
        sent(of(annotation), text)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("annotation,text,wanted", [
    (int, "9007199254740991.0", 9007199254740991),
    (int, "-9007199254740991e0", -9007199254740991),
    (int, "9007199254740993", 9007199254740993),
    (int, "9007199254740992.0", 9007199254740992),
    (int, "1e22", 10**22),
    (int, "1.00e2", 100),
    (list[int], "[1e22,2]", [10**22, 2]),
    (bool | int, "1e22", 10**22),
    (Literal[9007199254740992], "9007199254740992.0", 9007199254740992),
    (Big, "9007199254740992e0", Big.ODD),
    (Any, "1e22", 1e22),
])
def test_an_integer_that_a_float_holds_exactly_arrives(annotation, text, wanted):
    got = sent(of(annotation), text)
    assert got == wanted and type(got) is type(wanted)


def test_further_arguments_are_as_exact():
    def function(*rest: int, **more: int):
        return rest, more

    tool = Tool("f", function, "sync", schema.signature(function))

    def call(body):
        positional, keyword = tool.bind(values.decode(body), None, body)
        return function(*positional, **keyword)

    assert call(b'{"rest":[1e22],"a":1e22}') == ((10**22,), {"a": 10**22})
    for body, pointer in ((b'{"rest":[9007199254740993.0]}', "/rest/0"), (b'{"a":9007199254740993.0}', "/a")):
        with pytest.raises(Mismatch) as caught:
            call(body)
        assert caught.value.pointer == pointer
    with pytest.raises(Mismatch):
        tool.bind({}, [9007199254740992.0], b"{}")


D = decimal.Decimal
LONG = "123456789012345678901234567890.123456789"


@dataclasses.dataclass
class Price:
    amount: D
    other: Any = None


@pytest.mark.parametrize("annotation,text,wanted", [
    (D, LONG, D(LONG)),
    (D, "1.10", D("1.10")),
    (D, "-1.10e3", D("-1.10e3")),
    (D, "9007199254740993", D(9007199254740993)),
    (D, '"1.10"', D("1.10")),
    (list[D], f"[1.10,{LONG}]", [D("1.10"), D(LONG)]),
    (D | None, LONG, D(LONG)),
    (D | str, LONG, D(LONG)),
    (D | int, "1", 1),
    (float | D, "1.10", 1.1),
    (dict[str, D], '{"a":1.10}', {"a": D("1.10")}),
    (Price, '{"amount":1.10,"other":[1.10]}', Price(D("1.10"), [1.1])),
])
def test_a_decimal_has_the_digits_that_were_sent(annotation, text, wanted):
    got = sent(of(annotation), text)
    assert got == wanted and repr(got) == repr(wanted) and type(got) is type(wanted)


def test_only_who_has_decimals_pays_for_them():
    assert of(D).decode is values.decode_exact
    for annotation in (int, float, str, list[float], Any):
        assert of(annotation).decode is values.decode

    def function(x: int) -> D:
        return D(x)

    assert Tool("f", function, "sync", schema.signature(function)).decode is values.decode


def test_further_decimals_and_what_is_not_json():
    def function(*rest: D):
        return rest

    tool = Tool("f", function, "sync", schema.signature(function))
    assert tool.bind(tool.decode(b"{}"), tool.decode(b"[1.10]")) == ([D("1.10")], {})
    assert repr(tool.bind(tool.decode(b'{"rest":[1.10]}'))[0]) == "[Decimal('1.10')]"
    with pytest.raises(ValueError):
        tool.decode(b'{"rest":[1.10')
    with pytest.raises(Mismatch):
        tool.bind(tool.decode(b"1.10"))
    assert not values._texts


def test_models_read_numbers_as_pydantic_does():
    import pydantic

    class Order(pydantic.BaseModel):
        total: D
        count: int = 0

    tool = of(Order)
    made = sent(tool, '{"total":1.25,"count":5.0}')
    assert (made.total, made.count) == (D("1.25"), 5) and tool.decode is values.decode
    assert sent(tool, f'{{"total":"{LONG}"}}').total == D(LONG)
    with pytest.raises(Mismatch) as caught:
        sent(tool, '{"total":"x"}')
    assert caught.value.pointer == "/x/total"
