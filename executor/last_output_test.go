package executor_test

import (
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

const wordyTools = `
import os, sys, threading

def says(text: str):
    print("printed", text, file=sys.stderr)
    os.write(2, ("written " + text + "\n").encode())
    return os.getpid()

async def asays(text: str):
    return says(text)

def dies(text: str = ""):
    if text:
        says(text)
    os._exit(9)

async def adies(text: str = ""):
    dies(text)

go, said = threading.Event(), threading.Event()

def lingers(text: str):
    def later():
        go.wait()
        print("printed", text, file=sys.stderr)
        said.set()
    threading.Thread(target=later, daemon=True).start()

def dies_later():
    go.set()
    said.wait()
    os._exit(9)
`

// The error of a call whose worker died has the output of that call only, not that of an earlier
// call of another session.
func TestLastOutputBelongsToTheCall(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "a"} {
		t.Run("of t."+prefix+"dies", func(t *testing.T) {
			t.Parallel()
			x := newExecutor(t, func(o *executor.Options) { o.MaxWorkers = 1 })
			ix := open(t, x, specOf(t, x, writeFiles(t, map[string]string{"t.py": wordyTools}), "t."+prefix+"says", "t."+prefix+"dies"))
			call := func(session, name, args string) (string, error) {
				body, err := ix.Call(t.Context(), executor.Call{Tool: "t." + prefix + name, Session: session, Args: []byte(args)}, nil)
				return string(body), err
			}
			words := func(err error) string {
				e := toolmesh.AsError(err)
				if e == nil || e.Code != toolmesh.CodeWorkerCrashed {
					t.Fatalf("got %v, want %s", err, toolmesh.CodeWorkerCrashed)
				}
				text, _ := e.Details["stderr"].(string)
				return text
			}
			if _, err := call("alice", "says", `{"text":"of alice"}`); err != nil {
				t.Fatal(err)
			}
			_, err := call("bob", "dies", `{}`)
			if got := words(err); got != "" {
				t.Errorf("bob is told %q", got)
			}
			if _, err := call("alice", "says", `{"text":"of alice"}`); err != nil {
				t.Fatal(err)
			}
			_, err = call("bob", "dies", `{"text":"of bob"}`)
			got := words(err)
			for _, want := range []string{"printed of bob", "written of bob"} {
				if !strings.Contains(got, want) {
					t.Errorf("bob is told %q, which lacks %q", got, want)
				}
			}
			if strings.Contains(got, "alice") {
				t.Errorf("bob is told %q", got)
			}
		})
	}
}

// A thread that outlives its call prints for no later one.
func TestOutputOfAThreadIsOfItsCall(t *testing.T) {
	t.Parallel()
	ix := openModule(t, newExecutor(t, func(o *executor.Options) { o.MaxWorkers = 1 }), wordyTools, "lingers", "dies_later")
	if _, err := ix.Call(t.Context(), executor.Call{Tool: "t.lingers", Session: "alice", Args: []byte(`{"text":"of alice"}`)}, nil); err != nil {
		t.Fatal(err)
	}
	var bobs collector
	_, err := ix.Call(t.Context(), executor.Call{Tool: "t.dies_later", Session: "bob"}, &bobs)
	e := toolmesh.AsError(err)
	if e == nil || e.Code != toolmesh.CodeWorkerCrashed {
		t.Fatalf("got %v, want %s", err, toolmesh.CodeWorkerCrashed)
	}
	if text, _ := e.Details["stderr"].(string); text != "" || len(bobs.records) > 0 {
		t.Errorf("bob is told %q, and his call has printed %v", text, bobs.records)
	}
}
