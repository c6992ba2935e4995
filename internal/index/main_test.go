package index

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wantFailed checks an install_failed error: its reason and parts of its message.
func wantFailed(t testing.TB, err error, reason string, parts ...string) *toolmesh.Error {
	t.Helper()
	var e *toolmesh.Error
	if !errors.As(err, &e) || e.Code != toolmesh.CodeInstallFailed {
		t.Fatalf("error is %v, want install_failed", err)
	}
	if e.Details["reason"] != reason {
		t.Errorf("details.reason of %v is %v, want %s", err, e.Details["reason"], reason)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error is %q, want it to contain %q", err, part)
		}
	}
	return e
}

// write makes files below a folder; a name that ends in * is executable, and
// text that begins with "-> " is a symbolic link.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		mode := os.FileMode(0o644)
		if n, ok := strings.CutSuffix(name, "*"); ok {
			name, mode = n, 0o755
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(text), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// gitRun runs the real git in dir and returns its trimmed output.
func gitRun(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(),
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// repository makes a git repository with these files in one commit on main.
func repository(t testing.TB, files map[string]string) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	dir := filepath.Join(t.TempDir(), "weather")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	gitRun(t, dir, "init", "-q", "-b", "main")
	write(t, dir, files)
	gitRun(t, dir, "add", "-A", "-f")
	gitRun(t, dir, "commit", "-q", "-m", "first")
	return dir
}

func asDetails(err error) any {
	var e *toolmesh.Error
	if errors.As(err, &e) {
		return e.Details["reason"]
	}
	return nil
}
