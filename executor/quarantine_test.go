package executor_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/meshtest"
)

const fatalTools = `
import asyncio, os

def die(path: str = "", really: bool = True):
    if path and os.path.exists(path):
        return "well"
    if really:
        os._exit(3)

async def adie():
    os._exit(3)

def good(n: int):
    return n

async def agood(n: int):
    await asyncio.sleep(0.001)
    return n

def before():
    return 1
`

var fatalNames = []string{"die", "adie", "good", "agood", "before"}

// storm makes calls that crash until the tool is in quarantine, and fails unless
// that takes limit calls.
func storm(t *testing.T, ix *executor.Index, name string, limit int) {
	t.Helper()
	for n := range limit {
		_, err := call(t, ix, name, `{}`)
		if toolmesh.CodeOf(err) != toolmesh.CodeWorkerCrashed {
			t.Fatalf("crash %d of %s: got %v", n+1, name, err)
		}
	}
}

func quarantined(t *testing.T, ix *executor.Index, name string) {
	t.Helper()
	e := mustFail(t, ix, name, `{}`, toolmesh.CodeUnavailable)
	if _, ok := e.Details["quarantine"]; !ok || e.Started != toolmesh.StartedNo || !e.Retryable {
		t.Errorf("got %+v", e)
	}
}

func TestACrashStormEndsInQuarantine(t *testing.T) {
	t.Parallel()
	for _, isolation := range []toolmesh.Isolation{toolmesh.IsolationWarm, toolmesh.IsolationSession, toolmesh.IsolationFork} {
		t.Run(string(isolation), func(t *testing.T) {
			t.Parallel()
			x := sharedExecutor(t) // five within a minute, and none within the next
			var names []string
			policies := map[string]executor.Policy{}
			for _, name := range fatalNames {
				names = append(names, "t."+name)
				policies["t."+name] = executor.Policy{Isolation: isolation}
			}
			spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": fatalTools}), names...)
			spec.Policies = policies
			ix := open(t, x, spec)
			storm(t, ix, "t.die", 4)
			mustCall(t, ix, "t.die", `{"really":false}`, `null`) // that it went well once changes nothing
			storm(t, ix, "t.die", 1)
			for range 3 {
				quarantined(t, ix, "t.die")
				mustCall(t, ix, "t.good", `{"n":1}`, `1`)
			}
			storm(t, ix, "t.adie", 5)
			quarantined(t, ix, "t.adie")
			mustCall(t, ix, "t.agood", `{"n":1}`, `1`)
		})
	}
}

// A tool is not blamed for the crash of another that ran at the same time.
func TestToolsNextToACrashAreNotQuarantined(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), fatalTools, fatalNames...)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				_, err := call(t, ix, "t.agood", fmt.Sprintf(`{"n":%d}`, n))
				if err != nil && toolmesh.CodeOf(err) != toolmesh.CodeWorkerCrashed {
					t.Errorf("got %v", err)
					return
				}
			}
		})
	}
	meshtest.Until(t, "the tool that crashes is in quarantine", func() bool {
		_, err := call(t, ix, "t.adie", `{}`)
		return toolmesh.CodeOf(err) == toolmesh.CodeUnavailable
	})
	close(stop)
	wg.Wait()
	for _, name := range []string{"t.agood", "t.good"} {
		mustCall(t, ix, name, `{"n":1}`, `1`)
	}
}
