package testmesh

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Repository makes a git repository of files and returns its folder.
func Repository(t testing.TB, name string, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	Commit(t, dir, files)
	return dir
}

// Commit writes files into a git repository, which it makes if need be, and commits all of it.
// A file whose name ends in .sh may be run.
func Commit(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file, mode := filepath.Join(dir, name), os.FileMode(0o644)
		if strings.HasSuffix(name, ".sh") {
			mode = 0o755
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // agents of other users read it
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"add", "-A"},
		{"-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "change"},
	} {
		cmd := exec.CommandContext(t.Context(), "git", args...) //nolint:gosec // the test's own
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
}
