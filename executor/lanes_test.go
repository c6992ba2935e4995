package executor_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/program"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// lane is a hold of a lane; the test may extend its end.
type lane struct {
	mu     sync.Mutex
	follow func(time.Time)
	end    time.Time
}

func (l *lane) Follow(f func(time.Time)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.follow = f
	f(l.end)
}

func (l *lane) move(end time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = end
	l.follow(end)
}

const beating = `
import asyncio, os, subprocess, sys, threading, time

def write(path):
    with open(path, "w") as f:
        f.write(str(time.monotonic()))

def spin(path: str):
    """Does not stop by itself."""
    subprocess.Popen([sys.executable, "-c", "import sys, time\nwhile True:\n    open(sys.argv[1] + '.child', 'w').write('x'); time.sleep(0.01)", path])
    while True:
        try:
            while True:
                write(path)
        except BaseException:
            pass

async def aspin(path: str):
    while True:
        write(path)
`

const threaded = `
import threading, time
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
def spin(path: str):
    while True:
        try:
            open(path, "w").write("x")
        except BaseException:
            pass
`

// A worker whose call has lost its lane is killed at the end of the hold, with all its
// processes, even without this process; while the hold is extended it runs.
func TestWorkerStopsWhenItsLaneEnds(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	for _, c := range []struct {
		name, source, tool string
		isolation          toolmesh.Isolation
	}{
		{"warm", beating, "tools.spin", toolmesh.IsolationWarm},
		{"fork", beating, "tools.spin", toolmesh.IsolationFork},
		{"session", beating, "tools.spin", toolmesh.IsolationSession},
		{"fresh", beating, "tools.spin", toolmesh.IsolationFresh},
		{"coroutine", beating, "tools.aspin", toolmesh.IsolationWarm},
		{"not to be forked", threaded, "tools.spin", toolmesh.IsolationWarm},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := writeFiles(t, map[string]string{"tools.py": c.source})
			spec := specOf(t, x, dir, c.tool)
			spec.Turns = true
			spec.Policies = map[string]executor.Policy{c.tool: {Isolation: c.isolation, Sandbox: tool.SandboxNone}}
			ix := open(t, x, spec)
			path := filepath.Join(t.TempDir(), "beat")
			l := &lane{end: time.Now().Add(time.Minute)}
			done := make(chan error, 1)
			go func() {
				_, err := ix.Call(t.Context(), executor.Call{Tool: c.tool, Session: "s", Args: []byte(`{"path":"` + path + `"}`), Lane: l}, nil)
				done <- err
			}()
			beats := func(path string) bool {
				if os.Remove(path) != nil {
					return false
				}
				deadline := time.Now().Add(2 * time.Second)
				for time.Now().Before(deadline) {
					if _, err := os.Stat(path); err == nil {
						return true
					}
					time.Sleep(time.Millisecond)
				}
				return false
			}
			meshtest.Until(t, "the tool runs", func() bool { return beats(path) })
			l.move(time.Now().Add(time.Second))
			l.move(time.Now().Add(time.Minute))
			time.Sleep(1500 * time.Millisecond) // longer than the end that was moved
			if !beats(path) {
				t.Error("the tool was stopped though its turn goes on")
			}
			l.move(time.Now().Add(100 * time.Millisecond))
			err := <-done
			var e *toolmesh.Error
			if !errors.As(err, &e) || e.Code != toolmesh.CodeNodeLost || e.Details["reason"] != "lane_lost" {
				t.Errorf("the call ends with %v", err)
			}
			if beats(path) {
				t.Error("the tool goes on")
			}
			if c.source == beating && c.tool == "tools.spin" {
				meshtest.Until(t, "what the tool has started has ended", func() bool { return !beats(path + ".child") })
			}
		})
	}
	t.Run("command", func(t *testing.T) {
		t.Parallel()
		dir := writeFiles(t, map[string]string{"beat.sh": "#!/bin/sh\ntrap '' TERM\nwhile :; do echo x > \"$1\"; done\n"})
		if err := os.Chmod(filepath.Join(dir, "beat.sh"), 0o700); err != nil { //nolint:gosec // it is run
			t.Fatal(err)
		}
		spec := specOf(t, x, dir)
		commands, err := x.OpenCommands(executor.Spec{Name: "test", SourceDir: spec.SourceDir, Env: spec.Env})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = commands.Close(t.Context()) })
		path := filepath.Join(t.TempDir(), "beat")
		l := &lane{end: time.Now().Add(time.Minute)}
		done := make(chan error, 1)
		go func() {
			_, err := commands.Call(t.Context(), program.Call{Tool: "beat", Argv: []string{"sh", filepath.Join(dir, "beat.sh"), path}, Sandbox: tool.SandboxNone, Lane: l}, nil)
			done <- err
		}()
		meshtest.Until(t, "the command runs", func() bool { _, err := os.Stat(path); return err == nil })
		l.move(time.Now().Add(100 * time.Millisecond))
		if err := <-done; err == nil {
			t.Error("the command ended well")
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if _, err := os.Stat(path); err == nil {
			t.Error("the command goes on")
		}
	})
}

// An agent that was frozen between the grant of a turn and its call sends the call when the
// turn is long another's: nothing of it runs.
func TestCallDoesNotBeginAfterItsLaneEnded(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	dir := writeFiles(t, map[string]string{"t.py": "def touch(path: str):\n    open(path, 'w').close()\n\nasync def atouch(path: str):\n    open(path, 'w').close()\n"})
	spec := specOf(t, x, dir, "t.touch", "t.atouch")
	spec.Turns = true
	ix := open(t, x, spec)
	commands, err := x.OpenCommands(executor.Spec{Name: "test", SourceDir: spec.SourceDir, Env: spec.Env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = commands.Close(t.Context()) })
	for round := range 20 {
		for _, name := range []string{"t.touch", "t.atouch", "command"} {
			path := filepath.Join(t.TempDir(), "touched")
			over := &lane{end: time.Now()}
			if name == "command" {
				_, err = commands.Call(t.Context(), program.Call{Tool: "touch", Argv: []string{"touch", path}, Sandbox: tool.SandboxNone, Lane: over}, nil)
			} else {
				mustCall(t, ix, name, `{"path":"`+path+`"}`, "null") // its worker is warm
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				_, err = ix.Call(t.Context(), executor.Call{Tool: name, Session: "s", Args: []byte(`{"path":"` + path + `"}`), Lane: over}, nil)
			}
			if _, found := os.Stat(path); found == nil || err == nil {
				t.Fatalf("round %d: %s ran, and ended with %v", round, name, err)
			}
			if e := toolmesh.AsError(err); name != "command" && (e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo) {
				t.Errorf("round %d: %s ends with %+v", round, name, e)
			}
		}
	}
}
