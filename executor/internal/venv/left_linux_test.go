package venv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
)

// The processes of a compilation that is cancelled have ended with it.
func TestACancelledCompilationLeavesNoProcess(t *testing.T) {
	t.Parallel()
	if runtime.NumCPU() < 2 {
		t.Skip("modules are compiled by one process")
	}
	s := newStore(t, t.TempDir(), nil)
	i, err := s.find(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	env := t.TempDir()
	modules := sitePackages(env, i)
	if err := os.MkdirAll(modules, 0o755); err != nil {
		t.Fatal(err)
	}
	for n := range 100 { // far longer than its processes take to start
		if err := os.WriteFile(filepath.Join(modules, fmt.Sprintf("m%d.py", n)), []byte(strings.Repeat("a = (b, [c, {d: e}])\n", 10_000)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.compileTo(ctx, i, env, env, "0") }()
	meshtest.Until(t, "a pool compiles", func() bool { return len(working(t, s.dir)) >= 3 })
	cancel()
	if err := <-ended; err == nil {
		t.Error("it was compiled all the same")
	}
	if left := working(t, s.dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// working are the processes whose working directory lies in a folder.
func working(t *testing.T, dir string) (all []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && strings.HasPrefix(at, dir+"/") {
			all = append(all, filepath.Dir(link))
		}
	}
	return all
}
