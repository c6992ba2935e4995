package executor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// Under strict, sessions of users are hidden, except the agent's own folders there.
func TestUsersSessionsAreHidden(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/run/user", "toolmesh-test-")
	if err != nil {
		t.Skipf("no sessions here: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data, given := filepath.Join(dir, "data"), filepath.Join(dir, "given")
	source := `
import os, tempfile
def f() -> list:
    tempfile.NamedTemporaryFile().close()
    open("` + given + `/made", "w").close()
    return sorted(os.listdir("` + dir + `"))
`
	for path, text := range map[string]string{"data/index/t.py": source, "given/file": "", "socket": ""} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755), os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Warm(filepath.Join(data, "executor"), t.Cleanup)
	x, err := executor.New(filepath.Join(data, "executor"), &executor.Options{
		Environ: os.Environ(), Sandbox: tool.SandboxStrict, Sealed: data, Shown: []string{filepath.Join(data, "index")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	if level, why := x.Sandbox(); level != tool.SandboxStrict {
		t.Skip(why)
	}
	spec := specOf(t, x, filepath.Join(data, "index"), "t.f")
	if spec.Paths, _, err = x.Paths("test", []executor.Path{{Path: given, Write: true}}, nil); err != nil {
		t.Fatal(err)
	}
	mustCall(t, open(t, x, spec), "t.f", `{}`, `["data","given"]`)
	if _, err := os.Stat(filepath.Join(given, "made")); err != nil {
		t.Error(err)
	}
}

// landlocked reports whether the kernel has Landlock.
func landlocked() bool {
	_, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return errno == 0
}

// A tool that demands a level which the machine lacks is not served; the others are.
func TestAToolThatDemandsALevelIsNotServedWithoutIt(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) { o.SetLevels(sandbox.LevelReaper) })
	dir := writeFiles(t, map[string]string{"t.py": "def a(): return 1\ndef b(): return 2\ndef c(): return 3"})
	spec := specOf(t, x, dir, "t.a", "t.b", "t.c")
	spec.Policies = map[string]executor.Policy{
		"t.b": {Sandbox: tool.SandboxStrict}, "t.c": {Sandbox: tool.SandboxGuard},
	}
	ix := open(t, x, spec)
	mustCall(t, ix, "t.a", `{}`, `1`)
	reasons := map[string]string{}
	for _, u := range ix.Unavailable() {
		reasons[u.Name] = u.Reason
	}
	for name, level := range map[string]string{"t.b": "strict", "t.c": "guard"} {
		if !strings.Contains(reasons[name], "sandbox level "+level) || !strings.Contains(reasons[name], "namespaces") {
			t.Errorf("%s: reason %q", name, reasons[name])
		}
	}
	if len(ix.Tools()) != 1 || len(reasons) != 2 {
		t.Errorf("served %d tools, unavailable %v", len(ix.Tools()), reasons)
	}
}

// A program that fetches writes its own folder, by relative paths too, and finds nothing of the
// agent's environment.
func TestFetchIsApart(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) { o.Environ = append(o.Environ, "HOME=/agent", "SECRET=x") })
	dir, err := os.MkdirTemp(x.Fetches(), "fetch-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var out strings.Builder
	said, err := x.Fetch(t.Context(), dir, []string{"/bin/sh", "-c", "echo written > file && cat file && env && echo said >&2"}, []string{"GIVEN=1"}, &out)
	if err != nil || said != "said" {
		t.Fatalf("it said %q, %v", said, err)
	}
	for text, want := range map[string]bool{"written\n": true, "GIVEN=1\n": true, "HOME=" + dir + "\n": true, "SECRET": false} {
		if strings.Contains(out.String(), text) != want {
			t.Errorf("%q is in its output: %v, want %v: %s", text, !want, want, out.String())
		}
	}
	for program, ran := range map[string]bool{"/bin/false": true, "/no/such/program": false} { // one that did not begin has failed for us
		_, err := x.Fetch(t.Context(), dir, []string{program}, nil, io.Discard)
		var own *toolmesh.Error
		if err == nil || errors.As(err, &own) == ran {
			t.Errorf("%s: the error is %#v", program, err)
		}
	}
}

// A program of an installation leaves no process: when it ends, and when it is cancelled.
func TestNothingSurvivesAFetch(t *testing.T) {
	t.Parallel()
	for _, level := range []sandbox.Level{"", sandbox.LevelUser, sandbox.LevelReaper} { // "": the machine's best
		for how, last := range map[string]string{"end": "echo started", "cancel": "echo started; exec sleep 1000.$MARKER"} {
			t.Run(string(level)+" "+how, func(t *testing.T) {
				t.Parallel()
				x := newExecutor(t, func(o *executor.Options) {
					if level != "" {
						o.SetLevels(level)
					}
				})
				dir, err := os.MkdirTemp(x.Fetches(), "fetch-")
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(dir)
				marker := fmt.Sprintf("%d%s", os.Getpid(), strings.TrimPrefix(filepath.Base(dir), "fetch-"))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r, w := io.Pipe()
				ended := make(chan error, 1)
				go func() {
					script := "(sleep 1000.$MARKER & setsid sleep 1000.$MARKER & ) > /dev/null 2>&1; " + last
					_, err := x.Fetch(ctx, dir, []string{"/bin/sh", "-c", script}, []string{"MARKER=" + marker}, w)
					ended <- err
				}()
				if _, err := r.Read(make([]byte, 8)); err != nil {
					t.Fatal(err)
				}
				if how == "cancel" {
					meshtest.Until(t, "what it starts runs", func() bool { return len(processes(t, "1000."+marker)) == 3 })
					cancel()
				}
				if err := <-ended; (err == nil) != (how == "end") {
					t.Error(err)
				}
				if left := processes(t, "1000."+marker); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			})
		}
	}
}
