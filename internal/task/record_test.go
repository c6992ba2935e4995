package task

import (
	"cmp"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
)

func TestStatesOfATask(t *testing.T) {
	t.Parallel()
	now := time.Now()
	failed := func(code toolmesh.Code, started toolmesh.Started) error {
		return toolmesh.Errorf(code, "it failed").WithStarted(started)
	}
	for _, c := range []struct {
		name     string
		attempt  int
		key      string
		err      error
		state    codec.TaskState
		attempts int
		code     toolmesh.Code
		wait     bool
		result   string
	}{
		{"success", 1, "", nil, codec.TaskSucceeded, 1, "", false, ""},
		{"a result that no record can have", 1, "", nil, codec.TaskFailed, 1, toolmesh.CodeResultNotSerializable, false, "{"},
		{"a failing tool", 1, "", failed(toolmesh.CodeToolError, toolmesh.StartedYes), codec.TaskQueued, 1, toolmesh.CodeToolError, true, ""},
		{"a failing tool, the last time", 3, "", failed(toolmesh.CodeToolError, toolmesh.StartedYes), codec.TaskFailed, 3, toolmesh.CodeToolError, false, ""},
		{"a lost node", 2, "", failed(toolmesh.CodeNodeLost, toolmesh.StartedUnknown), codec.TaskQueued, 2, toolmesh.CodeNodeLost, true, ""},
		{"a lost node under a key", 1, "pay", failed(toolmesh.CodeNodeLost, toolmesh.StartedUnknown), codec.TaskFailed, 1, toolmesh.CodeNodeLost, false, ""},
		{"what did not start under a key", 1, "pay", failed(toolmesh.CodeToolNotFound, toolmesh.StartedNo), codec.TaskQueued, 1, toolmesh.CodeToolNotFound, true, ""},
		{"no room", 3, "", failed(toolmesh.CodeBusy, toolmesh.StartedNo), codec.TaskQueued, 2, toolmesh.CodeBusy, true, ""},
		{"nobody serves it now", 1, "", failed(toolmesh.CodeUnavailable, toolmesh.StartedNo), codec.TaskQueued, 0, toolmesh.CodeUnavailable, true, ""},
		{"a node that stops", 1, "", failed(toolmesh.CodeUnavailable, toolmesh.StartedYes), codec.TaskQueued, 1, toolmesh.CodeUnavailable, true, ""},
		{"no such tool", 1, "", failed(toolmesh.CodeToolNotFound, toolmesh.StartedNo), codec.TaskQueued, 1, toolmesh.CodeToolNotFound, true, ""},
		{"wrong arguments", 1, "", failed(toolmesh.CodeInvalidArguments, toolmesh.StartedNo), codec.TaskFailed, 1, toolmesh.CodeInvalidArguments, false, ""},
		{"no right", 1, "", failed(toolmesh.CodePermissionDenied, toolmesh.StartedNo), codec.TaskFailed, 1, toolmesh.CodePermissionDenied, false, ""},
		{"a cancel of its call", 1, "", failed(toolmesh.CodeCancelled, toolmesh.StartedYes), codec.TaskCancelled, 1, toolmesh.CodeCancelled, false, ""},
	} {
		r := record{Task: codec.Task{
			State: codec.TaskQueued, MaxAttempts: 3, Attempts: c.attempt - 1, TTLMS: time.Hour.Milliseconds(), Key: c.key,
		}, Queued: now, Runner: "me"}
		result := &client.Result{Value: []byte(cmp.Or(c.result, "1"))}
		wait := r.after(c.attempt, result, c.err, now)
		if r.State != c.state || r.Attempts != c.attempts || r.Error != nil && r.Error.Code != c.code || (wait > 0) != c.wait {
			t.Errorf("%s: %s after %d attempts, %v, in %v", c.name, r.State, r.Attempts, r.Error, wait)
		}
		if r.State.Ended() != (r.Ended == now) {
			t.Errorf("%s: ended at %v", c.name, r.Ended)
		}
		if r.State == codec.TaskQueued && r.Runner != "" {
			t.Errorf("%s: it is queued and has the runner %s", c.name, r.Runner)
		}
	}
	late := record{Task: codec.Task{State: codec.TaskQueued, MaxAttempts: 3, TTLMS: 1}, Queued: now.Add(-time.Hour)}
	late.after(1, nil, failed(toolmesh.CodeBusy, toolmesh.StartedNo), now)
	if late.State != codec.TaskFailed || late.Error.Code != toolmesh.CodeDeadlineExceeded || late.Error.Started != toolmesh.StartedNo {
		t.Errorf("no room within its ttl: %s, %v", late.State, late.Error)
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	for failures, most := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 7: time.Minute, 99: time.Minute} {
		for range 100 {
			if d := backoff(failures); d > most || d < most/2 {
				t.Fatalf("after %d failures: %v, want %v to %v", failures, d, most/2, most)
			}
		}
	}
}

func TestAttemptsHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range []record{{Task: codec.Task{ID: "a"}}, {Task: codec.Task{ID: "a"}, Made: 3}, {Task: codec.Task{ID: "a.1"}}} {
		for n := 1; n <= 3; n++ {
			id := string(r.callID(n))
			if seen[id] {
				t.Errorf("%s names two calls", id)
			}
			seen[id] = true
		}
	}
}

func TestLevelGrowsWithQueuedTasks(t *testing.T) {
	t.Parallel()
	for queued, want := range map[uint64]int{0: 0, 7: 0, 8: 1, 63: 1, 64: 2, 511: 2, 512: 3, 1e6: 3} {
		if got := levelOf(queued); got != want {
			t.Errorf("behind %d tasks: level %d, want %d", queued, got, want)
		}
	}
}

func TestCronLines(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"*/5 * * * *": "0 */5 * * * *", " 1 2 3 4 5 6 ": "1 2 3 4 5 6", "@hourly": "@hourly",
		"@every 1s": "", "* * * *": "", "": "", "@every": "",
	} {
		got, err := cronLine(line)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", line, got, err)
		}
	}
}
