package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/meshtest"
)

// environments lists those that an agent keeps.
func environments(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "executor", "envs", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// An environment is removed after the last index that uses it, and one that an earlier process left
// at the next start; one in use stays.
func TestEnvironmentsThatNoIndexUsesGo(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	dir := t.TempDir()
	soon := func(o *agent.Options) { o.EnvironmentAge = 20 * time.Millisecond }
	a := startIn(t, s, "one", dir, soon)
	nc := s.Connect(t)
	source := repository(t, "good", map[string]string{"tools.toml": working, "t.py": "import time\ndef tool(): time.sleep(0.1)\n"})
	for _, name := range []string{"first", "second"} { // the dependencies are equal
		if _, failure := admin(t, nc, "install", map[string]any{"source": source, "name": name}); failure != nil {
			t.Fatalf("install %s: %v", name, failure)
		}
	}
	shared := environments(t, dir)
	if len(shared) != 1 {
		t.Fatalf("environments %v, want one", shared)
	}
	if _, failure := admin(t, nc, "uninstall", map[string]any{"name": "first"}); failure != nil {
		t.Fatal(failure)
	}
	meshtest.Until(t, "the first index has ended", func() bool { return len(processesOf(t, dir)) > 0 && len(foldersIn(t, dir)) == 1 })
	if got := environments(t, dir); !slices.Equal(got, shared) {
		t.Fatalf("environments %v after the uninstall of one of two indexes, want %v", got, shared)
	}
	// A killed agent leaves the environment of an install that was not finished.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, "executor", "envs", "0123456789abcdef")
	if err := os.MkdirAll(filepath.Join(left, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	again := startIn(t, s, "one", dir, soon)
	if err := again.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "only what is used is there", func() bool { return slices.Equal(environments(t, dir), shared) })
	if _, failure := admin(t, nc, "uninstall", map[string]any{"name": "second"}); failure != nil {
		t.Fatal(failure)
	}
	meshtest.Until(t, "no environment is there", func() bool { return len(environments(t, dir)) == 0 })
	// It is made again for the next index that needs it.
	if _, failure := admin(t, nc, "install", map[string]any{"source": source, "name": "third"}); failure != nil {
		t.Fatal(failure)
	}
}

// foldersIn lists the indexes that an agent has unpacked.
func foldersIn(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "indexes", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}
