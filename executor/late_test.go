package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/meshtest"
)

// agentFrozen is the context of a call whose time ends while this process is frozen and cannot
// tell the worker.
type agentFrozen struct {
	context.Context
	end time.Time
}

func (c agentFrozen) Deadline() (time.Time, bool) { return c.end, true }

// A worker that was frozen with a call in its pipe, and its agent with it, does not begin
// the call after its time.
func TestAFrozenWorkerBeginsNothingLate(t *testing.T) {
	t.Parallel()
	const source = `
import os

def pid():
    return [str(os.getpid()), os.readlink("/proc/self/ns/pid")]

def note(path: str, text: str = ""):
    open(path, "w").close()
    return text

async def apid():
    return pid()

async def anote(path: str, text: str = ""):
    return note(path, text)
`
	x := newExecutor(t, func(o *executor.Options) { o.MaxWorkers = 1 })
	for _, kind := range []string{"", "a"} {
		ix := openModule(t, x, source, kind+"pid", kind+"note")
		text, err := call(t, ix, "t."+kind+"pid", `{}`)
		if err != nil {
			t.Fatal(err)
		}
		var inside [2]string
		if err := json.Unmarshal([]byte(text), &inside); err != nil {
			t.Fatal(err)
		}
		pid := outside(t, inside[0], inside[1])
		for n, late := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), strconv.Itoa(n))
			ctx := agentFrozen{t.Context(), time.Now().Add(map[bool]time.Duration{true: 100 * time.Millisecond, false: time.Minute}[late])}
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := ix.Call(ctx, executor.Call{Tool: "t." + kind + "note", Args: []byte(`{"path":"` + path + `"}`)}, nil)
				ended <- err
			}()
			meshtest.Until(t, "the call's time is up, if it ever is", func() bool { return !late || time.Now().After(ctx.end) })
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			err := <-ended
			_, ran := os.Stat(path)
			var e *toolmesh.Error
			switch {
			case !late:
				if err != nil || ran != nil {
					t.Errorf("%snote, in its time: %v, %v", kind, err, ran)
				}
			case !errors.As(err, &e) || e.Code != toolmesh.CodeDeadlineExceeded || e.Started != toolmesh.StartedNo || ran == nil:
				t.Errorf("%snote, too late: %v, run: %v", kind, err, ran == nil)
			}
		}
	}
}

// outside is the pid that a process has here which is pid in the namespace.
func outside(t *testing.T, pid, namespace string) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		if in, err := os.Readlink(dir + "/ns/pid"); err != nil || in != namespace {
			continue
		}
		status, _ := os.ReadFile(dir + "/status")
		for line := range strings.Lines(string(status)) {
			if ids := strings.Fields(line); ids[0] == "NSpid:" && ids[len(ids)-1] == pid {
				found, err := strconv.Atoi(filepath.Base(dir))
				if err != nil {
					t.Fatal(err)
				}
				return found
			}
		}
	}
	t.Fatalf("no process is %s of %s", pid, namespace)
	return 0
}
