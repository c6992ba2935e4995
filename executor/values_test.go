package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

// textMaker writes random JSON as the worker writes it, so that results can be compared byte by
// byte.
type textMaker struct {
	r *rand.Rand
	b strings.Builder
}

func (m *textMaker) value(depth int) {
	kinds := 9
	if depth <= 0 {
		kinds = 7
	}
	switch m.r.IntN(kinds) {
	case 0:
		m.b.WriteString("null")
	case 1:
		m.b.WriteString(strconv.FormatBool(m.r.IntN(2) == 0))
	case 2: // an integer of any size
		digits := 1 + m.r.IntN(40)
		n := new(big.Int)
		for range digits {
			n.Mul(n, big.NewInt(10)).Add(n, big.NewInt(int64(m.r.IntN(10))))
		}
		if m.r.IntN(2) == 0 {
			n.Neg(n)
		}
		m.b.WriteString(n.String())
	case 3, 4:
		m.float()
	case 5, 6:
		m.text(12)
	case 7:
		m.b.WriteByte('[')
		for i := range m.r.IntN(5) {
			if i > 0 {
				m.b.WriteByte(',')
			}
			m.value(depth - 1)
		}
		m.b.WriteByte(']')
	default:
		m.b.WriteByte('{')
		for i := range m.r.IntN(5) {
			if i > 0 {
				m.b.WriteByte(',')
			}
			fmt.Fprintf(&m.b, `"%d`, i) // no key twice
			var key textMaker
			key.r = m.r
			key.text(5)
			m.b.WriteString(key.b.String()[1:])
			m.b.WriteByte(':')
			m.value(depth - 1)
		}
		m.b.WriteByte('}')
	}
}

// float writes a double in the shortest form that is still it, as Python does.
func (m *textMaker) float() {
	var f float64
	switch m.r.IntN(4) {
	case 0:
		f = math.Float64frombits(m.r.Uint64())
	case 1:
		f = float64(m.r.IntN(2000)-1000) / 8
	case 2:
		f = math.Copysign(0, float64(m.r.IntN(2))-0.5)
	default:
		f = m.r.NormFloat64()
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		f = 5e-324
	}
	digits, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'e', -1, 64), "e")
	e, _ := strconv.Atoi(exponent)
	if e >= -4 && e < 16 {
		text := strconv.FormatFloat(f, 'f', -1, 64)
		if !strings.Contains(text, ".") {
			text += ".0"
		}
		m.b.WriteString(text)
		return
	}
	fmt.Fprintf(&m.b, "%se%+03d", digits, e)
}

func (m *textMaker) text(most int) {
	m.b.WriteByte('"')
	for range m.r.IntN(most) {
		switch m.r.IntN(5) {
		case 0:
			m.b.WriteString([]string{`\"`, `\\`, `\n`, `\r`, `\t`, `\b`, `\f`, `\u0000`, `\u001f`, "\u007f", "\u2028", "/"}[m.r.IntN(12)])
		case 1:
			r := rune(m.r.IntN(0x10ffff))
			if r < 0x80 || r >= 0xd800 && r < 0xe000 {
				r = '\U0001F600'
			}
			m.b.WriteRune(r)
		default:
			m.b.WriteByte("abcdefgh &<>'"[m.r.IntN(13)])
		}
	}
	m.b.WriteByte('"')
}

const echoTools = `
import json, sys
from typing import Any

def echo(x):
    return x

def typed(x: Any) -> Any:
    return x

async def later(x):
    return x

def items(x: list):
    yield from x

def whole(**x):
    return x

def deep(n: int, kind: str = "list", limit: int = 0):
    if limit:
        sys.setrecursionlimit(limit)
    value = 1
    for _ in range(n):
        value = [value] if kind == "list" else {"a": value} if kind == "dict" else (value,)
    return value

def depth(x) -> int:
    n = 0
    while isinstance(x, list):
        n, x = n + 1, (x[0] if x else None)
    return n
`

// Any JSON comes back as the same text, through a plain function, a coroutine, **kwargs and a
// stream.
func TestRandomJSONComesBackByteForByte(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), echoTools, "echo", "typed", "later", "items", "whole")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range 300 {
		m := &textMaker{r: r}
		m.value(5)
		want := m.b.String()
		name := []string{"t.echo", "t.typed", "t.later"}[i%3]
		if got, err := send(t, ix, name, `{"x":`+want+`}`); err != nil || got != want {
			t.Fatalf("%s: got %s, %v\nwant %s", name, got, err, want)
		}
		if strings.HasPrefix(want, "{") {
			if got, err := send(t, ix, "t.whole", want); err != nil || got != want {
				t.Fatalf("whole: got %s, %v\nwant %s", got, err, want)
			}
		}
		if strings.HasPrefix(want, "[") {
			sink := &collector{}
			if _, err := ix.Call(t.Context(), executor.Call{Tool: "t.items", Args: json.RawMessage(`{"x":` + want + `}`), Stream: true}, sink); err != nil {
				t.Fatal(err)
			}
			if got := "[" + strings.Join(sink.items, ",") + "]"; got != want {
				t.Fatalf("items: got %s\nwant %s", got, want)
			}
		}
	}
}

// Values at the edges: exact, or refused in words.
func TestValuesAtTheEdges(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), echoTools, "echo", "later", "deep", "depth")
	for _, want := range []string{
		`9007199254740993`, `-123456789012345678901234567890`, strings.Repeat("9", 900), `-0.0`, `5e-324`, `1.7976931348623157e+308`, `0.1`,
		`""`, `[]`, `{}`, `null`, `"\u0000"`, `"😀"`, `"e\u0301"`[:2] + "\u0301\"", `{"":""}`, `{"a":{"":[]}}`, `[[],{},null,false,0,""]`,
		strings.Repeat("[", 200) + strings.Repeat("]", 200),
	} {
		for _, name := range []string{"t.echo", "t.later"} {
			if got, err := send(t, ix, name, `{"x":`+want+`}`); err != nil || got != want {
				t.Errorf("%s(%.60s) = %.60s, %v", name, want, got, err)
			}
		}
	}
	for _, bad := range []string{
		`1e400`, `-1e400`, `NaN`, `Infinity`, `-Infinity`, strings.Repeat("9", 5000), `01`, `"\x"`,
		strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000),
	} {
		if got, err := send(t, ix, "t.echo", `{"x":`+bad+`}`); toolmesh.CodeOf(err) != toolmesh.CodeInvalidArguments {
			t.Errorf("echo(%.40s) = %.40s, %v; want invalid_arguments", bad, got, err)
		}
	}
	// The worker itself, without the agent's check before it.
	for _, bad := range []string{`NaN`, strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), strings.Repeat("9", 5000)} {
		for _, name := range []string{"t.echo", "t.later"} {
			e := mustFail(t, ix, name, `{"x":`+bad+`}`, toolmesh.CodeInvalidArguments)
			if e.Started != toolmesh.StartedNo {
				t.Errorf("%s(%.20s): started %v", name, bad, e.Started)
			}
		}
	}
	mustCall(t, ix, "t.depth", `{"x":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)+`}`, `200`)
	if got, err := send(t, ix, "t.echo", `{"x":"\ud800"}`); err == nil || toolmesh.CodeOf(err) != toolmesh.CodeResultNotSerializable {
		t.Errorf("a lone surrogate: %s, %v; want result_not_serializable", got, err)
	}

	for _, kind := range []string{"list", "dict", "tuple"} {
		opening, closing := "[", "]"
		if kind == "dict" {
			opening, closing = `{"a":`, "}"
		}
		mustCall(t, ix, "t.deep", `{"n":300,"kind":"`+kind+`"}`, strings.Repeat(opening, 300)+"1"+strings.Repeat(closing, 300))
		mustFail(t, ix, "t.deep", `{"n":100000,"kind":"`+kind+`"}`, toolmesh.CodeResultNotSerializable)
		// A tool that raises the limit does not get a crash for it.
		mustFail(t, ix, "t.deep", `{"n":1000000,"kind":"`+kind+`","limit":100000000}`, toolmesh.CodeResultNotSerializable)
	}
	mustCall(t, ix, "t.deep", `{"n":1}`, `[1]`)
	if n := ix.Stats().Restarts; n != 0 {
		t.Errorf("%d workers ended", n)
	}
}

// resultsTools are results of every kind, good and bad.
const resultsTools = typesPrelude + `
import array, fractions, ipaddress, types

class Loud:
    """Everything about it raises."""
    def __repr__(self): raise RuntimeError("repr")
    __str__ = __repr__
    def __iter__(self): raise RuntimeError("iter")
    def __getattr__(self, name): raise RuntimeError("getattr " + name)

class Liar:
    @property
    def __class__(self): raise RuntimeError("class")

class Endless(abc.Sequence):
    def __len__(self): return 10**9
    def __getitem__(self, i): return i

class Map(abc.Mapping):
    def __init__(self, inner): self.inner = inner
    def __getitem__(self, key): return self.inner[key]
    def __iter__(self): return iter(self.inner)
    def __len__(self): return len(self.inner)

class LoudKey:
    def __repr__(self): raise RuntimeError("repr")

looped = {"a": []}
looped["a"].append(looped)

@dataclasses.dataclass
class Self:
    inner: Any = None

knot = Self()
knot.inner = [knot]

VALUES = {
    "none": None, "enum": Color.RED, "enum key": {Color.RED: 1, Level.LOW: 2}, "place": Place.HERE,
    "date key": {datetime.date(2026, 1, 31): 1}, "uuid key": {uuid.UUID(int=1): 1},
    "int keys": {1: "a", True + 1: "b", None: "c"},
    "dataclass": Point(1, 2), "nested dataclass": Box(Box(Color.BLUE)), "named tuple": Pair(1),
    "datetime": datetime.datetime(2026, 1, 31, 12), "aware": datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc),
    "date": datetime.date(2026, 1, 31), "time": datetime.time(12, 30), "timedelta": datetime.timedelta(seconds=90),
    "decimal": decimal.Decimal("1.10"), "fraction": fractions.Fraction(1, 3), "uuid": uuid.UUID(int=1),
    "path": pathlib.PurePosixPath("/a/b"), "bytes": b"hi", "ip": ipaddress.ip_address("127.0.0.1"),
    "set": {3, 1, 2}, "frozenset": frozenset("a"), "deque": collections.deque([1]), "range": range(3),
    "array": array.array("i", [1, 2]), "keys": {"a": 1}.keys(), "values": {"a": 1}.values(), "items": {"a": 1}.items(),
    "mapping": Map({"a": 1}), "proxy": types.MappingProxyType({"a": 1}), "user string": collections.UserString("ab"),
    "user dict": collections.UserDict(a=1), "user list": collections.UserList([1]), "pattern": re.compile("a+"),
    "tuple": (1, (2,)), "str subclass": Tone.SOFT, "port": Port(80), "flags": Rights.READ | Rights.WRITE,

    "nan": {"items": [1, 2, 3, {"score": float("nan")}]}, "infinite": [float("-inf")], "nan in set": [{float("nan")}],
    "object": {"f": object()}, "function": told, "class": Point, "module": sys, "complex": [1j],
    "cycle": looped, "knot": knot, "collide": {"a": {1: "x", "1": "y"}}, "collide ordered": collections.OrderedDict({1: 1, "1": 2}),
    "collide in tuple": Pair(1, {None: 1, "null": 2}), "collide enum": {"red": 1, Color.RED: 2},
    "tuple key": {(1, 2): 3}, "loud key": {LoudKey(): 1}, "surrogate": {"x": "\ud800"}, "surrogate key": {"\ud800": 1},
    "loud": [Loud()], "liar": {"a": Liar()}, "endless": Endless(), "huge range": range(10**12),
    "big int": 10**5000, "generator in list": [(n for n in [1])], "long key": {"k" * 100000: object()},
}

def give(which: str):
    return VALUES[which]

async def give_later(which: str):
    return VALUES[which]

def names() -> list:
    return list(VALUES)

def place() -> dict[Place, list[Place]]:
    return {Place.HERE: [Place.THERE]}

def raw() -> dict[str, Union[bytes, int]]:
    return {"a": b"hi", "b": 1}

def point() -> Point:
    return Point(1)

def liar() -> Movie:
    return [1]  # not what was promised
`

func TestEveryResult(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), resultsTools, "give", "give_later", "names", "place", "raw", "point", "liar")
	want := map[string]string{
		"none": `null`, "enum": `"red"`, "enum key": `{"red":1,"1":2}`, "place": `[0,0]`, "date key": `{"2026-01-31":1}`,
		"uuid key": `{"00000000-0000-0000-0000-000000000001":1}`, "int keys": `{"1":"a","2":"b","null":"c"}`,
		"dataclass": `{"x":1,"y":2,"tags":[],"total":1}`, "nested dataclass": `{"content":{"content":"blue"}}`, "named tuple": `[1,"x"]`,
		"datetime": `"2026-01-31T12:00:00"`, "aware": `"2026-01-31T12:00:00+00:00"`, "date": `"2026-01-31"`, "time": `"12:30:00"`,
		"timedelta": `90.0`, "decimal": `"1.10"`, "fraction": `"1/3"`, "uuid": `"00000000-0000-0000-0000-000000000001"`,
		"path": `"/a/b"`, "bytes": `{"$bytes":"aGk="}`, "ip": `"127.0.0.1"`, "set": `[1,2,3]`, "frozenset": `["a"]`, "deque": `[1]`,
		"range": `[0,1,2]`, "array": `[1,2]`, "keys": `["a"]`, "values": `[1]`, "items": `[["a",1]]`, "mapping": `{"a":1}`, "proxy": `{"a":1}`,
		"user string": `"ab"`, "user dict": `{"a":1}`, "user list": `[1]`, "pattern": `"a+"`, "tuple": `[1,[2]]`, "str subclass": `"soft"`,
		"port": `80`, "flags": `3`,
	}
	refused := map[string]struct{ path, words string }{
		"nan": {"result.items[3].score", "NaN"}, "infinite": {"result[0]", "infinite"}, "nan in set": {"result[0][0]", "NaN"},
		"object": {"result.f", "builtins.object"}, "function": {"result", "function"}, "class": {"result", "type"}, "module": {"result", "module"},
		"complex": {"result[0]", "complex"}, "cycle": {"result.a[0]", "contains itself"}, "knot": {"result.inner[0]", "contains itself"},
		"collide": {"result.a", "the same key"}, "collide ordered": {"result", "the same key"}, "collide in tuple": {"result[1]", "the same key"},
		"collide enum": {"result", "the same key"}, "tuple key": {"result", "key of type tuple"}, "loud key": {"result", "key of type LoudKey"},
		"surrogate": {"result.x", "surrogate"}, "surrogate key": {`result (key '\ud800')`, "surrogate"}, "loud": {"result[0]", "t.Loud"},
		"liar": {"", ""}, "endless": {"result", "more than 1000000"}, "huge range": {"result", "more than 1000000"}, "big int": {"result", "too long a number"},
		"generator in list": {"result[0]", "generator"}, "long key": {"", "builtins.object"},
	}
	var names []string
	body, err := call(t, ix, "t.names", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(body), &names); err != nil {
		t.Fatal(err)
	}
	if len(names) != len(want)+len(refused) {
		t.Errorf("%d values, of which %d+%d are looked at", len(names), len(want), len(refused))
	}
	for _, which := range names {
		args, _ := json.Marshal(map[string]string{"which": which})
		for _, name := range []string{"t.give", "t.give_later"} {
			if text, good := want[which]; good {
				mustCall(t, ix, name, string(args), text)
				continue
			}
			e := mustFail(t, ix, name, string(args), toolmesh.CodeResultNotSerializable)
			path, _ := e.Details["path"].(string)
			if r := refused[which]; r.path != "" && path != r.path || !strings.Contains(e.Message, r.words) || !strings.HasPrefix(e.Message, path+" ") {
				t.Errorf("%s: path %q, message %q; want %+v", which, path, e.Message, r)
			}
			if len(e.Message) > 1000 || e.Started != toolmesh.StartedYes || e.Origin != toolmesh.OriginTool {
				t.Errorf("%s: %d characters, started %v, origin %s", which, len(e.Message), e.Started, e.Origin)
			}
		}
	}
	mustCall(t, ix, "t.place", `{}`, `{"HERE":["THERE"]}`)
	mustCall(t, ix, "t.raw", `{}`, `{"a":"aGk=","b":1}`)
	mustCall(t, ix, "t.liar", `{}`, `[1]`)
	mustCall(t, ix, "t.point", `{}`, `{"x":1,"y":0.5,"tags":[],"total":1}`)
	// A result has all its fields, an argument only those that can be set.
	if output := toolOf(t, ix, "t.point").OutputSchema; !sameJSON(t, output, []byte(`{"type":"object","properties":{
		"x":{"type":"integer","description":"to the right"},"y":{"type":"number"},"tags":{"type":"array","items":{"type":"string"}},
		"total":{"type":"number"}},"required":["x","y","tags","total"],"additionalProperties":false}`)) {
		t.Errorf("output schema %s", output)
	}
	if n := ix.Stats().Restarts; n != 0 {
		t.Errorf("%d workers ended", n)
	}
}

const hostileTools = `
import sys

class Odd(Exception):
    pass

def cause():
    try:
        try:
            1 / 0
        except ZeroDivisionError:
            {}["missing"]
    except KeyError as e:
        raise Odd("bad key") from e

def hidden():
    try:
        1 / 0
    except ZeroDivisionError:
        raise Odd("only this") from None

def noted():
    e = Odd("with notes")
    e.__notes__ = ["first note", 5, "second note"]
    raise e

def group():
    raise ExceptionGroup("several", [ValueError("one"), ExceptionGroup("inner", [TypeError("two")])])

def deep_group():
    e = ValueError("innermost")
    for n in range(2000):
        e = ExceptionGroup("g", [e])
    raise e

def wide_group():
    e = [ValueError("leaf")]
    for n in range(4):
        e = [ExceptionGroup("g", [*e, *[ValueError(str(k)) for k in range(9)]]) for k in range(9)]
    raise ExceptionGroup("top", e)

def long_chain():
    e = None
    for n in range(3000):
        try:
            raise Odd(f"link {n}") from e
        except Odd as failure:
            e = failure
    raise e

def loop_chain():
    a, b = Odd("a"), Odd("b")
    a.__cause__, b.__cause__ = b, a
    raise a

def huge():
    raise Odd("x" * 5_000_000)

def mute():
    class Mute(Exception):
        def __str__(self): raise SystemExit("from str")
        __repr__ = __str__
    raise Mute

def false_group():
    class False_(Exception):
        exceptions = 5
        __notes__ = 7
    raise False_("no group")

def raising_attributes():
    class Property(Exception):
        @property
        def exceptions(self): raise RuntimeError("exceptions")
        @property
        def __notes__(self): raise RuntimeError("notes")
    raise Property("told all the same")

def meta():
    class Meta(type):
        def __getattribute__(cls, name):
            if name in ("__qualname__", "__module__", "__name__"):
                raise RuntimeError(name)
            return super().__getattribute__(name)
    class Broken(Exception, metaclass=Meta): pass
    raise Broken("meta")

def syntax():
    raise SyntaxError("odd", (5, 6, 7, 8))

def surrogate():
    raise Odd("\ud800")

def recursion():
    return recursion()

def ok(): return 1
`

func TestAllExceptionsAreReported(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), hostileTools, "cause", "hidden", "noted", "group", "deep_group", "wide_group", "long_chain",
		"loop_chain", "huge", "mute", "false_group", "raising_attributes", "meta", "syntax", "surrogate", "recursion", "ok")
	fail := func(name string) *toolmesh.Error {
		t.Helper()
		e := mustFail(t, ix, "t."+name, `{}`, toolmesh.CodeToolError)
		if size := len(told(t, e)); size > 400<<10 {
			t.Errorf("%s: the error is %d bytes", name, size)
		}
		if e.Type == "" || e.Stacktrace == "" || e.Origin != toolmesh.OriginTool || e.Started != toolmesh.StartedYes {
			t.Errorf("%s: type %q, origin %s, started %v", name, e.Type, e.Origin, e.Started)
		}
		return e
	}
	asked := func(e *toolmesh.Error, key string) string {
		data, _ := json.Marshal(e.Details[key])
		return string(data)
	}

	e := fail("cause")
	if got, want := asked(e, "causes"), `[{"message":"'missing'","module":"builtins","relation":"cause","type":"KeyError"},`+
		`{"message":"division by zero","module":"builtins","relation":"context","type":"ZeroDivisionError"}]`; got != want {
		t.Errorf("causes are %s, want %s", got, want)
	}
	if e.Details["module"] != "t" || e.Type != "Odd" || !strings.Contains(e.Stacktrace, "direct cause") || !strings.Contains(e.Stacktrace, "During handling") {
		t.Errorf("module %v, type %s\n%s", e.Details["module"], e.Type, e.Stacktrace)
	}
	if e := fail("hidden"); asked(e, "causes") != "[]" || strings.Contains(e.Stacktrace, "ZeroDivision") {
		t.Errorf("what was suppressed is told: %s\n%s", asked(e, "causes"), e.Stacktrace)
	}
	if e := fail("noted"); asked(e, "notes") != `["first note","second note"]` || !strings.Contains(e.Stacktrace, "first note\nsecond note") {
		t.Errorf("notes are %s\n%s", asked(e, "notes"), e.Stacktrace)
	}
	if e := fail("group"); e.Type != "NameError" { // before 3.11
		if got := asked(e, "exceptions"); e.Type != "ExceptionGroup" || !strings.Contains(got, `"message":"one"`) || !strings.Contains(e.Stacktrace, "TypeError: two") {
			t.Errorf("type %s, members %s\n%s", e.Type, got, e.Stacktrace)
		}
	}
	for _, name := range []string{"deep_group", "wide_group", "long_chain", "loop_chain", "meta", "syntax"} {
		fail(name)
	}
	if e := fail("huge"); len(e.Message) > 20<<10 || !strings.Contains(e.Message, "characters more") {
		t.Errorf("the message has %d characters", len(e.Message))
	}
	for name, part := range map[string]string{
		"mute": "its __str__ raised SystemExit", "false_group": "no group", "raising_attributes": "told all the same", "surrogate": "?", "recursion": "recursion",
	} {
		if e := fail(name); !strings.Contains(e.Message, part) {
			t.Errorf("%s: message %q, want %q in it", name, e.Message, part)
		}
	}
	mustCall(t, ix, "t.ok", `{}`, `1`)
	if n := ix.Stats().Restarts; n != 0 {
		t.Errorf("%d workers ended", n)
	}
}

// Defects of the reference library, none of which exists here.
func TestTheTwelveDefects(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) { o.Environ = append(os.Environ(), "HOST_ONLY=1") })
	dir := writeFiles(t, map[string]string{"u.py": typesPrelude + `
import asyncio, time
def exits(n: int): sys.exit(n)
def os_exits(n: int):
    sys.stderr.write("last words\n")
    sys.stderr.flush()
    os._exit(n)
def noisy(n: int) -> int:
    sys.stderr.write("x" * n)
    os.write(2, b"y" * n)
    return n
def env(name: str): return os.environ.get(name)
async def sleeps(n: int) -> int:
    await asyncio.sleep(0.5)
    return n
def empty():
    return
    yield
def breaks():
    yield 1
    yield 2
    raise ValueError("after two")
def null(x: Optional[str] = "default"): return x
def bare(x="default"): return x
def enum_default(x: Color = Color.BLUE) -> str: return told(x)
def odd_default(x=Opaque()) -> str: return type(x).__name__
def recursive(x: Tree) -> Tree: return x
def twice(x: Shelf) -> str: return told(x)
def color(x: Color) -> str: return told(x)
def aok(): return "aok"
def _private(): return "private"
def undeclared(): return "undeclared"
`})
	declared := []string{"u.exits", "u.os_exits", "u.noisy", "u.env", "u.sleeps", "u.empty", "u.breaks", "u.null", "u.bare",
		"u.enum_default", "u.odd_default", "u.recursive", "u.twice", "u.color", "u.aok"}
	spec := specOf(t, x, dir, declared...)
	spec.Vars = map[string]string{"GIVEN": "yes"}
	ix := open(t, x, spec)
	if len(ix.Unavailable()) > 0 {
		t.Fatalf("not served: %+v", ix.Unavailable())
	}
	t.Run("1 an interpreter that ends at once is an error, not a wait", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		for _, change := range []func(env *executor.Env){
			func(env *executor.Env) { env.Base = "/bin/false" },
			func(env *executor.Env) { env.Python = "/bin/false" },
		} {
			broken, env := spec, *spec.Env
			change(&env)
			broken.Env, broken.Vars = &env, map[string]string{"LD_LIBRARY_PATH": "/nowhere"} // so that it is run
			if _, err := x.Open(ctx, broken); err == nil || ctx.Err() != nil {
				t.Errorf("got %v, context %v", err, ctx.Err())
			}
		}
	})
	t.Run("2 much on stderr does not block", func(t *testing.T) {
		mustCall(t, ix, "u.noisy", `{"n":2000000}`, `2000000`)
	})
	t.Run("3 exits say how", func(t *testing.T) {
		if e := mustFail(t, ix, "u.exits", `{"n":3}`, toolmesh.CodeToolError); e.Type != "SystemExit" || !strings.Contains(e.Message, "sys.exit(3)") {
			t.Errorf("got %s: %s", e.Type, e.Message)
		}
		e := mustFail(t, ix, "u.os_exits", `{"n":7}`, toolmesh.CodeWorkerCrashed)
		if e.Details["exit_status"] != 7 || !strings.HasSuffix(e.Details["stderr"].(string), "last words") {
			t.Errorf("details %v", e.Details)
		}
	})
	t.Run("4 variables are added to a small base, never all of the host's", func(t *testing.T) {
		mustCall(t, ix, "u.env", `{"name":"GIVEN"}`, `"yes"`)
		mustCall(t, ix, "u.env", `{"name":"HOST_ONLY"}`, `null`)
		if got, err := call(t, ix, "u.env", `{"name":"PATH"}`); err != nil || got == `null` {
			t.Errorf("PATH is %s, %v", got, err)
		}
	})
	t.Run("5 coroutines run at once", func(t *testing.T) {
		start := time.Now()
		results := make(chan error, 20)
		for n := range 20 {
			go func() {
				got, err := ix.Call(t.Context(), executor.Call{Tool: "u.sleeps", Args: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n))}, nil)
				if err == nil && string(got) != strconv.Itoa(n) {
					err = fmt.Errorf("%d got %s", n, got)
				}
				results <- err
			}()
		}
		for range 20 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took > 8*time.Second { // 10 s one after the other
			t.Errorf("20 calls of half a second took %v", took)
		}
	})
	t.Run("6 a generator without items, and one that fails", func(t *testing.T) {
		mustCall(t, ix, "u.empty", `{}`, `null`)
		sink := &collector{}
		_, err := ix.Call(t.Context(), executor.Call{Tool: "u.breaks", Stream: true}, sink)
		if toolmesh.CodeOf(err) != toolmesh.CodeToolError || !slices.Equal(sink.items, []string{"1", "2"}) {
			t.Errorf("items %v, %v", sink.items, err)
		}
	})
	t.Run("7 null is not absent", func(t *testing.T) {
		for _, name := range []string{"u.null", "u.bare"} {
			for args, want := range map[string]string{`{"x":null}`: `null`, `{}`: `"default"`, `{"x":"a"}`: `"a"`} {
				if got, err := send(t, ix, name, args); err != nil || got != want {
					t.Errorf("%s(%s) = %s, %v; want %s", name, args, got, err, want)
				}
			}
		}
	})
	t.Run("8 any default", func(t *testing.T) {
		mustCall(t, ix, "u.enum_default", `{}`, `"Color.BLUE"`)
		mustCall(t, ix, "u.odd_default", `{}`, `"Opaque"`)
		if schema := string(toolOf(t, ix, "u.enum_default").InputSchema); !strings.Contains(schema, `"default": "blue"`) && !strings.Contains(schema, `"default":"blue"`) {
			t.Errorf("schema %s", schema)
		}
	})
	t.Run("9 recursive types, and one type twice", func(t *testing.T) {
		mustCall(t, ix, "u.recursive", `{"x":{"name":"a","children":[]}}`, `{"name":"a","children":[]}`)
		if got, err := send(t, ix, "u.twice", `{"x":{"first":{"title":"a","color":"red"},"second":{"title":"b","color":"blue"},"tone":"soft","other":"soft"}}`); err != nil {
			t.Errorf("%s, %v", got, err)
		}
	})
	t.Run("10 members of an Enum, unknown ones refused", func(t *testing.T) {
		mustCall(t, ix, "u.color", `{"x":"red"}`, `"Color.RED"`)
		mustRefuse(t, ix, "u.color", `{"x":"green"}`, "/x")
		mustFail(t, ix, "u.color", `{"x":"green"}`, toolmesh.CodeInvalidArguments)
	})
	t.Run("11 names are names", func(t *testing.T) {
		mustCall(t, ix, "u.aok", `{}`, `"aok"`)
		for _, name := range []string{"u.aok+", "[u].aok", "u-aok", "u.(", "u.*", ".*", "U.aok", ""} {
			mustFail(t, ix, name, `{}`, toolmesh.CodeToolNotFound)
		}
	})
	t.Run("12 only what is declared", func(t *testing.T) {
		for _, name := range []string{"u._private", "u.undeclared", "os.getcwd", "u.os.getcwd"} {
			mustFail(t, ix, name, `{}`, toolmesh.CodeToolNotFound)
		}
	})
}
