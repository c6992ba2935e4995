package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/meshtest"
)

const stateTools = `
import asyncio, os, random, sys, time

calls = 0
BORN = random.random()  # drawn at import
random.seed(7)

name = ""

def _me():
    global name
    name = name or os.urandom(8).hex()
    return name

def count():
    global calls
    calls += 1
    return calls

async def acount():
    return count()

def each(n: int):
    for _ in range(n):
        yield count()

async def aeach(n: int):
    for _ in range(n):
        yield count()

def me():
    return _me()

async def ame():
    return _me()

def born():
    return BORN

def draw():
    return [random.random(), random.getrandbits(64)]

def long():
    print("begun", flush=True)
    time.sleep(60)

async def along():
    print("begun", flush=True)
    await asyncio.sleep(60)

def endless():
    n = 0
    while True:
        n += 1
        yield n

def ignoring():
    while True:
        try:
            print("begun", flush=True)
            time.sleep(60)
        except BaseException:
            pass

def talk():
    print("to stdout")
    os.write(1, b"past python\n")
    print("to stderr", file=sys.stderr)
    return 1

def fail():
    raise ValueError("as it is")

def die():
    os._exit(3)

def note(path: str):
    import atexit
    atexit.register(lambda: open(path, "w").write("over"))
    return 1

def nap(n: float):
    time.sleep(n)
    return _me()

async def anap(n: float):
    await asyncio.sleep(n)
    return _me()
`

var stateNames = []string{
	"t.count", "t.acount", "t.each", "t.aeach", "t.me", "t.ame", "t.born", "t.draw", "t.long", "t.along", "t.endless", "t.ignoring",
	"t.talk", "t.fail", "t.die", "t.note", "t.nap", "t.anap",
}

// openIsolated serves stateTools, all under one policy.
func openIsolated(t testing.TB, policy executor.Policy, change func(*executor.Options)) *executor.Index {
	t.Helper()
	x := newExecutor(t, change)
	spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": stateTools}), stateNames...)
	spec.Policies = map[string]executor.Policy{}
	for _, name := range stateNames {
		spec.Policies[name] = policy
	}
	return open(t, x, spec)
}

// single are the isolations in which a worker serves one call.
var single = []toolmesh.Isolation{toolmesh.IsolationFork, toolmesh.IsolationFresh}

// perSingle runs a test for each of them.
func perSingle(t *testing.T, test func(t *testing.T, ix *executor.Index)) {
	t.Parallel()
	for _, isolation := range single {
		t.Run(string(isolation), func(t *testing.T) {
			t.Parallel()
			test(t, openIsolated(t, executor.Policy{Isolation: isolation}, nil))
		})
	}
}

func TestNothingSurvivesASingleUseWorker(t *testing.T) {
	perSingle(t, func(t *testing.T, ix *executor.Index) {
		seen := map[string]bool{}
		for range 2 {
			mustCall(t, ix, "t.count", `{}`, `1`)
			mustCall(t, ix, "t.acount", `{}`, `1`)
			mustCall(t, ix, "t.each", `{"n":3}`, `3`)
			mustCall(t, ix, "t.aeach", `{"n":3}`, `3`)
			for _, name := range []string{"t.me", "t.ame"} {
				me, err := call(t, ix, name, `{}`)
				if err != nil || seen[me] {
					t.Errorf("%s ran in %s, %v: not for the first time", name, me, err)
				}
				seen[me] = true
			}
		}
		for _, name := range []string{"t.each", "t.aeach"} {
			sink := &collector{}
			if _, err := ix.Call(t.Context(), executor.Call{Tool: name, Args: json.RawMessage(`{"n":3}`), Stream: true}, sink); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(sink.items, []string{"1", "2", "3"}) {
				t.Errorf("%s streamed %v", name, sink.items)
			}
		}
		meshtest.Until(t, "no used worker is left", func() bool { return len(ix.Stats().Pids) <= 2 })
		if s := ix.Stats(); s.Restarts != 0 || s.Busy != 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// Forks share random values drawn at import, new interpreters do not.
func TestForkCopiesTheImportAndFreshDoesNot(t *testing.T) {
	perSingle(t, func(t *testing.T, ix *executor.Index) {
		drawn := map[string]bool{}
		for range 3 {
			body, err := call(t, ix, "t.born", `{}`)
			if err != nil {
				t.Fatal(err)
			}
			drawn[body] = true
		}
		want := 1
		if strings.HasSuffix(t.Name(), "fresh") {
			want = 3
		}
		if len(drawn) != want {
			t.Errorf("three calls saw %d imports, want %d", len(drawn), want)
		}
	})
}

func TestSingleUseWorkersAreCancelled(t *testing.T) {
	t.Parallel()
	for _, isolation := range single {
		t.Run(string(isolation), func(t *testing.T) {
			t.Parallel()
			cancelled := func(grace time.Duration, names ...string) *executor.Index {
				ix := openIsolated(t, executor.Policy{Isolation: isolation}, func(o *executor.Options) { o.Grace = grace })
				for _, name := range names {
					if e := cancelRunning(t, ix, name, `{}`); (e.Details["killed"] == true) != (name == "t.ignoring") {
						t.Errorf("%s: got %v %v", name, e, e.Details)
					}
				}
				return ix
			}
			cancelled(100*time.Millisecond, "t.ignoring")
			ix := cancelled(30*time.Second, "t.long", "t.along")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if _, err := ix.Call(ctx, executor.Call{Tool: "t.long"}, nil); toolmesh.CodeOf(err) != toolmesh.CodeDeadlineExceeded {
				t.Errorf("got %v, want deadline_exceeded", err)
			}
			enough := fmt.Errorf("enough")
			sink := &collector{onItem: func(_ context.Context, data json.RawMessage) error {
				if string(data) == "100" {
					return enough
				}
				return nil
			}}
			if _, err := ix.Call(t.Context(), executor.Call{Tool: "t.endless", Stream: true}, sink); err != enough { //nolint:errorlint // as it is
				t.Errorf("got %v", err)
			}
			mustCall(t, ix, "t.count", `{}`, `1`)
		})
	}
}

func TestSingleUseWorkersPassOutputOn(t *testing.T) {
	perSingle(t, func(t *testing.T, ix *executor.Index) {
		sink := &collector{}
		if _, err := ix.Call(t.Context(), executor.Call{Tool: "t.talk"}, sink); err != nil {
			t.Fatal(err)
		}
		out := sink.text(output.StreamStdout)
		if !strings.Contains(out, "to stdout\n") || !strings.Contains(out, "past python\n") || sink.text(output.StreamStderr) != "to stderr\n" {
			t.Errorf("got %q and %q", out, sink.text(output.StreamStderr))
		}
		if e := mustFail(t, ix, "t.fail", `{}`, toolmesh.CodeToolError); e.Message != "as it is" {
			t.Errorf("got %q", e.Message)
		}
		if e := mustFail(t, ix, "t.die", `{}`, toolmesh.CodeWorkerCrashed); e.Details["exit_status"] != 3 {
			t.Errorf("details %v", e.Details)
		}
		mustFail(t, ix, "t.each", `{"n":"x"}`, toolmesh.CodeInvalidArguments)
		mustCall(t, ix, "t.count", `{}`, `1`)
	})
}

// Handlers of logging are flushed at a worker's end, as at any interpreter's, for handlers made
// at import and by the call.
func TestLoggingIsShutDownAtAWorkersEnd(t *testing.T) {
	t.Parallel()
	early, late := t.TempDir()+"/early", t.TempDir()+"/late"
	x := sharedExecutor(t)
	spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": `
import logging, logging.config, logging.handlers, os

def held(path):
    return logging.handlers.MemoryHandler(1000, target=logging.FileHandler(path, delay=True))

if "EARLY" in os.environ:
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})  # it forgets the handlers before it
    logging.getLogger("early").addHandler(held(os.environ["EARLY"]))

def note(name: str, path: str = ""):
    if path:
        logging.getLogger(name).addHandler(held(path))
    logging.getLogger(name).warning("kept")

noted = note
`}), "t.note", "t.noted")
	spec.Policies = map[string]executor.Policy{
		"t.note":  {Isolation: toolmesh.IsolationFork, Vars: map[string]string{"EARLY": early}},
		"t.noted": {Isolation: toolmesh.IsolationFork},
	}
	ix := open(t, x, spec)
	mustCall(t, ix, "t.note", `{"name":"early"}`, `null`)
	mustCall(t, ix, "t.noted", fmt.Sprintf(`{"name":"late","path":%q}`, late), `null`)
	for _, file := range []string{early, late} {
		meshtest.Until(t, "what was logged is in "+file, func() bool { return fileText(file) == "kept\n" })
	}
}

// Exit handlers that a tool registers run, although the answer does not wait for them.
func TestASingleUseWorkerEndsPolitely(t *testing.T) {
	perSingle(t, func(t *testing.T, ix *executor.Index) {
		file := t.TempDir() + "/note"
		mustCall(t, ix, "t.note", fmt.Sprintf(`{"path":%q}`, file), `1`)
		meshtest.Until(t, "the exit handler has run", func() bool { return fileText(file) == "over" })
	})
}

func TestSingleUseWorkersRunSideBySide(t *testing.T) {
	perSingle(t, func(t *testing.T, ix *executor.Index) {
		var mu sync.Mutex
		seen := map[string]bool{}
		var wg sync.WaitGroup
		for range 4 {
			for _, name := range []string{"t.nap", "t.anap"} {
				wg.Go(func() {
					body, err := call(t, ix, name, `{"n":0.1}`)
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					seen[body] = true
				})
			}
		}
		wg.Wait()
		if len(seen) != 8 {
			t.Errorf("%d processes served 8 calls", len(seen))
		}
	})
}

func TestACallMayTightenItsIsolationAndNeverLoosen(t *testing.T) {
	t.Parallel()
	for i, declared := range []toolmesh.Isolation{toolmesh.IsolationWarm, toolmesh.IsolationSession, toolmesh.IsolationFork, toolmesh.IsolationFresh} {
		t.Run(string(declared), func(t *testing.T) {
			t.Parallel()
			ix := openIsolated(t, executor.Policy{Isolation: declared}, nil)
			for j, asked := range []toolmesh.Isolation{toolmesh.IsolationWarm, toolmesh.IsolationSession, toolmesh.IsolationFork, toolmesh.IsolationFresh} {
				var got []string
				for range 2 {
					// Each its own session, so that every pair has its own state.
					body, err := ix.Call(t.Context(), executor.Call{Tool: "t.count", Isolation: asked, Session: string(asked)}, nil)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, string(body))
				}
				want := []string{"1", "2"}
				if max(i, j) >= 2 {
					want = []string{"1", "1"}
				}
				if !slices.Equal(got, want) {
					t.Errorf("declared %s, asked %s: the calls counted %v, want %v", declared, asked, got, want)
				}
			}
			_, err := ix.Call(t.Context(), executor.Call{Tool: "t.count", Isolation: "tight"}, nil)
			if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeInvalidRequest || e.Started != toolmesh.StartedNo {
				t.Errorf("an unknown isolation: got %v", err)
			}
		})
	}
}

// fileText is the content of a file; empty without the file.
func fileText(name string) string {
	data, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(data)
}

// A context variable set by a call is not visible to the next one, nor to a simultaneous
// coroutine.
func TestContextVariablesAreACallsOwn(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), `
from contextvars import ContextVar

who = ContextVar("who", default="nobody")

def put(name: str) -> str:
    before = who.get()
    who.set(name)
    return before

def puts(name: str):
    yield who.get()
    who.set(name)
    yield who.get()

async def aput(name: str) -> str:
    return put(name)
`, "put", "puts", "aput")
	for range 2 {
		mustCall(t, ix, "t.put", `{"name":"ann"}`, `"nobody"`)
		mustCall(t, ix, "t.aput", `{"name":"ann"}`, `"nobody"`)
		sink := &collector{}
		if err := stream(t, ix, "t.puts", `{"name":"bob"}`, sink); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(sink.items, " "); got != `"nobody" "bob"` {
			t.Errorf("the stream has %s", got)
		}
	}
}
