"""Numbers arrive as they were sent, or not at all."""

import enum
from typing import Any, Literal

import pytest

from toolmesh._worker import digits, schema, values
from toolmesh._worker.binding import Tool
from toolmesh._worker.values import Mismatch


def of(annotation):
    def function(x):
        return x

    function.__annotations__["x"] = annotation
    return Tool("f", function, "sync", schema.signature(function))


def sent(tool, text):
    """What the function gets of {"x": text}, as the worker reads it."""
    body = b'{"x":%s}' % text.encode()
    positional, keyword = tool.bind(values.decode(body), None, body)
    assert not digits._texts
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
    pytest.importorskip("pydantic")
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
