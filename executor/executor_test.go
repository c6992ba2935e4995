package executor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

func TestInvalidOptionsAreRefusedByName(t *testing.T) {
	t.Parallel()
	for field, o := range map[string]*executor.Options{
		"Sandbox": {Sandbox: "none at all"}, "MaxResult": {MaxResult: 2 << 30},
	} {
		if _, err := executor.New(t.TempDir(), o); err == nil || !strings.Contains(err.Error(), "Options."+field) {
			t.Errorf("%s: got %v, want an error that names it", field, err)
		}
	}
	x, err := executor.New(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if most := x.MaxArgs(); most != 64<<20 { // and of results
		t.Errorf("arguments have at most %d bytes, want 64 MiB", most)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	if err := x.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

// The worker's files are written once per content, with bytecode, and a second executor in the
// same folder finds them; damaged files are written again.
func TestTheWorkersFilesAreWrittenOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	find := func() []string {
		files, err := filepath.Glob(filepath.Join(dir, "worker", "*", "startup", "__pycache__", "zygote.*.pyc"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	for _, harm := range []func() error{
		nil,
		func() error { return nil },
		func() error { return os.Truncate(find()[0], 100) },
		func() error { return os.Truncate(filepath.Join(filepath.Dir(find()[0]), "..", "zygote.py"), 100) },
		func() error { return os.RemoveAll(filepath.Dir(find()[0])) },
	} {
		if harm != nil {
			if err := harm(); err != nil {
				t.Fatal(err)
			}
		}
		x, err := executor.New(dir, &executor.Options{Environ: append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")})
		if err != nil {
			t.Fatal(err)
		}
		source := writeFiles(t, map[string]string{"t.py": "def tool(): return 1\n"})
		ix := open(t, x, specOf(t, x, source, "t.tool"))
		mustCall(t, ix, "t.tool", `{}`, `1`)
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		if files := find(); len(files) != 1 {
			t.Errorf("compiled files: %v, want one", files)
		}
	}
}

func TestOpenOfAMissingObject(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	spec := specOf(t, x, t.TempDir(), "t.tool")
	spec.SourceDir += "/gone"
	if _, err := x.Open(t.Context(), spec); toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	spec.Env = nil
	if _, err := x.Open(t.Context(), spec); err == nil {
		t.Error("an index without an environment was opened")
	}
}

// VarArgs and every kind of parameter, through the wire.
func TestPositionalArgumentsReachTheFunction(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), `
def f(a, b=2, /, c=3, *rest: float, d=4, **more):
    return [a, b, c, list(rest), d, more]
async def af(a, *rest: int):
    return [a, list(rest)]
def plain(a, b=1):
    return [a, b]
`, "f", "af", "plain")
	f, plain := toolOf(t, ix, "t.f"), toolOf(t, ix, "t.plain")
	if got := strings.Join(f.Positional, " "); got != "a b c" || f.VarArgs != "rest" || plain.VarArgs != "" {
		t.Errorf("positional %q, varargs %q, %q", got, f.VarArgs, plain.VarArgs)
	}
	for _, c := range []struct{ tool, args, varargs, want string }{
		{"t.f", `{"a":1,"x":9}`, ``, `[1,2,3,[],4,{"x":9}]`},
		{"t.f", `{"a":1}`, `[7,8.5]`, `[1,2,3,[7.0,8.5],4,{}]`},
		{"t.af", `{"a":1}`, `[7]`, `[1,[7]]`},
		{"t.af", `{"a":1,"rest":[7]}`, `[]`, `[1,[7]]`},
	} {
		body, err := ix.Call(t.Context(), executor.Call{Tool: c.tool, Args: []byte(c.args), VarArgs: []byte(c.varargs)}, nil)
		if err != nil || string(body) != c.want {
			t.Errorf("%s(%s, %s): got %s, %v, want %s", c.tool, c.args, c.varargs, body, err, c.want)
		}
	}
	_, err := ix.Call(t.Context(), executor.Call{Tool: "t.plain", Args: []byte(`{"a":1}`), VarArgs: []byte(`[2]`)}, nil)
	if toolmesh.CodeOf(err) != toolmesh.CodeInvalidArguments {
		t.Errorf("got %v", err)
	}
}

// The schema of rich types holds on the wire, both ways.
func TestRichTypesRoundTrip(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), `
import dataclasses, datetime, enum, uuid
from typing import Optional, TypedDict

class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"

@dataclasses.dataclass
class Job:
    name: str
    color: Color
    due: Optional[datetime.date] = None

class Tree(TypedDict):
    name: str
    children: "list[Tree]"

def job(job: Job, data: bytes = b"") -> Job:
    assert isinstance(job, Job) and isinstance(job.color, Color) and isinstance(data, bytes)
    return dataclasses.replace(job, name=job.name + data.decode())

def data() -> bytes:
    return b"hi"

def tree(t: Tree) -> Tree:
    return t

def default(x: Optional[str] = "d"):
    return x
`, "job", "data", "tree", "default")
	mustCall(t, ix, "t.job", `{"job":{"name":"a","color":"red","due":"2026-01-31"},"data":"Yg=="}`,
		`{"name":"ab","color":"red","due":"2026-01-31"}`)
	mustCall(t, ix, "t.data", `{}`, `"aGk="`)
	mustCall(t, ix, "t.tree", `{"t":{"name":"a","children":[{"name":"b","children":[]}]}}`,
		`{"name":"a","children":[{"name":"b","children":[]}]}`)
	mustCall(t, ix, "t.default", `{}`, `"d"`)
	mustCall(t, ix, "t.default", `{"x":null}`, `null`)
	e := mustFail(t, ix, "t.job", `{"job":{"name":"a","color":"green"}}`, toolmesh.CodeInvalidArguments)
	if !strings.Contains(e.Message, "/job/color") {
		t.Errorf("message %q", e.Message)
	}
	if len(ix.Tools()) != 4 {
		t.Errorf("unavailable: %v", ix.Unavailable())
	}
}

// The folder of shared environments is one that tools cannot change.
func TestSharedEnvironmentsOutside(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	for _, shared := range []string{outside, link, dir} {
		x, err := executor.New(filepath.Join(dir, "executor"), &executor.Options{Sealed: dir, Environments: shared})
		if err == nil {
			_ = x.Close()
			t.Errorf("%s is taken", shared)
		} else if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "mount it there") {
			t.Errorf("%s: %v", shared, err)
		}
	}
}
