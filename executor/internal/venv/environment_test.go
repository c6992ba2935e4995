package venv

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
)

// Environments are verified when an agent starts: a damaged one is built again from the same
// packages, a valid one stays.
func TestAnEnvironmentIsVerifiedWhenAnAgentStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const code = "VALUE = 'whole'\n"
	source := tree(t, map[string]string{"requirements.txt": "./" + wheelFile + "\n", wheelFile: wheelOf(t, map[string]string{"acme/__init__.py": code, "acme/more.py": ""})})
	var lock Lock
	// start is an agent's start: it returns the environment's folder, and which build of it that is.
	start := func() (folder, build string) {
		t.Helper()
		s := newStore(t, dir, nil)
		if lock.Requirements == nil {
			lock = locked(t, s, source, LockOptions{})
		}
		env := made(t, s, source, lock, Making{})
		s.running.Wait() // its bytecode is made
		if m, err := (place{dir, env.Digest}).marker(); err != nil || !m.Compiled {
			t.Errorf("its bytecode is not made: %+v, %v", m, err)
		}
		return env.Dir, env.Build
	}
	folder, build := start()
	if _, again := start(); again != build {
		t.Error("an unchanged environment was built again")
	}
	file := filesBelow(t, folder, "__init__.py")[0]
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
		{"a file that was cut short", true, func() error { return os.Truncate(file, 4) }},
		{"a file that a tool has written to", true, func() error { write(file, "raise ImportError\n"); return nil }},
		{"bytecode that was cut short", true, func() error { return os.Truncate(filesBelow(t, folder, "__init__.*.pyc")[0], 20) }},
		{"a folder that is gone", true, func() error { return os.RemoveAll(filepath.Dir(file)) }},
		{"a module in the way of another", true, func() error { write(filepath.Join(filepath.Dir(filepath.Dir(file)), "json.py"), ""); return nil }},
		{"no listing", true, func() error { return os.Remove(place{dir, filepath.Base(folder)}.file(listingName)) }},
		{"half a marker", true, func() error { write(place{dir, filepath.Base(folder)}.file(markerName), `{"dig`); return nil }},
		{"no interpreter", true, func() error { return os.Remove(filepath.Join(folder, "bin", "python")) }},
		{"a file with other content of the same size and time", true, func() error {
			info, err := os.Stat(file)
			if err != nil {
				return err
			}
			write(file, strings.Repeat("#", int(info.Size())))
			return os.Chtimes(file, info.ModTime(), info.ModTime())
		}},
		{"files that were copied, with their times", false, func() error {
			if out, err := exec.Command("cp", "-a", folder, folder+"-copy").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if err := os.RemoveAll(folder); err != nil {
				return err
			}
			return os.Rename(folder+"-copy", folder)
		}},
		{"bytecode of other modules", false, func() error { write(filepath.Join(filepath.Dir(file), bytecode, "cache.nbi"), ""); return nil }},
	} {
		if err := c.harm(); err != nil {
			t.Fatal(err)
		}
		_, now := start()
		if (now != build) != c.again {
			t.Errorf("%s: made anew: %v, want %v", c.name, now != build, c.again)
		}
		if data, err := os.ReadFile(file); err != nil || string(data) != code {
			t.Errorf("%s: the package has changed: %q, %v", c.name, data, err)
		}
		build = now
	}
}

// An environment that an init command has written to is compared by content, too: a copy of it
// is not made anew.
func TestFilesOfAnInitCommandAreKnownByContent(t *testing.T) {
	t.Parallel()
	dir, source := t.TempDir(), wheelSource(t, "init")
	s := newStore(t, dir, nil)
	lock, making := locked(t, s, source, LockOptions{}), Making{Account: "a", Own: true}
	env := made(t, s, source, lock, making)
	s.running.Wait() // its bytecode is made
	err := s.Command(t.Context(), env, source, []string{"/bin/sh", "-c", "echo more > " + env.Dir + "/more"}, nil, strings.Clone,
		func(ctx context.Context, job Job) ([]byte, string, error) { return unconfined(ctx, "", job) })
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", env.Dir, env.Dir+"-copy").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.RemoveAll(env.Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(env.Dir+"-copy", env.Dir); err != nil {
		t.Fatal(err)
	}
	if again := made(t, newStore(t, dir, nil), source, lock, making); again.Build != env.Build {
		t.Error("the copy was made anew")
	}
}

// Simultaneous requests for equal environments get one; a build whose caller has left leaves no
// files; and an environment without holders is removed, at once or after a while.
func TestEnvironmentsAreSharedAndReleased(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newStore(t, dir, nil)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Environment(over, dir, Lock{}, Making{}, nil); toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
		t.Errorf("got %v", err)
	}
	stop := make(chan struct{})
	var remover, users sync.WaitGroup
	remover.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.RemoveUnused(0)
			}
		}
	})
	for range 4 {
		users.Go(func() {
			for range 25 {
				env, err := s.Environment(t.Context(), dir, Lock{}, Making{}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(env.Python); err != nil {
					t.Errorf("an environment in use: %v", err)
				}
				s.Release(env)
			}
		})
	}
	users.Wait()
	close(stop)
	remover.Wait()
	env := made(t, s, dir, Lock{}, Making{})
	if all, _ := filepath.Glob(filepath.Join(dir, "envs", "*")); len(all) != 1 {
		t.Errorf("environments and leftovers: %v", all)
	}
	s.Release(env)
	s.RemoveUnused(time.Hour)
	if _, err := os.Stat(env.Dir); err != nil {
		t.Errorf("an environment that was in use a moment ago: %v", err)
	}
	s.RemoveUnused(0)
	if _, err := os.Stat(env.Dir); !os.IsNotExist(err) {
		t.Errorf("an unused environment exists: %v", err)
	}
}

// Releases without a wheel are found and built together.
func TestReleasesWithoutAWheel(t *testing.T) {
	t.Parallel()
	packages := t.TempDir()
	for _, name := range []string{"acme_one", "acme_two"} {
		if err := os.WriteFile(filepath.Join(packages, name+"-1.tar.gz"), sdistOf(t, name, "VALUE = '"+name+"'"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(packages, wheelFile), []byte(wheelOf(t, map[string]string{"acme.py": "VALUE = 'acme'"})), 0o644); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, t.TempDir(), func(o *Options) { o.Environ = append(os.Environ(), "UV_NO_INDEX=1", "UV_FIND_LINKS="+packages) })
	source := tree(t, map[string]string{"requirements.txt": "acme-one==1\nacme_two==1\nacme==1\n"})
	_, err := s.Lock(t.Context(), source, LockOptions{NoBuild: true}, nil)
	if e := toolmesh.AsError(err); e == nil || e.Details["reason"] != reasonBuilds || !strings.Contains(e.Message, ": acme-one") {
		t.Errorf("a lock without builds: %v", err)
	}
	lock := locked(t, s, source, LockOptions{})
	_, err = s.Environment(t.Context(), source, lock, Making{NoBuild: true}, nil)
	if e := toolmesh.AsError(err); e == nil || e.Details["reason"] != reasonBuilds {
		t.Errorf("an environment without builds: %v", err)
	}
	env := made(t, s, source, lock, Making{})
	says(t, env, "import acme, acme_one, acme_two; print(acme.VALUE, acme_one.VALUE, acme_two.VALUE)", "acme acme_one acme_two")
}

// uv runs an interpreter in an environment before it installs anything. After an installation
// failed halfway, with output of the author's, its remains are not used again.
func TestFailedInstallationIsNotReused(t *testing.T) {
	t.Parallel()
	var ran atomic.Bool
	var wheel string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ran" {
			ran.Store(true)
		}
		http.ServeContent(w, r, "acme.whl", time.Time{}, strings.NewReader(wheel))
	}))
	defer server.Close()
	wheel = wheelOf(t, map[string]string{
		"acme.pth": "import urllib.request; urllib.request.urlopen('" + server.URL + "/ran')\n",
		"acme-1.data/Wheels are required for `six` because building/x": "uv repeats the name of this folder",
	})
	s := newStore(t, t.TempDir(), nil)
	source := tree(t, map[string]string{"requirements.txt": "acme @ " + server.URL + "/" + wheelFile + "\nsix==1.16.0\n"})
	_, err := s.Environment(t.Context(), source, locked(t, s, source, LockOptions{}), Making{Account: "a"}, nil)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeInstallFailed {
		t.Errorf("it did not fail: %v", err)
	}
	if ran.Load() {
		t.Error("start-up code of the package ran where packages are installed")
	}
}

// Packages of an address of the index, and their requirements, are in no cache that other
// indexes share.
func TestAddressesHaveNoSharedCache(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	other := wheelNamed(t, "othr", "1", map[string]string{"othr.py": "VALUE = 1\n"})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.ServeContent(w, r, "othr.whl", time.Time{}, strings.NewReader(other))
	}))
	defer server.Close()
	dir := t.TempDir()
	s := newStore(t, dir, nil)
	address := "othr @ " + server.URL + "/othr-1-py3-none-any.whl"
	for name, files := range map[string]map[string]string{
		"of the index": {"requirements.txt": address + "\n"},
		"of a package": {"requirements.txt": "./" + wheelFile + "\n", wheelFile: wheelOf(t, map[string]string{
			"acme-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme\nVersion: 1\nRequires-Dist: " + address + "\n",
		})},
	} {
		source := tree(t, files)
		lock := locked(t, s, source, LockOptions{})
		for _, account := range []string{name + " one", name + " other"} {
			before := asked.Load()
			says(t, made(t, s, source, lock, Making{Account: account}), "import othr; print(othr.VALUE)", "1")
			if asked.Load() == before {
				t.Errorf("the index %s got a package that another has fetched", account)
			}
		}
	}
	_ = filepath.WalkDir(filepath.Join(dir, "packages"), func(path string, _ os.DirEntry, err error) error {
		if strings.Contains(filepath.Base(path), "othr") {
			t.Errorf("all indexes share %s", path)
		}
		return err
	})
}
