package zygote

import (
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

// An unchanged folder of a worker serves the next one; a changed one, or one that a process may
// still write to, is removed with its content.
func TestFoldersOfWorkers(t *testing.T) {
	t.Parallel()
	s := &folders{log: slog.New(slog.DiscardHandler), parent: t.TempDir()}
	take := func() folder {
		t.Helper()
		f := s.take(sandbox.User{})
		if left, err := os.ReadDir(f.path); f.number == 0 || err != nil || len(left) > 0 {
			t.Fatalf("%+v: %v, %v", f, left, err)
		}
		return f
	}
	gone := func(f folder) {
		t.Helper()
		if _, err := os.Lstat(f.path); err == nil {
			t.Errorf("%s is left", f.path)
		}
	}
	first, second := take(), take()
	if first.number == second.number {
		t.Fatalf("two workers have %s", first.path)
	}
	s.give(first, true)
	if again := take(); again.number != first.number {
		t.Errorf("got %d, want %d again", again.number, first.number)
	}
	for what, change := range map[string]func(path string) error{
		"a file":   func(path string) error { return os.WriteFile(filepath.Join(path, "x"), nil, 0o600) },
		"its mode": func(path string) error { return os.Chmod(path, 0o755) }, //nolint:gosec // of a test
		"a file that came and went": func(path string) error {
			if err := os.WriteFile(filepath.Join(path, "x"), nil, 0o600); err != nil {
				return err
			}
			return os.Remove(filepath.Join(path, "x"))
		},
		"a link": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Symlink(t.TempDir(), path)
		},
		"nothing": os.Remove,
	} {
		f := take()
		if err := change(f.path); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		s.give(f, true)
		gone(f)
		if again := take(); again.number != f.number {
			t.Errorf("after %s: got %d, want %d again", what, again.number, f.number)
		}
	}
	f := take()
	s.give(f, false)
	gone(f)
	if again := take(); again.number == f.number {
		t.Error("a folder that other users may write was given away")
	}
	s.parent = filepath.Join(s.parent, "nothing")
	if f := s.take(sandbox.User{}); f.number != 0 {
		t.Errorf("got %+v where none can be made", f)
	}
	s.give(folder{}, true)
}

// Tools that may write where their folders are made may put something else in the place
// of one before it is theirs: that is not made theirs.
func TestFoldersThatWereReplaced(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: nothing can be given to a user")
	}
	const user = 1_950_000_001
	for what, replace := range map[string]func(path, victim string) error{
		"a link to a folder": func(path, victim string) error { return os.Symlink(filepath.Dir(victim), path) },
		"a link to a file":   func(path, victim string) error { return os.Symlink(victim, path) },
		"a file of others":   func(path, victim string) error { return os.Link(victim, path) },
		"a pipe":             func(path, _ string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		dir := t.TempDir()
		victim := filepath.Join(dir, "victim")
		if err := os.WriteFile(victim, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "w1")
		if err := replace(path, victim); err != nil {
			t.Fatal(err)
		}
		if err := possess(path, user, user); err == nil {
			t.Errorf("%s is taken for a folder", what)
		}
		for _, name := range []string{dir, victim, path} {
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			if stat, ok := info.Sys().(*syscall.Stat_t); !ok || stat.Uid != 0 || info.ModTime().Equal(untouched) {
				t.Errorf("%s: %s was changed", what, name)
			}
		}
	}
}
