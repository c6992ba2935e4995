package venv

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// sharer is a store in a folder of its own with shared environments, and the steps of its
// builds.
type sharer struct {
	*Store
	t     *testing.T
	mu    sync.Mutex
	steps []string
}

func newSharer(t *testing.T, machine string) *sharer {
	t.Helper()
	return &sharer{t: t, Store: newStore(t, t.TempDir(), func(o *Options) { o.Shared = machine })}
}

func (s *sharer) environment(source string, lock Lock) *Env {
	s.t.Helper()
	env, err := s.Environment(s.t.Context(), source, lock, Making{}, func(step Step) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.steps = append(s.steps, step.Name)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return env
}

// built reports whether packages were installed since the last call.
func (s *sharer) built() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.steps = nil }()
	return slices.Contains(s.steps, "packages")
}

// wheelSource is an index with a wheel.
func wheelSource(t *testing.T, value string) string {
	t.Helper()
	return tree(t, map[string]string{"requirements.txt": "./" + wheelFile + "\n", wheelFile: wheelOf(t, map[string]string{"acme.py": "VALUE = '" + value + "'\n"})})
}

// Agents that share environments build each one once; later ones find it complete, with its
// bytecode. A damaged one is built again, and environments of an agent's own files are not
// shared.
func TestSharedEnvironments(t *testing.T) {
	t.Parallel()
	machine, source := t.TempDir(), wheelSource(t, "one")
	shared := filepath.Join(machine, "envs")
	first := newSharer(t, machine)
	lock := locked(t, first.Store, source, LockOptions{})
	env := first.environment(source, lock)
	if !first.built() || filepath.Dir(env.Dir) != shared {
		t.Fatalf("the first one has not built it in the shared folder: %s", env.Dir)
	}
	filesBelow(t, env.Dir, "acme.*.pyc")

	second := newSharer(t, machine)
	found := second.environment(source, lock)
	if second.built() || *found != *env {
		t.Errorf("a second one has %+v, not %+v", found, env)
	}
	says(t, found, sayValue, "one")

	if err := os.WriteFile(filesBelow(t, env.Dir, "acme.py")[0], []byte("raise ImportError\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	third := newSharer(t, machine)
	healed := third.environment(source, lock)
	if !third.built() || healed.Dir != env.Dir || healed.Build == env.Build {
		t.Errorf("a damaged one was not made anew: %+v", healed)
	}
	says(t, healed, sayValue, "one")
	if left, _ := filepath.Glob(filepath.Join(shared, "new-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	own := made(t, third.Store, source, lock, Making{Account: "some index", Own: true})
	empty := made(t, third.Store, source, Lock{}, Making{})
	for what, env := range map[string]*Env{"a command of the index adds": own, "nothing is installed, no work": empty} {
		if strings.HasPrefix(env.Dir, shared) {
			t.Errorf("%s: %s is shared", what, env.Dir)
		}
	}
}

// Agents that start at once may build the same environment. One build is kept and used by
// all.
func TestSharedEnvironmentsAtOnce(t *testing.T) {
	t.Parallel()
	machine, source := t.TempDir(), wheelSource(t, "at once")
	sharers := []*sharer{newSharer(t, machine), newSharer(t, machine), newSharer(t, machine)}
	lock := locked(t, sharers[0].Store, source, LockOptions{})
	envs := make([]*Env, len(sharers))
	var all sync.WaitGroup
	for i, s := range sharers {
		all.Go(func() {
			var err error
			if envs[i], err = s.Environment(t.Context(), source, lock, Making{}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, env := range envs {
		if env == nil || *env != *envs[0] {
			t.Errorf("%+v and %+v", env, envs[0])
		}
	}
	says(t, envs[0], sayValue, "at once")
	if left, _ := filepath.Glob(filepath.Join(machine, "envs", "new-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A shared environment stays while any agent has used it recently. Agents record their use, and
// remove environments unused for a month and builds that were cut off.
func TestUnusedSharedEnvironments(t *testing.T) {
	t.Parallel()
	machine, source := t.TempDir(), wheelSource(t, "kept")
	shared := filepath.Join(machine, "envs")
	one, other := newSharer(t, machine), newSharer(t, machine)
	lock := locked(t, one.Store, source, LockOptions{})
	env := one.environment(source, lock)
	abandoned, building := filepath.Join(shared, "new-abandoned"), filepath.Join(shared, "new-building")
	for _, folder := range []string{abandoned, building} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	old := func(age time.Duration, files ...string) {
		t.Helper()
		for _, file := range files {
			if err := os.Chtimes(file, time.Now(), time.Now().Add(-age)); err != nil {
				t.Fatal(err)
			}
		}
	}
	there := func(what string, want bool, file string) {
		t.Helper()
		if _, err := os.Stat(file); (err == nil) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	marker := place{machine, env.Digest}.file(markerName)
	old(29*24*time.Hour, marker)
	old(25*time.Hour, abandoned)
	other.RemoveUnused(0)
	there("an environment of another agent", true, env.Dir)
	there("a build that has ended", false, abandoned)
	there("a build that goes on", true, building)

	old(31*24*time.Hour, marker)
	one.RemoveUnused(0) // it is in use, which is recorded
	other.RemoveUnused(0)
	there("an environment that another agent uses", true, env.Dir)

	one.Release(env)
	old(31*24*time.Hour, marker)
	again := other.environment(source, lock) // use is recorded
	other.Release(again)
	one.RemoveUnused(0)
	there("an environment that another agent has used", true, env.Dir)

	old(31*24*time.Hour, marker)
	one.RemoveUnused(0)
	there("an environment unused for a month", false, env.Dir)
	if other.built() {
		t.Error("the other agent has built it")
	}
	other.environment(source, lock)
	if !other.built() {
		t.Error("an environment that was removed was not made anew")
	}
}
