"""Numbers arrive as they were sent, or not at all."""

import dataclasses
import decimal
import enum
from typing import Any, Dict, List, Literal, Optional, Tuple, Union

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


def test_models_get_the_integers_that_were_sent():
    import pydantic

    class Model(pydantic.BaseModel):
        n: int = 0
        f: float = 0.0
        a: list[Any] = []

    tool = of(Model)
    assert sent(tool, '{"n":9007199254740993.0}').n == 9007199254740993
    assert sent(tool, '{"n":-9007199254740993e0}').n == -9007199254740993
    assert sent(tool, '{"n":10000000000000000000001.0}').n == 10**22 + 1
    assert sent(tool, '{"n":5.0}').n == 5
    made = sent(tool, '{"f":9007199254740993.0,"a":[1e22,9007199254740993.0,2.5]}')
    assert made.f == 9007199254740992.0 and made.a == [1e22, 9007199254740993, 2.5] and type(made.a[0]) is float


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


def test_only_tools_with_decimals_pay_for_them():
    assert of(D).decode is values.decode_exact
    for annotation in (int, float, str, list[float], Any):
        assert of(annotation).decode is values.decode

    def function(x: int) -> D:
        return D(x)

    assert Tool("f", function, "sync", schema.signature(function)).decode is values.decode


def test_further_decimals_and_invalid_json():
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


def test_decimals_of_models():
    import pydantic

    class Item(pydantic.BaseModel):
        price: D = pydantic.Field(D(0), alias="thePrice")
        share: float = 0.0

    class Order(pydantic.BaseModel):
        total: D
        tax: Optional[D] = None
        parts: List[D] = []
        place: Tuple[D, float] = (D(0), 0.0)
        named: Dict[str, D] = {}
        items: List[Item] = []
        note: Any = None
        text: Union[str, float] = ""
        count: int = 0

    tool = of(Order)
    assert tool.decode is values.decode_exact
    made = sent(tool, '{"total":LONG,"tax":1.10,"parts":[1.10,2],"place":[1.10,1.10],"named":{"a":1.10},'
                      '"items":[{"thePrice":1.10,"share":1.10}],"note":1.10,"count":9007199254740993.0}'
                .replace("LONG", LONG))
    assert repr([made.total, made.tax, made.parts, made.place, made.named, made.items[0].price]) == repr(
        [D(LONG), D("1.10"), [D("1.10"), D(2)], (D("1.10"), 1.1), {"a": D("1.10")}, D("1.10")])
    assert (made.items[0].share, made.note, made.count) == (1.1, 1.1, 9007199254740993)
    with pytest.raises(Mismatch) as caught:
        sent(tool, '{"total":"x"}')
    assert caught.value.pointer == "/x/total"

    class Plain(pydantic.BaseModel):
        share: float

    assert of(Plain).decode is values.decode
