package executor_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/executor"
)

// An environment is looked at when an agent starts. What is damaged is made anew,
// of packages that are what they were, and what is whole stays as it is.
func TestAnEnvironmentIsVerifiedWhenAnAgentStarts(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	dir := t.TempDir()
	source := writeFiles(t, map[string]string{
		"requirements.txt": "six==1.16.0\n",
		"t.py":             "import six\ndef tool(): return [six.__version__, six.PY3]\n",
	})
	var lock executor.Lock
	// start is an agent's start: it returns the environment's folder, which build of
	// it that is, and the text of six.
	start := func() (folder, build, six string) {
		t.Helper()
		x, err := executor.New(dir, &executor.Options{Environ: os.Environ(), Logger: testLogger(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		}()
		if lock.Requirements == nil {
			if lock, err = x.Lock(t.Context(), source, "", nil); err != nil {
				t.Fatal(err)
			}
		}
		env, err := x.Environment(t.Context(), source, lock, executor.Making{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		mustCall(t, open(t, x, executor.Spec{SourceDir: source, Env: env, Tools: []string{"t.tool"}}), "t.tool", `{}`, `["1.16.0",true]`)
		eventually(t, "its bytecode is made", func() bool {
			marker, err := os.ReadFile(recordOf(env, ".json"))
			return err == nil && strings.Contains(string(marker), `"compiled":true`)
		})
		data, err := os.ReadFile(filesBelow(t, env.Dir, "six.py")[0])
		if err != nil {
			t.Fatal(err)
		}
		return env.Dir, env.Build, string(data)
	}
	folder, build, whole := start()
	if _, again, _ := start(); again != build {
		t.Error("an environment that nobody has touched was made anew")
	}
	file := filesBelow(t, folder, "six.py")[0]
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name  string
		again bool // it is made anew
		harm  func() error
	}{
		{"a file that was cut short", true, func() error { return os.Truncate(file, 1000) }},
		// The same file lies in the cache that packages are installed from.
		{"a file that a tool has written to", true, func() error { write(file, "raise ImportError\n"); return nil }},
		{"a file that is gone", true, func() error { return os.Remove(file) }},
		{"bytecode that was cut short", true, func() error { return os.Truncate(filesBelow(t, folder, "six.*.pyc")[0], 100) }},
		{"a folder that is gone", true, func() error { return os.RemoveAll(filepath.Dir(file)) }},
		{"a module in the way of another", true, func() error { write(filepath.Join(filepath.Dir(file), "json.py"), ""); return nil }},
		{"no list of what there is", true, func() error { return os.Remove(recordOf(&executor.Env{Dir: folder}, ".files.json")) }},
		{"a file with other content of the same size and time", true, func() error {
			info, err := os.Stat(file)
			if err != nil {
				return err
			}
			write(file, strings.Repeat("#", int(info.Size())))
			return os.Chtimes(file, info.ModTime(), info.ModTime())
		}},
		{"files that were copied, with their times", false, func() error { return os.Rename(copied(t, folder), folder) }},
		{"bytecode of other modules", false, func() error {
			write(filepath.Join(filepath.Dir(file), "__pycache__", "cache.nbi"), "")
			return nil
		}},
	} {
		if err := c.harm(); err != nil {
			t.Fatal(err)
		}
		_, now, six := start()
		if (now != build) != c.again {
			t.Errorf("%s: made anew: %v, want %v", c.name, now != build, c.again)
		}
		if diff := cmp.Diff(whole, six); diff != "" {
			t.Errorf("%s: six is not what it was (-want +got):\n%s", c.name, diff)
		}
		build = now
	}
}

// recordOf is the file of what is noted of an environment.
func recordOf(env *executor.Env, name string) string {
	return filepath.Join(filepath.Dir(filepath.Dir(env.Dir)), "records", filepath.Base(env.Dir)+name)
}

// copied is a copy of a folder beside it, which is moved away.
func copied(t *testing.T, folder string) string {
	t.Helper()
	beside := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(folder, beside); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", beside, beside+"-copy").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return beside + "-copy"
}

// filesBelow finds files by their names.
func filesBelow(t *testing.T, dir, pattern string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if ok, _ := filepath.Match(pattern, filepath.Base(path)); ok {
			found = append(found, path)
		}
		return err
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("no %s below %s: %v", pattern, dir, err)
	}
	return found
}
