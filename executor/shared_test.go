package executor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

// sharer is an executor of its own folder with environments that others have, too, and
// the steps that its environments took.
type sharer struct {
	*executor.Executor
	mu    sync.Mutex
	steps []string
}

// newSharer makes one below a folder, which tools change nothing of, with the environments
// in shared, which is where they are found.
func newSharer(t *testing.T, below string) (s *sharer, shared string) {
	t.Helper()
	dir, err := os.MkdirTemp(below, "agent-")
	if err != nil {
		t.Fatal(err)
	}
	shared = filepath.Join(below, "shared")
	x, err := executor.New(dir, &executor.Options{Environ: os.Environ(), Logger: testLogger(t), Sealed: below, Environments: shared})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &sharer{Executor: x}, filepath.Join(shared, "envs")
}

func (s *sharer) lock(t *testing.T, source string) executor.Lock {
	t.Helper()
	lock, err := s.Lock(t.Context(), source, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func (s *sharer) environment(t *testing.T, source string, lock executor.Lock) *executor.Env {
	t.Helper()
	env, err := s.Environment(t.Context(), source, lock, executor.Making{}, func(step executor.Step) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.steps = append(s.steps, step.Name)
	})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// built says whether packages were installed since it was asked last.
func (s *sharer) built() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.steps = nil }()
	return slices.Contains(s.steps, "packages")
}

func serves(t *testing.T, s *sharer, source string, env *executor.Env, want string) *executor.Index {
	t.Helper()
	ix := open(t, s.Executor, executor.Spec{SourceDir: source, Env: env, Tools: []string{"t.tool"}})
	mustCall(t, ix, "t.tool", `{}`, want)
	return ix
}

// newFolders are what is made beside its place in a folder of environments.
func newFolders(t *testing.T, folder string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(folder, "new-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Agents that share environments build each one once, and whoever comes later finds it
// whole, with its bytecode.
func TestSharedEnvironments(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	machine := t.TempDir()
	source := writeFiles(t, localPackage(map[string]string{"requirements.txt": "./lib\n"}, "one"))
	first, shared := newSharer(t, machine)
	lock := first.lock(t, source)
	env := first.environment(t, source, lock)
	if !first.built() || filepath.Dir(env.Dir) != shared {
		t.Fatalf("the first one has not built it in the shared folder: %s", env.Dir)
	}
	held := serves(t, first, source, env, `"one"`)
	if len(filesBelow(t, env.Dir, "__init__.*.pyc")) == 0 {
		t.Error("it is there without its bytecode")
	}

	second, _ := newSharer(t, machine)
	found := second.environment(t, source, lock)
	if second.built() || *found != *env {
		t.Errorf("a second one has %+v, not %+v", found, env)
	}
	serves(t, second, source, found, `"one"`)

	// What is damaged is made anew; whoever uses it goes on.
	if err := os.WriteFile(filesBelow(t, env.Dir, "__init__.py")[0], []byte("raise ImportError\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	third, _ := newSharer(t, machine)
	healed := third.environment(t, source, lock)
	if !third.built() || healed.Dir != env.Dir || healed.Build == env.Build {
		t.Errorf("a damaged one was not made anew: %+v", healed)
	}
	serves(t, third, source, healed, `"one"`)
	mustCall(t, held, "t.tool", `{}`, `"one"`)
	if left := newFolders(t, shared); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Agents that start at once may build the same environment beside each other. One of
// them is kept, and all have that one.
func TestSharedEnvironmentsAtOnce(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	machine, shared := t.TempDir(), ""
	source := writeFiles(t, localPackage(map[string]string{"requirements.txt": "./lib\n"}, "at once"))
	sharers := make([]*sharer, 4)
	for i := range sharers {
		sharers[i], shared = newSharer(t, machine)
	}
	lock := sharers[0].lock(t, source)
	envs := make([]*executor.Env, len(sharers))
	var all sync.WaitGroup
	for i, s := range sharers {
		// Each has the folder of the index for itself, as on a machine of its own.
		own := writeFiles(t, localPackage(map[string]string{"requirements.txt": "./lib\n"}, "at once"))
		all.Go(func() { envs[i] = s.environment(t, own, lock) })
	}
	all.Wait()
	for i, s := range sharers {
		if envs[i] == nil {
			t.Fatal("one failed")
		}
		if *envs[i] != *envs[0] {
			t.Errorf("%+v and %+v", envs[i], envs[0])
		}
		serves(t, s, source, envs[i], `"at once"`)
	}
	if left := newFolders(t, shared); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// What rests on files of one agent is that agent's.
func TestEnvironmentsThatAreNotShared(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	s, shared := newSharer(t, t.TempDir())
	plain := localPackage(map[string]string{"requirements.txt": "./lib\n"}, "x")
	for name, c := range map[string]struct {
		files map[string]string
		own   bool
	}{
		"a command of the index adds":   {plain, true},
		"nothing is installed, no work": {map[string]string{"t.py": "def tool(): return 'x'\n"}, false},
	} {
		source := writeFiles(t, c.files)
		lock := s.lock(t, source)
		env, err := s.Environment(t.Context(), source, lock, executor.Making{Account: "some index", Own: c.own}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(env.Dir, shared) {
			t.Errorf("%s: %s is shared", name, env.Dir)
		}
		serves(t, s, source, env, `"x"`)
	}
}

// An environment stays for as long as anybody has used it of late: agents note their use,
// and tidy up what nobody has used for a month, and builds that ended in their midst.
func TestUnusedSharedEnvironments(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	machine := t.TempDir()
	one, shared := newSharer(t, machine)
	other, _ := newSharer(t, machine)
	source := writeFiles(t, localPackage(map[string]string{"requirements.txt": "./lib\n"}, "kept"))
	lock := one.lock(t, source)
	env := one.environment(t, source, lock)
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
	marker := recordOf(env, ".json")
	old(29*24*time.Hour, marker)
	old(25*time.Hour, abandoned)
	other.RemoveUnused(0)
	there("an environment of another agent", true, env.Dir)
	there("a build that has ended", false, abandoned)
	there("a build that goes on", true, building)

	old(31*24*time.Hour, marker)
	one.RemoveUnused(0) // it uses it, and says so
	other.RemoveUnused(0)
	there("an environment that another agent uses", true, env.Dir)

	one.Release(env)
	old(31*24*time.Hour, marker)
	again := other.environment(t, source, lock) // to use it is to say so
	other.Release(again)
	one.RemoveUnused(0)
	there("an environment that another agent has used", true, env.Dir)

	old(31*24*time.Hour, marker)
	one.RemoveUnused(0)
	there("an environment that nobody has used for a month", false, env.Dir)
	if other.built() {
		t.Error("the other agent has built it")
	}
	fresh := other.environment(t, source, lock)
	if !other.built() {
		t.Error("an environment that was removed was not made anew")
	}
	serves(t, other, source, fresh, `"kept"`)
}

// The folder is one that tools cannot change.
func TestSharedEnvironmentsOutside(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	for _, shared := range []string{outside, link, dir} {
		x, err := executor.New(filepath.Join(dir, "executor"), &executor.Options{Sealed: dir, Environments: shared})
		if err == nil {
			_ = x.Close()
			t.Errorf("%s is taken", shared)
		} else if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "mount it there") {
			t.Errorf("%s: %v", shared, err)
		}
	}
}
