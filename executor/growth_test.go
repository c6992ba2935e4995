package executor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/toolmesh/toolmesh/executor"
)

// As many calls start as there may be workers, none of which
// ends before all have begun, first without known durations of calls, and later with brief ones.
func TestLongCallsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	const calls = 6
	ix := openModule(t, newExecutor(t, func(o *executor.Options) { o.MaxWorkers = calls }), fmt.Sprintf(`
import os, time
def meet(folder, name):
    open(os.path.join(folder, name), "w").close()
    while len(os.listdir(folder)) < %d:
        time.sleep(0.005)
    return name
def brief(): return 1
`, calls), "meet", "brief")
	for round := range 2 {
		folder := t.TempDir()
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() {
				args, err := json.Marshal(map[string]string{"folder": folder, "name": fmt.Sprint("c", i)})
				if err != nil {
					t.Error(err)
				}
				if _, err := ix.Call(t.Context(), executor.Call{Tool: "t.meet", Args: args}, nil); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		wg.Wait()
		if files, err := os.ReadDir(filepath.Clean(folder)); err != nil || len(files) != calls {
			t.Errorf("round %d: %d calls met (%v)", round, len(files), err)
		}
		for range 200 { // the next round comes after brief calls alone
			mustCall(t, ix, "t.brief", `{}`, `1`)
		}
	}
}

// An executor starts in a folder where another one
// was killed in the middle of its work.
func TestUnfinishedEnvironmentsGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unfinished := []string{"envs/new-1/bin", "new-lock-2", "new-uv-3/bin"}
	for _, folder := range append([]string{"envs/0123abcd/bin", "packages"}, unfinished...) {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	x, err := executor.New(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	for _, folder := range unfinished {
		if _, err := os.Stat(filepath.Join(dir, folder)); err == nil {
			t.Errorf("%s is still there", folder)
		}
	}
	for _, folder := range []string{"envs/0123abcd/bin", "packages"} {
		if _, err := os.Stat(filepath.Join(dir, folder)); err != nil {
			t.Errorf("what is finished is gone: %v", err)
		}
	}
}
