package executor_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/meshtest"
)

func TestWorkersAreReplacedByAge(t *testing.T) {
	t.Parallel()
	ix := openModule(t, newExecutor(t, func(o *executor.Options) {
		o.Recycle.Age, o.IdleAfter = 100*time.Millisecond, 200*time.Millisecond
	}), poolTools, poolNames...)
	// One that computes for longer than that is let finish.
	body, err := call(t, ix, "t.nap", `{"n":1}`)
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "several were replaced", func() bool { return ix.Stats().Recycled >= 4 })
	if now := mustPid(t, ix); now == body {
		t.Errorf("process %s is still there", now)
	}
	if s := ix.Stats(); s.Restarts != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestAWorkerThatGrewIsReplaced(t *testing.T) {
	t.Parallel()
	ix := openModule(t, newExecutor(t, func(o *executor.Options) {
		o.Recycle.Memory, o.IdleAfter = 20<<20, 100*time.Millisecond
	}), `
kept = []
def grow(megabytes: int):
    kept.append(bytearray(b"x" * (megabytes << 20)))
    return len(kept)
`, "grow")
	mustCall(t, ix, "t.grow", `{"megabytes":1}`, `1`)
	mustCall(t, ix, "t.grow", `{"megabytes":40}`, `2`)
	meshtest.Until(t, "it was replaced", func() bool { return ix.Stats().Recycled == 1 })
	mustCall(t, ix, "t.grow", `{"megabytes":1}`, `1`)
}

// A session's worker holds its state, and is never replaced.
func TestASessionsWorkerIsNotReplaced(t *testing.T) {
	t.Parallel()
	ix := openSession(t, func(o *executor.Options) {
		o.Recycle.Calls, o.Recycle.Age, o.IdleAfter = 3, time.Millisecond, 20*time.Millisecond
	})
	for n := 1; n <= 20; n++ {
		mustCallIn(t, ix, "a", "t.count", `{}`, fmt.Sprint(n))
	}
	if _, err := ix.Call(t.Context(), executor.Call{Tool: "t.nap", Session: "a", Args: json.RawMessage(`{"n":0.2}`)}, nil); err != nil {
		t.Fatal(err)
	}
	mustCallIn(t, ix, "a", "t.count", `{}`, `21`)
	if s := ix.Stats(); s.Recycled != 0 {
		t.Errorf("got %+v", s)
	}
}
