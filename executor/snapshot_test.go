package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/output"
)

// changesIndex serves one worker of each kind.
func changesIndex(t *testing.T) (ix *executor.Index, dir string) {
	t.Helper()
	x := newExecutor(t, func(o *executor.Options) { o.MaxWorkers, o.Grace = 1, 10*time.Second })
	dir, err := filepath.Abs("testdata/bad")
	if err != nil {
		t.Fatal(err)
	}
	spec := specOf(t, x, dir, "changes.change", "changes.achange", "changes.wrong", "changes.awrong", "changes.spins",
		"changes.aspins", "changes.has_additions", "changes.raw", "changes.araw")
	spec.Vars = map[string]string{"GIVEN": "yes"}
	return open(t, x, spec), dir
}

// Changes that a call makes in its worker are undone after it: the next tool in the same worker
// finds it unchanged.
func TestChangesOfACallAreUndone(t *testing.T) {
	t.Parallel()
	waits := map[string]bool{"timer": true, "timer_with_a_handler": true, "alarm_that_waits": true, "all_at_once": true}
	for _, kind := range []string{"", "a"} {
		t.Run("worker "+kind, func(t *testing.T) {
			t.Parallel()
			ix, dir := changesIndex(t)
			for i, what := range []string{
				"streams", "no_streams", "method_of_a_stream", "json_functions", "json_gone", "json_classes", "json_module",
				"paths", "path_replaced", "finders", "modules_replaced", "builtin_functions", "timer", "timer_with_a_handler",
				"alarm_that_waits", "mask", "handlers", "folder", "strict_warnings", "no_warnings", "hooks", "environment",
				"variables", "a_variable_of_a_mapping", "environment_replaced", "recursion", "open_files", "all_at_once",
			} {
				pid, err := call(t, ix, "changes."+kind+"change", fmt.Sprintf(`{"what":%q}`, what))
				if err != nil {
					t.Errorf("%s: %v\n%s", what, err, toolmesh.AsError(err).Stacktrace)
					continue
				}
				wait := 0.0
				if waits[what] {
					wait = 0.3
				}
				args, _ := json.Marshal(map[string]any{"where": dir, "late": lateModules[i%len(lateModules)], "wait": wait})
				sink := &collector{}
				got, err := ix.Call(t.Context(), executor.Call{Tool: "changes." + kind + "wrong", Args: args}, sink)
				if want := fmt.Sprintf("[%s,[]]", pid); err != nil || string(got) != want {
					t.Errorf("after %s: %s, %v, want %s", what, got, err, want)
				}
				if out, errs := sink.text(output.StreamStdout), sink.text(output.StreamStderr); out != "printed\n" ||
					!strings.Contains(errs, "printed too\n") {
					t.Errorf("after %s: captured %q and %q", what, out, errs)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
				begun := time.Now()
				_, err = ix.Call(ctx, executor.Call{Tool: "changes." + kind + "spins"}, nil)
				cancel()
				if toolmesh.CodeOf(err) != toolmesh.CodeDeadlineExceeded || time.Since(begun) > 5*time.Second {
					t.Errorf("after %s: a loop ended after %v with %v", what, time.Since(begun), err)
				}
			}
			if s := ix.Stats(); s.Restarts != 0 || s.Recycled != 0 {
				t.Errorf("workers were lost: %+v", s)
			}
		})
	}
}

// Descriptors 0, 1 and 2 that a call closes or replaces are the worker's own again in the
// next call: its output is captured, and goes to no file that another tool has open.
func TestStandardDescriptorsArePutBack(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", "a"} {
		t.Run("worker "+kind, func(t *testing.T) {
			t.Parallel()
			ix, _ := changesIndex(t)
			for _, what := range []string{
				"descriptors_closed", "descriptors_closed_by_files", "descriptors_swapped", "descriptors_taken",
			} {
				pid, err := call(t, ix, "changes."+kind+"change", fmt.Sprintf(`{"what":%q}`, what))
				if err != nil {
					t.Fatalf("%s: %v\n%s", what, err, toolmesh.AsError(err).Stacktrace)
				}
				sink := &collector{}
				got, err := ix.Call(t.Context(), executor.Call{Tool: "changes." + kind + "raw"}, sink)
				if want := fmt.Sprintf(`[%s,""]`, pid); err != nil || string(got) != want {
					t.Errorf("after %s: %s, %v, want %s", what, got, err, want)
				}
				if out, errs := sink.text(output.StreamStdout), sink.text(output.StreamStderr); out != "to 1\na child\n" ||
					errs != "to 2\n" {
					t.Errorf("after %s: captured %q and %q", what, out, errs)
				}
			}
			if s := ix.Stats(); s.Restarts != 0 || s.Recycled != 0 {
				t.Errorf("workers were lost: %+v", s)
			}
		})
	}
}

// lateModules are of the standard library, and nothing else imports them.
var lateModules = []string{"colorsys", "sched", "tabnanny", "pyclbr", "rlcompleter", "modulefinder", "netrc", "mailbox", "wave"}

// Additions that libraries make on first use stay in the worker.
func TestAdditionsOfACallStay(t *testing.T) {
	t.Parallel()
	ix, dir := changesIndex(t)
	_, err := call(t, ix, "changes.change", `{"what":"additions"}`)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[true,true,"1",true,true,"ignore"]`
	mustCall(t, ix, "changes.has_additions", `{}`, want)
	pid, err := call(t, ix, "changes.change", `{"what":"paths"}`)
	if err != nil {
		t.Fatal(err)
	}
	mustCall(t, ix, "changes.wrong", fmt.Sprintf(`{"where":%q,"late":"colorsys"}`, dir), "["+pid+",[]]")
	if s := ix.Stats(); s.Restarts != 0 {
		t.Errorf("workers were lost: %+v", s)
	}
}

// A worker that cannot be restored is replaced, which is not a crash.
func TestAWorkerBeyondRepairIsReplaced(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", "a"} {
		ix, dir := changesIndex(t)
		for range 7 { // more than the crashes that would put a tool into quarantine
			pid, err := call(t, ix, "changes."+kind+"change", `{"what":"beyond_repair"}`)
			if err != nil {
				t.Fatal(err)
			}
			got, err := call(t, ix, "changes."+kind+"wrong", fmt.Sprintf(`{"where":%q,"late":"colorsys"}`, dir))
			if err != nil || strings.HasPrefix(got, "["+pid+",") || !strings.HasSuffix(got, ",[]]") {
				t.Fatalf("the next call, after worker %s: %s, %v", pid, got, err)
			}
		}
		if s := ix.Stats(); s.Restarts != 0 {
			t.Errorf("counted as crashes: %+v", s)
		}
	}
}
