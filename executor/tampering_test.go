package executor_test

import (
	"context"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/meshtest"
)

// Changes of a tool to the modules that it shares with its worker affect only the two: the
// worker's own answers, errors and cancellations still work, or the worker is replaced.
func TestSabotageOfTheWorker(t *testing.T) {
	t.Parallel()
	ix := badIndex(t, badExecutor(t, false), nil, "bad.sabotages", "bad.ok", "bad.raises", "bad.loop", "bad.where", "bad.endless")
	mustCall(t, ix, "bad.sabotages", `{}`, `"done"`)
	mustCall(t, ix, "bad.where", `{}`, firstWorker(t, ix))
	e := mustFail(t, ix, "bad.raises", `{}`, toolmesh.CodeToolError)
	if e.Message != "as it should be" || e.Type != "ValueError" || !strings.Contains(e.Stacktrace, "in raises") {
		t.Errorf("got %v\n%s", e, e.Stacktrace)
	}
	mustFail(t, ix, "bad.raises", `{"no":1}`, toolmesh.CodeInvalidArguments)
	mustFail(t, ix, "bad.where", `{"n":`, toolmesh.CodeInvalidArguments)
	ctx, cancel := context.WithTimeout(t.Context(), little)
	defer cancel()
	_, err := ix.Call(ctx, executor.Call{Tool: "bad.loop"}, nil)
	if toolmesh.CodeOf(err) != toolmesh.CodeDeadlineExceeded {
		t.Errorf("a loop in that worker: %v", err)
	}
	mustCall(t, ix, "bad.ok", `{"n":3}`, `3`)
}

// firstWorker is the id, as it knows it itself, of the one worker of plain
// functions, as JSON.
func firstWorker(t *testing.T, ix *executor.Index) string {
	t.Helper()
	body, err := call(t, ix, "bad.where", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// A tool that signals everything it can reach reaches itself.
func TestAToolCannotKillItsNeighbours(t *testing.T) {
	t.Parallel()
	ix := badIndex(t, badExecutor(t, false), nil, "bad.kills_all", "bad.kills_the_zygote", "bad.ok", "bad.where", "bad.sleeps")
	effective, _ := sharedExecutor(t).Sandbox()
	if effective == "none" {
		t.Skip("no sandbox here")
	}
	root := rootOf(ix)
	ctx, cancel := context.WithCancel(t.Context())
	slept := make(chan error, 1)
	go func() {
		_, err := ix.Call(ctx, executor.Call{Tool: "bad.sleeps"}, nil)
		slept <- err
	}()
	meshtest.Until(t, "a neighbour runs", func() bool { return ix.Stats().Busy == 1 })
	if e := mustFail(t, ix, "bad.kills_the_zygote", `{}`, toolmesh.CodeToolError); e.Type != "PermissionError" {
		t.Errorf("got %s, want PermissionError", e.Type)
	}
	mustCall(t, ix, "bad.kills_all", `{}`, `null`) // the system does not report skipped processes
	mustCall(t, ix, "bad.ok", `{}`, `1`)
	if s := ix.Stats(); s.Restarts != 0 || rootOf(ix) != root || s.Busy != 1 {
		t.Errorf("got %+v, want the processes of the beginning", s)
	}
	cancel()
	if err := <-slept; toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
		t.Errorf("the neighbour ended with %v", err)
	}
}

// Modules that misbehave at their import cost their own tools alone.
func TestBadImports(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	spec := specOf(t, x, "testdata/bad", "bad.ok", "noisy.tool", "threaded.tool") // one that hangs is in TestUnservableToolsAreListedAndTheRestIsServed
	ix := open(t, x, spec)
	mustCall(t, ix, "bad.ok", `{}`, `1`)
	mustCall(t, ix, "noisy.tool", `{}`, `"noisy"`)
	mustCall(t, ix, "threaded.tool", `{}`, `"threaded"`)
	if len(ix.Unavailable()) > 0 {
		t.Errorf("unavailable: %v", ix.Unavailable())
	}
}

// Processes that an index's own fork handlers start in a worker belong to no call.
func TestAHandlerOfForksThatStartsAProcess(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), `
import os, subprocess, sys

helper = None

def begin():
    global helper
    if helper is None:
        helper = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)

os.register_at_fork(after_in_child=begin)

def alive() -> bool:
    return helper.poll() is None
`, "alive")
	for range 2 {
		mustCall(t, ix, "t.alive", `{}`, `true`)
	}
}
