package executor_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/tool"
)

// typesPrelude defines the types of the annotations below.
const typesPrelude = `
import collections, dataclasses, datetime, decimal, enum, os, pathlib, re, sys, typing, uuid
from collections import abc
from typing import *
if sys.version_info < (3, 11):
    NotRequired = Required = None

class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"

class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2

class Tone(str, enum.Enum):
    SOFT = "soft"

class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"

class Ratio(enum.Enum):
    HALF = 0.5
    WHOLE = 1.0

class Place(enum.Enum):
    HERE = (0, 0)
    THERE = (1, 1)

class Rights(enum.Flag):
    READ = 1
    WRITE = 2

class Movie(TypedDict):
    title: str
    color: Color

class Partial(TypedDict, total=False):
    a: int
    b: str

class Child(Partial):
    c: int

class Shelf(TypedDict):
    first: Movie
    second: Movie
    tone: Tone
    other: Tone

class Tree(TypedDict):
    name: str
    children: "list[Tree]"

@dataclasses.dataclass
class Point:
    """A place.

    Attributes:
        x: to the right
    """
    x: int
    y: float = 0.5
    tags: list[str] = dataclasses.field(default_factory=list)
    scale: dataclasses.InitVar[int] = 1
    total: float = dataclasses.field(init=False, default=0)

    def __post_init__(self, scale):
        if self.x < 0:
            raise ValueError("x must not be negative")
        self.total = self.x * scale

@dataclasses.dataclass
class Chain:
    value: int
    next: "Optional[Chain]" = None

class Pair(NamedTuple):
    a: int
    b: str = "x"

class Bounds:
    def __init__(self, **limits): self.__dict__.update(limits)

class Port(int):
    def __new__(cls, value):
        if not 0 < value < 65536:
            raise ValueError("no such port")
        return super().__new__(cls, value)

class Opaque: pass

UserId = NewType("UserId", int)
T = TypeVar("T")

@dataclasses.dataclass
class Box(Generic[T]):
    content: T

def told(x):
    """The type and the value, so that nothing is lost in JSON."""
    def short(v):
        if isinstance(v, dict):
            return type(v).__name__ + "{" + ", ".join(f"{short(k)}: {short(one)}" for k, one in v.items()) + "}"
        if isinstance(v, (set, frozenset)):
            return type(v).__name__ + "{" + ", ".join(sorted(map(short, v))) + "}"
        if isinstance(v, (list, tuple, collections.deque)) and not hasattr(v, "_fields"):
            return type(v).__name__ + "(" + ", ".join(map(short, v)) + ")"
        if isinstance(v, enum.Enum):
            return str(type(v).__name__) + "." + str(v.name)
        if isinstance(v, memoryview):
            return "memoryview " + repr(bytes(v))
        if isinstance(v, abc.Iterator):
            return "iterator " + short(list(v))
        return repr(v) if type(v) in (str, int, float, bool, type(None), bytes) else type(v).__name__ + " " + repr(v)
    return short(x)
`

// fits is an argument and the function's value for it, as told prints it.
type fits struct{ arg, got string }

// typeRow is one annotation, its description, and its effect.
type typeRow struct {
	annotation string // of the parameter x, with " = default" if it has one
	schema     string // of x; "" when only calls are of interest
	optional   bool
	calls      []fits
	refused    map[string]string // argument -> pointer of the first problem
	warns      bool
}

const (
	jsonString = `{"type":"string"}`
	jsonInt    = `{"type":"integer"}`
	jsonNull   = `{"type":"null"}`
	movie      = `{"type":"object","properties":{"title":{"type":"string"},"color":{"type":"string","enum":["red","blue"]}},` +
		`"required":["title","color"],"additionalProperties":false}`
)

// typeRows has every row of the conformance table, and more.
var typeRows = []typeRow{
	{annotation: `str`, schema: jsonString, calls: []fits{{`"ä\n"`, `'ä\n'`}, {`""`, `''`}}, refused: map[string]string{`1`: "/x", `null`: "/x", `true`: "/x"}},
	{annotation: `int`, schema: jsonInt, calls: []fits{{`1`, `1`}, {`1.0`, `1`}, {`-0`, `0`}, {`1e2`, `100`}, {`123456789012345678901234567890`, `123456789012345678901234567890`}, {`1e21`, `1000000000000000000000`}, {`9007199254740993`, `9007199254740993`}},
		refused: map[string]string{`"1"`: "/x", `1.5`: "/x", `true`: "/x", `null`: "/x", `12345678901234567890.0`: "/x",
			`9007199254740993.0`: "/x", `-9007199254740993.0`: "/x", `9007199254740993e0`: "/x", `10000000000000000000001.0`: "/x"}},
	{annotation: `list[int | bool]`, calls: []fits{{`[1e21,true]`, `list(1000000000000000000000, True)`}}, refused: map[string]string{`[1,9007199254740993.0]`: "/x/1"}},
	{annotation: `float`, schema: `{"type":"number"}`, calls: []fits{{`1.5`, `1.5`}, {`1`, `1.0`}, {`-0.0`, `-0.0`}, {`9007199254740993`, `9007199254740993`}, {`1e308`, `1e+308`}},
		refused: map[string]string{`"1.5"`: "/x", `false`: "/x"}},
	{annotation: `bool`, schema: `{"type":"boolean"}`, calls: []fits{{`true`, `True`}, {`false`, `False`}}, refused: map[string]string{`1`: "/x", `"true"`: "/x"}},
	{annotation: `None`, schema: jsonNull, calls: []fits{{`null`, `None`}}, refused: map[string]string{`0`: "/x"}},

	{annotation: `str = "d"`, schema: `{"type":"string","default":"d"}`, optional: true, calls: []fits{{``, `'d'`}, {`"x"`, `'x'`}}, refused: map[string]string{`null`: "/x"}},
	{annotation: `Optional[str] = "d"`, schema: `{"anyOf":[{"type":"string"},{"type":"null"}],"default":"d"}`, optional: true,
		calls: []fits{{``, `'d'`}, {`null`, `None`}, {`"x"`, `'x'`}}},
	{annotation: `Optional[str] = None`, schema: `{"anyOf":[{"type":"string"},{"type":"null"}],"default":null}`, optional: true,
		calls: []fits{{``, `None`}, {`null`, `None`}, {`"x"`, `'x'`}}},
	{annotation: `str | None = None`, schema: `{"anyOf":[{"type":"string"},{"type":"null"}],"default":null}`, optional: true, calls: []fits{{``, `None`}}},
	{annotation: `int = None`, schema: `{"anyOf":[{"type":"integer"},{"type":"null"}],"default":null}`, optional: true,
		calls: []fits{{``, `None`}, {`null`, `None`}, {`2.0`, `2`}}},
	{annotation: `NONE = "d"`, schema: `{"default":"d"}`, optional: true, calls: []fits{{``, `'d'`}, {`null`, `None`}, {`[1]`, `list(1)`}}},
	{annotation: `NONE`, schema: `{}`, calls: []fits{{`null`, `None`}, {`{"a":1}`, `dict{'a': 1}`}}},
	{annotation: `Optional[str]`, schema: `{"anyOf":[{"type":"string"},{"type":"null"}]}`, calls: []fits{{`null`, `None`}, {`"a"`, `'a'`}}, refused: map[string]string{`1`: "/x"}},

	{annotation: `Union[str, int]`, schema: `{"anyOf":[{"type":"string"},{"type":"integer"}]}`, calls: []fits{{`"1"`, `'1'`}, {`1`, `1`}, {`1.0`, `1`}}, refused: map[string]string{`null`: "/x", `1.5`: "/x"}},
	{annotation: `Union[None, str, int]`, schema: `{"anyOf":[{"type":"null"},{"type":"string"},{"type":"integer"}]}`, calls: []fits{{`null`, `None`}, {`3`, `3`}}},
	{annotation: `Union[str, int] = "x"`, schema: `{"anyOf":[{"type":"string"},{"type":"integer"}],"default":"x"}`, optional: true, calls: []fits{{``, `'x'`}, {`1`, `1`}}},
	{annotation: `Union[bool, str]`, schema: `{"anyOf":[{"type":"boolean"},{"type":"string"}]}`, calls: []fits{{`true`, `True`}, {`"true"`, `'true'`}}, refused: map[string]string{`1`: "/x"}},
	{annotation: `Union[int, float]`, schema: `{"anyOf":[{"type":"integer"},{"type":"number"}]}`, calls: []fits{{`1`, `1`}, {`1.0`, `1.0`}}},
	{annotation: `Union[list[int], str]`, schema: `{"anyOf":[{"type":"array","items":{"type":"integer"}},{"type":"string"}]}`, calls: []fits{{`[1.0]`, `list(1)`}, {`"a"`, `'a'`}}},
	{annotation: `Union[list[str], list[int]]`, calls: []fits{{`[1.0]`, `list(1)`}, {`["1"]`, `list('1')`}}},
	{annotation: `Union[Movie, Color]`, schema: `{"anyOf":[` + movie + `,{"type":"string","enum":["red","blue"]}]}`,
		calls: []fits{{`"red"`, `Color.RED`}, {`{"title":"t","color":"blue"}`, `dict{'title': 't', 'color': Color.BLUE}`}}, refused: map[string]string{`"green"`: "/x"}},
	{annotation: `str | bytes`, calls: []fits{{`"test"`, `'test'`}}},
	{annotation: `dict[str, bytes] | dict[str, str]`, calls: []fits{{`{"a":"test"}`, `dict{'a': 'test'}`}}},
	{annotation: `Union[Color, str]`, calls: []fits{{`"red"`, `Color.RED`}, {`"green"`, `'green'`}}},
	{annotation: `set[int] | list[int]`, calls: []fits{{`[3,1,3]`, `list(3, 1, 3)`}, {`[3,1]`, `set{1, 3}`}}},
	{annotation: `Union[datetime.datetime, datetime.date]`, calls: []fits{{`"2026-01-31"`, `date datetime.date(2026, 1, 31)`}, {`"2026-01-31T00:00:00"`, `datetime datetime.datetime(2026, 1, 31, 0, 0)`}}},

	{annotation: `Literal["a", "b"]`, schema: `{"type":"string","enum":["a","b"]}`, calls: []fits{{`"b"`, `'b'`}}, refused: map[string]string{`"c"`: "/x"}},
	{annotation: `Literal["a", "b"] = "a"`, schema: `{"type":"string","enum":["a","b"],"default":"a"}`, optional: true, calls: []fits{{``, `'a'`}}},
	{annotation: `Literal[1, 2]`, schema: `{"type":"integer","enum":[1,2]}`, calls: []fits{{`2`, `2`}, {`2.0`, `2`}}, refused: map[string]string{`"1"`: "/x", `true`: "/x"}},
	{annotation: `list[Literal[1, 2]]`, schema: `{"type":"array","items":{"type":"integer","enum":[1,2]}}`, calls: []fits{{`[1,2]`, `list(1, 2)`}}, refused: map[string]string{`[1,3]`: "/x/1"}},
	{annotation: `Optional[Literal[1, 2]] = None`, schema: `{"anyOf":[{"type":"integer","enum":[1,2]},{"type":"null"}],"default":null}`, optional: true, calls: []fits{{`2`, `2`}, {`null`, `None`}}},
	{annotation: `Literal[True, 1, "1", None]`, schema: `{"type":["boolean","integer","string","null"],"enum":[true,1,"1",null]}`,
		calls: []fits{{`true`, `True`}, {`1`, `1`}, {`"1"`, `'1'`}, {`null`, `None`}}, refused: map[string]string{`false`: "/x", `0`: "/x", `"True"`: "/x"}},
	{annotation: `Literal[b"hi", Color.RED, Place.THERE]`, schema: `{"type":"string","enum":["aGk=","red","THERE"]}`,
		calls: []fits{{`"aGk="`, `b'hi'`}, {`"red"`, `Color.RED`}, {`"THERE"`, `Place.THERE`}}, refused: map[string]string{`"blue"`: "/x"}},
	{annotation: `Union[Literal["a"], Literal["b"]]`, schema: `{"type":"string","enum":["a","b"]}`, calls: []fits{{`"a"`, `'a'`}, {`"b"`, `'b'`}}},

	{annotation: `Color`, schema: `{"type":"string","enum":["red","blue"]}`, calls: []fits{{`"red"`, `Color.RED`}}, refused: map[string]string{`"green"`: "/x", `"RED"`: "/x"}},
	{annotation: `Color = Color.RED`, schema: `{"type":"string","enum":["red","blue"],"default":"red"}`, optional: true, calls: []fits{{``, `Color.RED`}, {`"blue"`, `Color.BLUE`}}},
	{annotation: `Level`, schema: `{"type":"integer","enum":[1,2]}`, calls: []fits{{`2`, `Level.HIGH`}, {`2.0`, `Level.HIGH`}}, refused: map[string]string{`3`: "/x", `true`: "/x"}},
	{annotation: `Tone`, schema: `{"type":"string","enum":["soft"]}`, calls: []fits{{`"soft"`, `Tone.SOFT`}}},
	{annotation: `Mixed`, schema: `{"type":["integer","string"],"enum":[1,"two"]}`, calls: []fits{{`1`, `Mixed.ONE`}, {`"two"`, `Mixed.TWO`}}, refused: map[string]string{`"1"`: "/x"}},
	{annotation: `Ratio`, schema: `{"type":"number","enum":[0.5,1.0]}`, calls: []fits{{`0.5`, `Ratio.HALF`}, {`1`, `Ratio.WHOLE`}}},
	{annotation: `Place`, schema: `{"type":"string","enum":["HERE","THERE"]}`, calls: []fits{{`"THERE"`, `Place.THERE`}}},
	{annotation: `Rights`, calls: []fits{{`3`, `Rights.READ|WRITE`}, {`0`, `Rights.None`}}, refused: map[string]string{`4`: "/x", `-1`: "/x"}},

	{annotation: `Movie`, schema: movie, calls: []fits{{`{"title":"t","color":"red"}`, `dict{'title': 't', 'color': Color.RED}`}},
		refused: map[string]string{`{"title":"t"}`: "/x/color", `{"title":1,"color":"red"}`: "/x/title", `{"title":"t","color":"red","year":1}`: "/x/year"}},
	{annotation: `Partial`, schema: `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"additionalProperties":false}`,
		calls: []fits{{`{}`, `dict{}`}, {`{"a":1.0}`, `dict{'a': 1}`}}},
	{annotation: `Child`, schema: `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"integer"}},"required":["c"],"additionalProperties":false}`,
		calls: []fits{{`{"c":3}`, `dict{'c': 3}`}}, refused: map[string]string{`{"a":1}`: "/x/c"}},
	{annotation: `Shelf`, calls: []fits{{`{"first":{"title":"a","color":"red"},"second":{"title":"b","color":"blue"},"tone":"soft","other":"soft"}`,
		`dict{'first': dict{'title': 'a', 'color': Color.RED}, 'second': dict{'title': 'b', 'color': Color.BLUE}, 'tone': Tone.SOFT, 'other': Tone.SOFT}`}}},
	{annotation: `list[Movie]`, schema: `{"type":"array","items":` + movie + `}`, calls: []fits{{`[]`, `list()`}}, refused: map[string]string{`[{"title":"t","color":"x"}]`: "/x/0/color"}},
	{annotation: `Optional[Movie] = None`, schema: `{"anyOf":[` + movie + `,{"type":"null"}],"default":null}`, optional: true, calls: []fits{{`null`, `None`}}},
	{annotation: `Tree`, schema: `{"$ref":"#/$defs/Tree"}`, calls: []fits{{`{"name":"a","children":[{"name":"b","children":[]}]}`, `dict{'name': 'a', 'children': list(dict{'name': 'b', 'children': list()})}`}},
		refused: map[string]string{`{"name":"a","children":[{"name":"b"}]}`: "/x/children/0/children"}},

	{annotation: `List[str]`, schema: `{"type":"array","items":{"type":"string"}}`, calls: []fits{{`["a"]`, `list('a')`}}, refused: map[string]string{`["a",1]`: "/x/1", `"a"`: "/x"}},
	{annotation: `List[float]`, schema: `{"type":"array","items":{"type":"number"}}`, calls: []fits{{`[1,2.5]`, `list(1.0, 2.5)`}}},
	{annotation: `list[list[int]]`, schema: `{"type":"array","items":{"type":"array","items":{"type":"integer"}}}`, calls: []fits{{`[[1.0],[]]`, `list(list(1), list())`}}},
	{annotation: `list`, schema: `{"type":"array","items":{}}`, calls: []fits{{`[1,"a",null]`, `list(1, 'a', None)`}}},
	{annotation: `List`, schema: `{"type":"array","items":{}}`, calls: []fits{{`[1]`, `list(1)`}}},
	{annotation: `Tuple`, schema: `{"type":"array","items":{}}`, calls: []fits{{`[1,"a"]`, `tuple(1, 'a')`}}},
	{annotation: `Dict`, schema: `{"type":"object","additionalProperties":true}`, calls: []fits{{`{"a":1}`, `dict{'a': 1}`}}},
	{annotation: `list[Any]`, schema: `{"type":"array","items":{}}`, calls: []fits{{`[1,[2]]`, `list(1, list(2))`}}},
	{annotation: `Sequence[int]`, schema: `{"type":"array","items":{"type":"integer"}}`, calls: []fits{{`[1.0]`, `list(1)`}}},
	{annotation: `Iterable[int]`, schema: `{"type":"array","items":{"type":"integer"}}`, calls: []fits{{`[1]`, `list(1)`}}},
	{annotation: `Iterator[int]`, schema: `{"type":"array","items":{"type":"integer"}}`, calls: []fits{{`[1]`, `iterator list(1)`}}},

	{annotation: `dict`, schema: `{"type":"object","additionalProperties":true}`, calls: []fits{{`{"a":{"b":1}}`, `dict{'a': dict{'b': 1}}`}}, refused: map[string]string{`[]`: "/x"}},
	{annotation: `dict[str, int]`, schema: `{"type":"object","additionalProperties":{"type":"integer"}}`, calls: []fits{{`{"a":1.0}`, `dict{'a': 1}`}}, refused: map[string]string{`{"a/b":"1"}`: "/x/a~1b"}},
	{annotation: `Optional[dict] = None`, schema: `{"anyOf":[{"type":"object","additionalProperties":true},{"type":"null"}],"default":null}`, optional: true, calls: []fits{{`{}`, `dict{}`}}},
	{annotation: `dict[int, str]`, calls: []fits{{`{"1":"a","-2":"b"}`, `dict{1: 'a', -2: 'b'}`}}, refused: map[string]string{`{"01":"a"}`: "/x/01", `{"a":"b"}`: "/x/a", `{"1_0":""}`: "/x/1_0"}},
	{annotation: `dict[Color, int]`, calls: []fits{{`{"red":1}`, `dict{Color.RED: 1}`}}, refused: map[string]string{`{"green":1}`: "/x/green"}},
	{annotation: `dict[Level, int]`, calls: []fits{{`{"1":1}`, `dict{Level.LOW: 1}`}}, refused: map[string]string{`{"3":1}`: "/x/3"}},
	{annotation: `dict[datetime.date, int]`, calls: []fits{{`{"2026-01-31":1}`, `dict{date datetime.date(2026, 1, 31): 1}`}}, refused: map[string]string{`{"soon":1}`: "/x/soon"}},
	{annotation: `dict[bool, int]`, calls: []fits{{`{"true":1}`, `dict{True: 1}`}}, refused: map[string]string{`{"1":1}`: "/x/1"}},
	{annotation: `dict[float, int]`, calls: []fits{{`{"1.5":1}`, `dict{1.5: 1}`}}, refused: map[string]string{`{"1.5":1,"1.50":2}`: "/x/1.50"}},
	{annotation: `collections.OrderedDict[str, int]`, calls: []fits{{`{"b":1,"a":2}`, `OrderedDict{'b': 1, 'a': 2}`}}},
	{annotation: `collections.defaultdict[str, list[int]]`, calls: []fits{{`{"b":[1.0]}`, `defaultdict{'b': list(1)}`}}},
	{annotation: `Mapping[str, Color]`, calls: []fits{{`{"a":"red"}`, `dict{'a': Color.RED}`}}, refused: map[string]string{`{"a":"x"}`: "/x/a"}},

	{annotation: `tuple[str]`, schema: `{"type":"array","prefixItems":[{"type":"string"}],"items":false,"minItems":1,"maxItems":1}`, calls: []fits{{`["a"]`, `tuple('a')`}}, refused: map[string]string{`["a","b"]`: "/x", `[]`: "/x"}},
	{annotation: `tuple[int, str]`, schema: `{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false,"minItems":2,"maxItems":2}`,
		calls: []fits{{`[1.0,"a"]`, `tuple(1, 'a')`}}, refused: map[string]string{`[1,2]`: "/x/1", `[1]`: "/x"}},
	{annotation: `tuple[int, ...]`, schema: `{"type":"array","items":{"type":"integer"}}`, calls: []fits{{`[1,2.0]`, `tuple(1, 2)`}, {`[]`, `tuple()`}}},
	{annotation: `tuple[()]`, schema: `{"type":"array","maxItems":0}`, calls: []fits{{`[]`, `tuple()`}}, refused: map[string]string{`[1]`: "/x"}},
	{annotation: `set[int]`, schema: `{"type":"array","items":{"type":"integer"},"uniqueItems":true}`, calls: []fits{{`[2,1.0]`, `set{1, 2}`}}, refused: map[string]string{`[1,1]`: "/x", `["a"]`: "/x/0"}},
	{annotation: `set`, calls: []fits{{`["a"]`, `set{'a'}`}}, refused: map[string]string{`[[1]]`: "/x"}},
	{annotation: `set[int | bool | str]`, calls: []fits{{`[1,"1"]`, `set{'1', 1}`}}, refused: map[string]string{`[1,true,"1"]`: "/x/1"}},
	{annotation: `frozenset[Color]`, calls: []fits{{`["red"]`, `frozenset{Color.RED}`}}},
	{annotation: `collections.deque[int]`, calls: []fits{{`[1.0]`, `deque(1)`}}},

	{annotation: `Annotated[int, "how many"]`, schema: `{"type":"integer","description":"how many"}`, calls: []fits{{`1.0`, `1`}}},
	{annotation: `Annotated[int, Bounds(ge=1, lt=10, multiple_of=2)]`, schema: `{"type":"integer","minimum":1,"exclusiveMaximum":10,"multipleOf":2}`, calls: []fits{{`4`, `4`}}, refused: map[string]string{`0`: "/x", `10`: "/x", `3`: "/x"}},
	{annotation: `Annotated[str, Bounds(min_length=2, max_length=3, pattern="^a")]`, schema: `{"type":"string","minLength":2,"maxLength":3,"pattern":"^a"}`, calls: []fits{{`"ab"`, `'ab'`}}, refused: map[string]string{`"a"`: "/x", `"ba"`: "/x"}},
	{annotation: `Annotated[list[int], Bounds(min_length=1)]`, schema: `{"type":"array","items":{"type":"integer"},"minItems":1}`, calls: []fits{{`[1]`, `list(1)`}}, refused: map[string]string{`[]`: "/x"}},
	{annotation: `Annotated[Optional[list[int]], Bounds(max_length=1)] = None`, optional: true, calls: []fits{{`[1]`, `list(1)`}, {`null`, `None`}}, refused: map[string]string{`[1,2]`: "/x"}},
	{annotation: `Annotated[bytes, Bounds(max_length=3)]`, schema: `{"type":"string","contentEncoding":"base64","maxLength":4}`, calls: []fits{{`"aGkh"`, `b'hi!'`}}, refused: map[string]string{`"aGkhIQ=="`: "/x"}},
	{annotation: `Annotated[int, {"description": "few", "ge": 1, "maximum": 5}]`, schema: `{"type":"integer","description":"few","minimum":1,"maximum":5}`, calls: []fits{{`5`, `5`}}, refused: map[string]string{`6`: "/x", `0`: "/x"}},
	{annotation: `Annotated[float, Bounds(ge=float("-inf"))]`, schema: `{"type":"number"}`, calls: []fits{{`1.5`, `1.5`}}},
	{annotation: `Any`, schema: `{}`, calls: []fits{{`null`, `None`}, {`[1]`, `list(1)`}}},
	{annotation: `object`, schema: `{}`, calls: []fits{{`"a"`, `'a'`}}},

	{annotation: `bytes`, schema: `{"type":"string","contentEncoding":"base64"}`, calls: []fits{{`"aGk="`, `b'hi'`}, {`""`, `b''`}}, refused: map[string]string{`"no!"`: "/x", `"aGk"`: "/x"}},
	{annotation: `bytes = b"hi"`, schema: `{"type":"string","contentEncoding":"base64","default":"aGk="}`, optional: true, calls: []fits{{``, `b'hi'`}}},
	{annotation: `bytearray`, calls: []fits{{`"aGk="`, `bytearray bytearray(b'hi')`}}},
	{annotation: `memoryview`, calls: []fits{{`"aGk="`, `memoryview b'hi'`}}},
	{annotation: `datetime.date`, schema: `{"type":"string","format":"date"}`, calls: []fits{{`"2026-01-31"`, `date datetime.date(2026, 1, 31)`}}, refused: map[string]string{`"2026-02-30"`: "/x", `"31.1.2026"`: "/x", `"20260131"`: "/x"}},
	{annotation: `datetime.datetime`, schema: `{"type":"string","format":"date-time"}`,
		calls:   []fits{{`"2026-01-31T12:00:00"`, `datetime datetime.datetime(2026, 1, 31, 12, 0)`}, {`"2026-01-31T12:00:00.5Z"`, `datetime datetime.datetime(2026, 1, 31, 12, 0, 0, 500000, tzinfo=datetime.timezone.utc)`}},
		refused: map[string]string{`"2026-01-31"`: "/x", `"noon"`: "/x", `1769860800`: "/x"}},
	{annotation: `datetime.time`, schema: `{"type":"string","format":"time"}`, calls: []fits{{`"12:30:00"`, `time datetime.time(12, 30)`}, {`"12:30"`, `time datetime.time(12, 30)`}}, refused: map[string]string{`"25:00"`: "/x"}},
	{annotation: `datetime.timedelta`, schema: `{"type":"number","description":"seconds"}`, calls: []fits{{`90`, `timedelta datetime.timedelta(seconds=90)`}, {`0.5`, `timedelta datetime.timedelta(microseconds=500000)`}},
		refused: map[string]string{`"90"`: "/x", `1e300`: "/x"}},
	{annotation: `uuid.UUID`, schema: `{"type":"string","format":"uuid"}`, calls: []fits{{`"12345678-1234-5678-1234-567812345678"`, `UUID UUID('12345678-1234-5678-1234-567812345678')`}}, refused: map[string]string{`"nope"`: "/x"}},
	{annotation: `pathlib.Path`, schema: `{"type":"string","format":"path"}`, calls: []fits{{`"a/b"`, `PosixPath PosixPath('a/b')`}}},
	{annotation: `os.PathLike`, calls: []fits{{`"a"`, `PosixPath PosixPath('a')`}}},
	{annotation: `decimal.Decimal`, schema: `{"anyOf":[{"type":"number"},{"type":"string"}]}`, calls: []fits{{`"1.10"`, `Decimal Decimal('1.10')`}, {`1.5`, `Decimal Decimal('1.5')`}, {`3`, `Decimal Decimal('3')`}, {`1.10`, `Decimal Decimal('1.10')`},
		{`123456789012345678901234567890.123456789`, `Decimal Decimal('123456789012345678901234567890.123456789')`}},
		refused: map[string]string{`"one"`: "/x", `"NaN"`: "/x", `true`: "/x"}},
	{annotation: `re.Pattern[str]`, calls: []fits{{`"(?<=a)b"`, `Pattern re.compile('(?<=a)b')`}}, refused: map[string]string{`"("`: "/x"}},

	{annotation: `Point`, calls: []fits{
		{`{"x":2.0}`, `Point Point(x=2, y=0.5, tags=[], total=2)`},
		{`{"x":2,"y":1,"tags":["a"],"scale":3}`, `Point Point(x=2, y=1.0, tags=['a'], total=6)`},
	}, refused: map[string]string{`{}`: "/x/x", `{"x":"1"}`: "/x/x", `{"x":1,"total":3}`: "/x/total", `{"x":-1}`: "/x"},
		schema: `{"type":"object","properties":{"x":{"type":"integer","description":"to the right"},"y":{"type":"number","default":0.5},` +
			`"tags":{"type":"array","items":{"type":"string"},"default":[]},"scale":{"type":"integer","default":1}},"required":["x"],"additionalProperties":false}`},
	{annotation: `Chain`, schema: `{"$ref":"#/$defs/Chain"}`, calls: []fits{{`{"value":1,"next":{"value":2}}`, `Chain Chain(value=1, next=Chain(value=2, next=None))`}}},
	{annotation: `Pair`, calls: []fits{{`[1]`, `Pair Pair(a=1, b='x')`}, {`[1.0,"y"]`, `Pair Pair(a=1, b='y')`}}, refused: map[string]string{`[]`: "/x", `[1,2]`: "/x/1"}},
	{annotation: `UserId`, schema: jsonInt, calls: []fits{{`1.0`, `1`}}, refused: map[string]string{`"1"`: "/x"}},
	{annotation: `Port`, schema: jsonInt, calls: []fits{{`80`, `Port 80`}}, refused: map[string]string{`0`: "/x"}},
	{annotation: `Box[int]`, calls: []fits{{`{"content":1.0}`, `Box Box(content=1)`}}, refused: map[string]string{`{"content":"a"}`: "/x/content"}},
	{annotation: `Box[Box[Color]]`, calls: []fits{{`{"content":{"content":"red"}}`, `Box Box(content=Box(content=<Color.RED: 'red'>))`}}},
	{annotation: `"Missing"`, schema: `{}`, calls: []fits{{`1`, `1`}}, warns: true},
	{annotation: `"list[Missing]" = None`, schema: `{"default":null}`, optional: true, calls: []fits{{`[1]`, `list(1)`}}, warns: true},
	{annotation: `Opaque`, schema: `{}`, calls: []fits{{`1`, `1`}}, warns: true},
	{annotation: `Callable[[int], int]`, schema: `{}`, calls: []fits{{`1`, `1`}}, warns: true},
	{annotation: `complex`, schema: `{}`, calls: []fits{{`1`, `1`}}, warns: true},
}

// send validates and then calls, as a host does.
func send(t testing.TB, ix *executor.Index, name, args string) (string, error) {
	t.Helper()
	v, err := tool.Compile(toolOf(t, ix, name).InputSchema)
	if err != nil {
		t.Fatalf("%s: its schema does not compile: %v", name, err)
	}
	if err := v.Validate(json.RawMessage(args)); err != nil {
		return "", err
	}
	return call(t, ix, name, args)
}

func toolOf(t testing.TB, ix *executor.Index, name string) executor.Function {
	t.Helper()
	for _, one := range ix.Tools() {
		if one.Name == name {
			return one
		}
	}
	t.Fatalf("%s is not served: %+v", name, ix.Unavailable())
	return executor.Function{}
}

// mustRefuse fails the test unless the first problem of a call is at a pointer.
func mustRefuse(t testing.TB, ix *executor.Index, name, args, pointer string) {
	t.Helper()
	got, err := send(t, ix, name, args)
	if toolmesh.CodeOf(err) != toolmesh.CodeInvalidArguments {
		t.Errorf("%s(%s) = %s, %v; want invalid_arguments at %s", name, args, got, err, pointer)
		return
	}
	problems := tool.Problems(err)
	if len(problems) == 0 || problems[0].Pointer != pointer || problems[0].Expected == "" || problems[0].Got == "" || problems[0].Message == "" {
		t.Errorf("%s(%s): problems %+v, want one at %s that says what was expected", name, args, problems, pointer)
	}
	if e := toolmesh.AsError(err); e.Started == toolmesh.StartedYes {
		t.Errorf("%s(%s): started", name, args)
	}
}

func sameJSON(t testing.TB, got, want []byte) bool {
	t.Helper()
	return cmp.Equal(decoded(t, got), decoded(t, want))
}

func decoded(t testing.TB, data []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return v
}

// Every annotation is described, accepts the described values, and gives the function the
// declared type.
func TestEveryType(t *testing.T) {
	t.Parallel()
	source := strings.Builder{}
	source.WriteString(typesPrelude)
	names := make([]string, len(typeRows))
	for i, row := range typeRows {
		names[i] = fmt.Sprintf("f%d", i)
		annotation := ": " + row.annotation
		if rest, bare := strings.CutPrefix(row.annotation, "NONE"); bare {
			annotation = rest
		}
		fmt.Fprintf(&source, "def f%d(x%s) -> str: return told(x)\n", i, annotation)
	}
	ix := openModule(t, sharedExecutor(t), source.String(), names...)
	for i, row := range typeRows {
		t.Run(row.annotation, func(t *testing.T) {
			name := "t." + names[i]
			described := toolOf(t, ix, name)
			var schema struct {
				Properties           map[string]json.RawMessage
				Required             []string
				AdditionalProperties *bool
			}
			if err := json.Unmarshal(described.InputSchema, &schema); err != nil {
				t.Fatal(err)
			}
			if row.schema != "" && !sameJSON(t, schema.Properties["x"], []byte(row.schema)) {
				t.Errorf("schema is\n%s, want\n%s", schema.Properties["x"], row.schema)
			}
			if required := len(schema.Required) == 1; required == row.optional {
				t.Errorf("required %v, want %v", required, !row.optional)
			}
			if schema.AdditionalProperties == nil || *schema.AdditionalProperties {
				t.Error("other arguments are not refused")
			}
			if (len(described.Warnings) > 0) != row.warns {
				t.Errorf("warnings %q, want some: %v", described.Warnings, row.warns)
			}
			for _, c := range row.calls {
				args := `{"x":` + c.arg + `}`
				if c.arg == "" {
					args = `{}`
				}
				got, err := send(t, ix, name, args)
				var text string
				if err == nil {
					err = json.Unmarshal([]byte(got), &text)
				}
				if err != nil || text != c.got {
					t.Errorf("%s: the function got %s, %v; want %s", args, text, err, c.got)
				}
			}
			for arg, pointer := range row.refused {
				mustRefuse(t, ix, name, `{"x":`+arg+`}`, pointer)
			}
			if !row.optional {
				mustRefuse(t, ix, name, `{}`, "/x")
			}
			mustRefuse(t, ix, name, `{"x":null,"unknown":1}`, firstUnknown(t, ix, name))
		})
	}
}

// firstUnknown is where the first problem of {"x":null,"unknown":1} is.
func firstUnknown(t testing.TB, ix *executor.Index, name string) string {
	if _, err := send(t, ix, name, `{"x":null}`); err != nil {
		problems := tool.Problems(err)
		if len(problems) > 0 && problems[0].Pointer < "/unknown" {
			return problems[0].Pointer
		}
	}
	return "/unknown"
}
