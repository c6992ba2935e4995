"""Results as JSON, and what JSON cannot carry."""

import collections
import concurrent.futures
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import threading
import types
import uuid
from typing import Any

import pytest

from toolmesh._worker.schemas.values import NotSerializable, decode, encode


class Color(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Point:
    x: int
    when: datetime.date


Pair = collections.namedtuple("Pair", "a b")


class Sequence(collections.abc.Sequence[int]):
    def __getitem__(self, index):
        return [1, 2][index]

    def __len__(self):
        return 2


@pytest.mark.parametrize("value,text", [
    (None, "null"), (True, "true"), (1, "1"), (1.5, "1.5"), ("ä\n\x00", '"ä\\n\\u0000"'), ([], "[]"), ({}, "{}"),
    ((1, "a"), '[1,"a"]'),
    ({1: "a", 2: "b"}, '{"1":"a","2":"b"}'),
    ({"s": 1, None: 2, True: 3, 1.5: 4}, '{"s":1,"null":2,"true":3,"1.5":4}'),
    (Color.RED, '"red"'), (Number.ONE, "1"), ({"c": Color.RED}, '{"c":"red"}'),
    (Point(1, datetime.date(2026, 1, 31)), '{"x":1,"when":"2026-01-31"}'),
    (Pair(1, 2), "[1,2]"),
    (datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc), '"2026-01-31T12:00:00+00:00"'),
    (datetime.time(12), '"12:00:00"'), (datetime.timedelta(minutes=1), "60.0"),
    (decimal.Decimal("1.10"), '"1.10"'), (pathlib.PurePosixPath("/a"), '"/a"'),
    (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    ({3, 1, 2}, "[1,2,3]"), (frozenset(["a"]), '["a"]'),
    (b"hi", '{"$bytes":"aGk="}'), (bytearray(b"hi"), '{"$bytes":"aGk="}'), (memoryview(b"hi"), '{"$bytes":"aGk="}'),
    (collections.deque([1]), "[1]"), (collections.OrderedDict(a=1), '{"a":1}'), (collections.Counter("a"), '{"a":1}'),
    (types.MappingProxyType({"a": 1}), '{"a":1}'), (Sequence(), "[1,2]"),
    (10**40, str(10**40)),
], ids=repr)
def test_encode(value, text):
    assert encode(value).decode() == text
    json.loads(encode(value))


shared = [1]
looped: dict[str, list[Any]] = {"a": []}
looped["a"].append(looped)
deep: list[Any] = []
for _ in range(50000):
    deep = [deep]


@pytest.mark.parametrize("value,path,words", [
    (float("nan"), "result", "NaN"),
    ([1, {"score": float("inf")}], "result[1].score", "infinit"),
    ({"a b": [float("nan")]}, "result['a b'][0]", "NaN"),
    (object(), "result", "builtins.object"),
    ([1, 2, 3 + 4j], "result[2]", "complex"),
    ({(1, 2): 3}, "result", "key of type tuple"),
    ({1: "a", "1": "b"}, "result", "the same key"),
    ({"x": {1: "a", "1": "b"}}, "result.x", "the same key"),
    ({None: 1, "null": 2}, "result", "the same key"),
    ({float("nan"): 1}, "result", "key"),
    (looped, "result.a[0]", "contains itself"),
    ("\ud800", "result", "surrogate"),
    ({"\ud800": 1}, "result (key '\\ud800')", "surrogate"),
    (Point(1, object()), "result.when", "object"),  # type: ignore[arg-type]  # a lie, as tools tell them
    ([Point(1, float("nan"))], "result[0].when", "NaN"),  # type: ignore[arg-type]  # likewise
    (lambda: 1, "result", "function"),
    ((n for n in [1]), "result", "generator"),
    ({1: {2, float("nan")}}, "result[1][0]", "NaN"),
], ids=lambda value: str(value)[:40])
def test_values_without_json_are_refused_with_their_place(value, path, words):
    with pytest.raises(NotSerializable) as caught:
        encode(value)
    if "{2, nan}" not in repr(value):
        assert caught.value.path == path
    assert words in str(caught.value)


def test_too_deep_is_refused():
    with pytest.raises(NotSerializable) as caught:
        encode(deep)
    assert "deep" in str(caught.value)


def test_the_same_object_twice_is_no_cycle():
    assert encode([shared, shared]) == b"[[1],[1]]"


def test_a_refusal_leaves_nothing_behind():
    # The encoder's markers are shared by all calls.
    value = {"a": [object()]}
    for _ in range(3):
        with pytest.raises(NotSerializable):
            encode(value)
    value["a"][0] = 1
    assert encode(value) == b'{"a":[1]}'


def test_a_property_that_raises_is_named():
    class Bad(collections.abc.Mapping[str, int]):
        def __getitem__(self, key):
            raise RuntimeError("broken")

        def __iter__(self):
            return iter("a")

        def __len__(self):
            return 1

    with pytest.raises(NotSerializable) as caught:
        encode({"x": Bad()})
    assert caught.value.path == "result.x" and "broken" in str(caught.value)


def test_numpy_values():
    import numpy

    value = {"a": numpy.int64(3), "b": numpy.array([[1, 2]]), "c": numpy.float32(0.5)}
    assert encode(value) == b'{"a":3,"b":[[1,2]],"c":0.5}'
    with pytest.raises(NotSerializable) as caught:
        encode({"a": numpy.array([1.0, float("nan")])})
    assert caught.value.path == "result.a[1]"


def test_times_of_numpy_are_exact():
    # numpy itself makes bare numbers of them, of nanoseconds since 1970.
    import numpy

    at, far = numpy.datetime64("2024-01-02T03:04:05.123456789"), numpy.datetime64("20000-01-01")
    assert encode(at) == b'"2024-01-02T03:04:05.123456789"'
    assert encode([numpy.array(at), far]) == b'["2024-01-02T03:04:05.123456789","20000-01-01"]'
    assert encode(numpy.array([[at], ["NaT"]], "datetime64[ns]")) == b'[["2024-01-02T03:04:05.123456789"],[null]]'
    assert encode(numpy.array(["2024-01-02"], "datetime64[D]")) == b'["2024-01-02"]'
    assert encode(numpy.array([90, 1500], "timedelta64[ns]")) == b"[9e-08,1.5e-06]"
    assert encode(numpy.array([(1, at)], [("a", "i4"), ("t", "datetime64[ns]")])) == (
        b'[[1,"2024-01-02T03:04:05.123456789"]]'
    )
    assert encode({at: 1}) == b'{"2024-01-02T03:04:05.123456789":1}'
    with pytest.raises(NotSerializable, match=r"result\[1\].*\[M\] and \[s\]"):
        encode([1, numpy.timedelta64(2, "M")])


def test_a_number_that_python_does_not_have_is_named():
    import numpy

    for value, path in ((numpy.longdouble(1), "result"), (numpy.array([1], "longdouble"), "result[0]")):
        with pytest.raises(NotSerializable, match="of type numpy.longdouble, which JSON has no form for") as caught:
            encode(value)
        assert caught.value.path == path


class _Scalar:
    """numpy's longdouble: it is its own plain form."""

    __module__ = "numpy"

    def tolist(self):
        return self


def test_a_conversion_to_itself_is_named():
    with pytest.raises(NotSerializable, match=r"result\.a is of type numpy\._Scalar, which"):
        encode({"a": _Scalar()})


class _NaTType(datetime.datetime):
    """pandas.NaT: a datetime that is none."""

    __module__ = "pandas._libs"

    def isoformat(self, *_how, **_any):
        return "NaT"


_NaTType.__name__ = "NaTType"


def test_a_missing_time_is_null():
    missing = _NaTType(1, 1, 1)
    assert encode({"a": [missing]}) == b'{"a":[null]}'
    with pytest.raises(NotSerializable, match="key of type NaTType"):
        encode({missing: 1})


def test_pandas_values():
    import pandas

    frame = pandas.DataFrame({"d": pandas.to_datetime(["2024-01-01", None]), "n": pandas.array([1, None])})
    assert encode(frame) == b'[{"d":"2024-01-01T00:00:00","n":1},{"d":null,"n":null}]'
    assert encode([frame["n"], frame["n"].array, pandas.Categorical(["a"])]) == b'[[1,null],[1,null],["a"]]'
    assert encode([pandas.Series(["a", "a"]).unique(), pandas.to_timedelta([1], "s")]) == b'[["a"],[1.0]]'
    assert encode(type("Mine", (pandas.DataFrame,), {})({"a": [1]})) == b'[{"a":1}]'
    with pytest.raises(NotSerializable, match="more than one column 'a'"):
        encode(pandas.DataFrame([[1, 2]], columns=["a", "a"]))


@pytest.mark.parametrize("named", ["aa", "a"])
def test_a_mapping_with_a_key_twice_is_refused(named):
    class Multi(collections.abc.Mapping[str, int]):  # like multidict's, of either age
        def __getitem__(self, key):
            return 1

        def __iter__(self):
            return iter(named)

        def __len__(self):
            return 2

    with pytest.raises(NotSerializable, match=r"result\.x is a .*Multi that has one key more than once"):
        encode({"x": Multi()})


@pytest.mark.parametrize("body,value", [
    (b'{"a":1}', {"a": 1}), (b' {"a": [1, 2.5, null]} \n', {"a": [1, 2.5, None]}), ('{"ä":"ö"}'.encode(), {"ä": "ö"}),
])
def test_decode(body, value):
    assert decode(body) == value


@pytest.mark.parametrize("body", [b"{", b"", b'{"a":1} x', b"\xff", b"nope"])
def test_decode_refuses_what_is_not_json(body):
    with pytest.raises(ValueError):
        decode(body)


class _EndlessList(list[int]):
    def __iter__(self):
        while True:
            yield 1


class _EndlessTuple(tuple[int, ...]):
    def __iter__(self):
        while True:
            yield 1


class _EndlessSet(set[int]):
    def __iter__(self):
        while True:
            yield 1


class _EndlessItems(dict[str, int]):
    def items(self):
        while True:
            yield "a", 1


class _EndlessDict(dict[str, int]):
    """What it really holds is asked of it in ways that end."""

    def __iter__(self):
        while True:
            yield "a"

    keys = values = __iter__


class _EndlessText(str):
    def __iter__(self):
        while True:
            yield "a"


@pytest.mark.parametrize("endless", [_EndlessList([1]), _EndlessTuple((1,)), _EndlessSet({1}), _EndlessItems(a=1)])
def test_endless_iterables_are_refused(endless) -> None:
    for value, path in ((endless, "result"), ({"a": [endless]}, "result.a[0]"), ({"a": endless}, "result.a")):
        with pytest.raises(NotSerializable, match="of more than 1000000 elements") as failure:
            encode(value)
        assert failure.value.path == path
        assert failure.value.type_name == type(endless).__name__


def test_endless_iterators_of_subclasses_are_ignored() -> None:
    assert encode([_EndlessDict(a=1), _EndlessText("text")]) == b'[{"a":1},"text"]'


def test_a_subclass_with_its_own_items_is_read_by_them() -> None:
    class Backwards(list[int]):
        def __iter__(self):
            return reversed(list(self[:]))

    class Upper(dict[str, int]):
        def items(self):
            return [(key.upper(), Backwards([1, 2])) for key in self]

    assert encode({"x": Upper(a=1)}) == b'{"x":{"A":[2,1]}}'


class Meets(collections.UserDict[str, int]):
    """Is written while another thread writes it, too."""

    def __init__(self, both):
        super().__init__({"a": 1})
        self.both = both

    def __iter__(self):
        self.both.wait(30)
        return super().__iter__()


def test_one_value_in_two_threads():
    shared = [[Meets(threading.Barrier(2))]]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(encode, [shared, shared])) == [b'[[{"a":1}]]'] * 2


class Holds:
    """Converts to what holds itself, without a container that does."""

    __attrs_attrs__ = (types.SimpleNamespace(name="inner"),)

    def __init__(self):
        self.inner = self


def test_an_object_that_holds_itself_in_any_thread():
    for run in (encode, lambda value: concurrent.futures.ThreadPoolExecutor(1).submit(encode, value).result()):
        with pytest.raises(NotSerializable, match="contains itself"):
            run([Holds()])
