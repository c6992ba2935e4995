package executor_test

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

const failingTools = `
import os, signal, sys

class Sold(Exception):
    pass

def inner(n):
    raise Sold(f"no {n} left")

def fails(n: int):
    inner(n)

def chained():
    try:
        {}["missing"]
    except KeyError as e:
        raise ValueError("bad key") from e

def exits():
    sys.exit(3)

def os_exits():
    sys.stderr.write("last words\n")
    os._exit(7)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def segfault():
    import ctypes
    ctypes.string_at(0)

def ok(n: int = 1):
    return n

def nan():
    return {"items": [1, 2, 3, {"score": float("nan")}]}

def infinite():
    return [float("-inf")]

def collide():
    return {"a": {1: "x", "1": "y"}}

def cycle():
    a = []
    a.append(a)
    return a

def opaque():
    return {"f": object()}

def tuple_key():
    return {(1, 2): 3}

def surrogate():
    return {"x": "\ud800"}

def interrupt():
    raise KeyboardInterrupt

def bad_str():
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError("no text")
    raise Odd

def type_error_inside(n: int):
    return n + "x"

def deep():
    return deep()

def group():
    raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])

def posonly(a, b, /, c=3):
    return [a, b, c]

def nested():
    value = []
    for _ in range(100000):
        value = [value]
    return value

def big(n: int):
    return "x" * n
`

func failingIndex(t *testing.T, change func(*executor.Options)) *executor.Index {
	t.Helper()
	return openModule(t, newExecutor(t, change), failingTools, "fails", "chained", "exits", "os_exits", "killed",
		"segfault", "ok", "nan", "infinite", "collide", "cycle", "opaque", "tuple_key", "surrogate", "interrupt",
		"bad_str", "type_error_inside", "deep", "posonly", "nested", "big")
}

func TestToolErrorsHaveTypeMessageAndTrace(t *testing.T) {
	t.Parallel()
	ix := failingIndex(t, nil)

	e := mustFail(t, ix, "t.fails", `{"n":3}`, toolmesh.CodeToolError)
	if e.Type != "Sold" || e.Message != "no 3 left" || e.Origin != toolmesh.OriginTool || e.Started != toolmesh.StartedYes {
		t.Errorf("got type %q, message %q, origin %s, started %v", e.Type, e.Message, e.Origin, e.Started)
	}
	want := "Traceback (most recent call last):\n" +
		"  File \"t.py\", line 11, in fails\n    inner(n)\n" +
		"  File \"t.py\", line 8, in inner\n    raise Sold(f\"no {n} left\")\n" +
		"t.Sold: no 3 left"
	if diff := cmp.Diff(want, e.Stacktrace); diff != "" {
		t.Errorf("stacktrace differs (-want +got):\n%s", diff)
	}
	if e.Details["module"] != "t" {
		t.Errorf("details.module = %v, want t", e.Details["module"])
	}

	e = mustFail(t, ix, "t.chained", `{}`, toolmesh.CodeToolError)
	if causes, _ := json.Marshal(e.Details["causes"]); !strings.Contains(string(causes), `"type":"KeyError"`) {
		t.Errorf("details.causes = %s, want a KeyError", causes)
	}
	if !strings.Contains(e.Stacktrace, "direct cause") {
		t.Errorf("the stacktrace leaves the cause out:\n%s", e.Stacktrace)
	}

	for tool, kind := range map[string]string{
		"t.exits": "SystemExit", "t.interrupt": "KeyboardInterrupt", "t.type_error_inside": "TypeError",
		"t.deep": "RecursionError", "t.bad_str": "bad_str.<locals>.Odd",
	} {
		args := `{}`
		if tool == "t.type_error_inside" {
			args = `{"n":1}`
		}
		if e := mustFail(t, ix, tool, args, toolmesh.CodeToolError); e.Type != kind {
			t.Errorf("%s: type %q, want %q", tool, e.Type, kind)
		}
	}
	mustCall(t, ix, "t.ok", `{}`, `1`)
	if s := ix.Stats(); s.Restarts != 0 {
		t.Errorf("%d workers were restarted; a tool's exception must not cost one", s.Restarts)
	}
}

func TestResultsThatJSONCannotCarryNameThePlace(t *testing.T) {
	t.Parallel()
	ix := failingIndex(t, nil)
	for tool, path := range map[string]string{
		"t.nan": "result.items[3].score", "t.infinite": "result[0]", "t.collide": "result.a", "t.cycle": "result[0]",
		"t.opaque": "result.f", "t.tuple_key": "result", "t.surrogate": "result.x",
	} {
		e := mustFail(t, ix, tool, `{}`, toolmesh.CodeResultNotSerializable)
		if e.Details["path"] != path || !strings.HasPrefix(e.Message, path+" ") {
			t.Errorf("%s: path %v, message %q, want %s", tool, e.Details["path"], e.Message, path)
		}
		if e.Origin != toolmesh.OriginTool || e.Started != toolmesh.StartedYes {
			t.Errorf("%s: origin %s, started %v", tool, e.Origin, e.Started)
		}
	}
	mustFail(t, ix, "t.nested", `{}`, toolmesh.CodeResultNotSerializable)
	mustCall(t, ix, "t.ok", `{}`, `1`)
}

func TestCrashesAreReportedAndTheNextCallIsServed(t *testing.T) {
	t.Parallel()
	ix := failingIndex(t, nil)
	e := mustFail(t, ix, "t.os_exits", `{}`, toolmesh.CodeWorkerCrashed)
	if e.Details["exit_status"] != 7 || !strings.Contains(e.Details["stderr"].(string), "last words") {
		t.Errorf("details = %v, want exit status 7 and the last words", e.Details)
	}
	if e.Started != toolmesh.StartedYes || e.Origin != toolmesh.OriginWorker {
		t.Errorf("started %v, origin %s", e.Started, e.Origin)
	}
	mustCall(t, ix, "t.ok", `{}`, `1`)
	if e := mustFail(t, ix, "t.killed", `{}`, toolmesh.CodeWorkerCrashed); e.Details["signal"] != 9 {
		t.Errorf("details = %v, want signal 9", e.Details)
	}
	mustCall(t, ix, "t.ok", `{"n":2}`, `2`)
	if e := mustFail(t, ix, "t.segfault", `{}`, toolmesh.CodeWorkerCrashed); e.Details["signal"] != 11 {
		t.Errorf("details = %v, want signal 11", e.Details)
	} else if !strings.Contains(e.Details["stderr"].(string), "in segfault") {
		t.Errorf("the last words do not show where it was: %v", e.Details["stderr"])
	}
	mustCall(t, ix, "t.ok", `{"n":3}`, `3`)
	// As often as a tool may crash before it is refused: the others are served.
	for range 4 {
		mustFail(t, ix, "t.os_exits", `{}`, toolmesh.CodeWorkerCrashed)
	}
	mustCall(t, ix, "t.ok", `{"n":4}`, `4`)
	if s := ix.Stats(); s.Restarts != 7 {
		t.Errorf("%d restarts, want 7", s.Restarts)
	}
}

func TestArgumentsThatDoNotFitAreRefusedBeforeTheToolRuns(t *testing.T) {
	t.Parallel()
	ix := failingIndex(t, nil)
	for _, c := range []struct{ tool, args, pointer string }{
		{"t.fails", `{}`, "/n"},
		{"t.fails", `{"n":1,"m":2}`, "/m"},
		{"t.fails", `{"n":"three"}`, "/n"},
		{"t.posonly", `{"a":1}`, "/b"},
		{"t.ok", `[1]`, ""},
		{"t.ok", `{"n":`, ""},
	} {
		e := mustFail(t, ix, c.tool, c.args, toolmesh.CodeInvalidArguments)
		list, _ := e.Details["errors"].([]any)
		first, _ := list[0].(map[string]any)
		if first["pointer"] != c.pointer || e.Started != toolmesh.StartedNo {
			t.Errorf("%s(%s): %v, started %v; want pointer %q", c.tool, c.args, first, e.Started, c.pointer)
		}
	}
	mustCall(t, ix, "t.posonly", `{"b":2,"a":1}`, `[1,2,3]`)
	mustCall(t, ix, "t.ok", ``, `1`)
}

func TestTooLargeResultsAreRefusedByTheWorker(t *testing.T) {
	t.Parallel()
	ix := failingIndex(t, func(o *executor.Options) { o.MaxResult = 1000 })
	e := mustFail(t, ix, "t.big", `{"n":2000}`, toolmesh.CodePayloadTooLarge)
	if e.Started != toolmesh.StartedYes {
		t.Errorf("started %v, want yes", e.Started)
	}
	e = mustFail(t, ix, "t.big", `{"n":`+strings.Repeat(" ", 2000)+`1}`, toolmesh.CodePayloadTooLarge)
	if e.Started != toolmesh.StartedNo {
		t.Errorf("started %v, want no", e.Started)
	}
	mustCall(t, ix, "t.big", `{"n":3}`, `"xxx"`)
}

func TestACallThatIsOverBeforeItBeganIsNotStarted(t *testing.T) {
	t.Parallel()
	ix := failingIndex(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := ix.Call(ctx, executor.Call{Tool: "t.ok"}, nil)
	if e := toolmesh.AsError(err); e.Code != toolmesh.CodeCancelled || e.Started != toolmesh.StartedNo {
		t.Errorf("got %v, started %v", err, e.Started)
	}
	if err := ix.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := mustFail(t, ix, "t.ok", `{}`, toolmesh.CodeUnavailable)
	if e.Started != toolmesh.StartedNo || !e.Retryable {
		t.Errorf("started %v, retryable %v", e.Started, e.Retryable)
	}
}

func TestUnservableToolsAreListedAndTheRestIsServed(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) { o.StartTimeout = 8 * time.Second })
	dir := writeFiles(t, map[string]string{
		"good.py": `
import os, sys
print("hello from the import")
os.write(1, b"\x00\xffgarbage\n" * 100)
sys.stdout.flush()
value = 3
def tool(): return "good"
def unresolved(x: "Missing", y: int = 1): return y
`,
		"raises.py":              `raise RuntimeError("broken at import")`,
		"exits.py":               "import sys\nsys.exit('no thanks')",
		"os_exits.py":            "import os, sys\nsys.stderr.write('going\\n')\nsys.stderr.flush()\nos._exit(5)",
		"hangs.py":               "import time\nwhile True: time.sleep(1)",
		"needs.py":               "import os\nKEY = os.environ['API_KEY']\ndef tool(): return KEY",
		"pkg/__init__.py":        "from .inner import tool",
		"pkg/inner.py":           `def tool(): return "package"`,
		"src/inside/tools.py":    `def tool(): return "src"`,
		"src/inside/__init__.py": "",
		"token.py":               `def mine(): return "mine"`,
		"bare.py":                "import no_such_package\ndef tool(): pass",
		"around.py":              "from about import x\ndef tool(): pass",
		"about.py":               "from around import tool\nx = 1",
		"classy.py":              "class Shop:\n    @staticmethod\n    def open(): pass",
	})
	spec := specOf(t, x, dir, "good.tool", "good.missing", "good.value", "raises.a", "raises.b", "exits.tool",
		"os_exits.tool", "hangs.tool", "nowhere.tool", "needs.tool", "pkg.tool", "inside.tools.tool", "good.unresolved", "flat",
		"token.mine", "around.tool", "bare.tool", "classy.Shop.open")
	ix := open(t, x, spec)
	mustCall(t, ix, "good.tool", `{}`, `"good"`)
	mustCall(t, ix, "pkg.tool", `{}`, `"package"`)
	mustCall(t, ix, "inside.tools.tool", `{}`, `"src"`)
	mustCall(t, ix, "good.unresolved", `{"x":[1]}`, `1`)

	var served []string
	for _, tool := range ix.Tools() {
		served = append(served, tool.Name)
		if tool.Name == "good.unresolved" && len(tool.Warnings) != 1 {
			t.Errorf("warnings of good.unresolved: %q, want one", tool.Warnings)
		}
	}
	if diff := cmp.Diff([]string{"good.tool", "good.unresolved", "inside.tools.tool", "pkg.tool"}, served); diff != "" {
		t.Errorf("served (-want +got):\n%s", diff)
	}
	reasons := map[string]string{}
	for _, u := range ix.Unavailable() {
		reasons[u.Name] = u.Reason
	}
	for name, part := range map[string]string{
		"good.missing": "has no missing", "good.value": "is of type int", "raises.a": "RuntimeError: broken at import",
		"raises.b": "RuntimeError", "exits.tool": "sys.exit(no thanks)", "os_exits.tool": "exit status 5",
		"hangs.tool": "did not end within", "nowhere.tool": "No module named 'nowhere'; the index has no such module",
		"bare.tool":  "No module named 'no_such_package'; the package that brings it is missing in the index's dependencies",
		"needs.tool": "environment variable API_KEY", "flat": "module.function",
		"token.mine":       "the module token is Python's own, loaded before the index's token.py",
		"around.tool":      "circular import) (around.py)",
		"classy.Shop.open": "'classy' is not a package",
	} {
		if !strings.Contains(reasons[name], part) {
			t.Errorf("%s: reason %q, want %q in it", name, reasons[name], part)
		}
	}
	e := mustFail(t, ix, "needs.tool", `{}`, toolmesh.CodeUnavailable)
	if e.Started != toolmesh.StartedNo || !strings.Contains(e.Message, "API_KEY") {
		t.Errorf("got %v", e)
	}

	spec.Vars = map[string]string{"API_KEY": "secret"}
	spec.Tools = []string{"needs.tool"}
	mustCall(t, open(t, x, spec), "needs.tool", `{}`, `"secret"`)
}

func TestAnIndexOfWhichNothingCanBeServedOpens(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), `import nothing_of_the_kind`, "a")
	if len(ix.Tools()) != 0 || len(ix.Unavailable()) != 1 {
		t.Errorf("tools %v, unavailable %v", ix.Tools(), ix.Unavailable())
	}
	mustFail(t, ix, "t.a", `{}`, toolmesh.CodeUnavailable)
}

func TestAWorkerSeesOnlyItsOwnEnvironment(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) {
		o.Environ = append(os.Environ(), "HOST_SECRET=1", "HOME=/home/of/test", "PYTHONPATH=/nowhere")
	})
	dir := writeFiles(t, map[string]string{"t.py": `
import os, sys
def env(): return dict(os.environ)
def place(): return [os.getcwd(), sys.path[0], sys.argv, os.path.exists("t.py")]
`})
	spec := specOf(t, x, dir, "t.env", "t.place")
	spec.Vars = map[string]string{"TOKEN": "x=y", "OMP_NUM_THREADS": "3"}
	ix := open(t, x, spec)
	body, err := call(t, ix, "t.env", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	for name := range got {
		switch name {
		case "PATH", "HOME", "LANG", "TMPDIR", "TOKEN", "LC_CTYPE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
			"MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS":
		default: // except the variables of the machine's own agents
			if !slices.ContainsFunc(executor.ToolEnv(), func(one string) bool { return strings.EqualFold(one, name) }) {
				t.Errorf("the worker sees %s", name)
			}
		}
	}
	for name, value := range map[string]string{"TOKEN": "x=y", "OMP_NUM_THREADS": "3", "HOME": "/home/of/test", "MKL_NUM_THREADS": "1"} {
		if got[name] != value {
			t.Errorf("%s = %q, want %q", name, got[name], value)
		}
	}
	mustCall(t, ix, "t.place", `{}`, `["`+dir+`","`+dir+`",[""],true]`)
}
