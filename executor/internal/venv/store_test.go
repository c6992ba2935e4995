package venv

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The message has both ends of a build's output, where a failure and its cause stand; the middle
// of a stack trace has neither.
func TestFailureShowsBothEndsOfTheOutput(t *testing.T) {
	t.Parallel()
	said := "× Failed to build x\n" + strings.Repeat("  File \"y.py\", line 1, in run\n", 500) + "LookupError: no version\n\nhint: set one"
	err := failed(nil, said, "the dependencies cannot be resolved")
	for _, want := range []string{"× Failed to build x", "LookupError: no version", "hint: set one"} {
		if !strings.Contains(err.Message, want) || !strings.Contains(err.Details["stderr"].(string), want) {
			t.Errorf("%q is not in\n%s\nor not in\n%s", want, err.Message, err.Details["stderr"])
		}
	}
	if lines := strings.Count(err.Message, "\n") + 1; lines > 12 {
		t.Errorf("the message has %d lines", lines)
	}
}

// The line with the cause of a failed build is in the message, wherever it is in the output.
func TestCauseOfAFailedBuildIsInTheMessage(t *testing.T) {
	t.Parallel()
	for _, cause := range []string{
		"src/_ffi.c:15:10: fatal error: ffi.h: No such file or directory",
		"error: Microsoft Visual C++ 14.0 or greater is required",
		"ModuleNotFoundError: No module named 'numpy'",
	} {
		said := strings.Repeat("building 'ext'\n", 200) + "    " + cause + "\n" + strings.Repeat("hint: look above\n", 200)
		if e := failed(errors.New("exit status 1"), said, "the environment cannot be built"); strings.Count(e.Message, cause) != 1 || strings.Count(e.Message, "\n") > 14 {
			t.Errorf("%q", e.Message)
		}
	}
	if e := failed(errors.New("exit status 1"), "nothing to see", "the environment cannot be built"); e.Message != "the environment cannot be built: nothing to see" {
		t.Errorf("%q", e.Message)
	}
}

// pip, which installs a missing uv, does not outlive this process, and is tried once with each
// interpreter.
func TestPipIsStartedToEndWithThisProcess(t *testing.T) {
	t.Parallel()
	var ran, with []string
	s := newStore(t, t.TempDir(), func(o *Options) {
		bin := t.TempDir()
		python, err := exec.LookPath("python3")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"python3", "python3.12", "python"} {
			if err := os.Symlink(python, filepath.Join(bin, name)); err != nil {
				t.Fatal(err)
			}
		}
		o.UV, o.Environ = "", []string{"PATH=" + bin}
		o.Confined = func(ctx context.Context, as Role, job Job) ([]byte, string, error) {
			if !slices.Contains(job.Argv, "pip") {
				return unconfined(ctx, as, job)
			}
			ran, with = append(ran, string(as)+" "+strings.Join(job.Argv[1:], " ")), append(with, job.Argv[0])
			return nil, "no index", errors.New("exit status 1")
		}
	})
	if _, err := s.uv(t.Context(), nil); err == nil || len(ran) == 0 || !strings.HasPrefix(ran[0], "agent -m pip install ") {
		t.Errorf("what ran is %q, %v", ran, err)
	}
	if slices.Sort(with); len(slices.Compact(slices.Clone(with))) != len(with) {
		t.Errorf("an interpreter of several names was tried several times: %q", with)
	}
}

// A step sees the folders of all files that the agent's settings of uv name.
func TestFoldersOfSettings(t *testing.T) {
	t.Parallel()
	dir := tree(t, map[string]string{"one/a.txt": "", "two/b.txt": "", "my certificates/all.pem": "", "links/x": ""})
	at := func(name string) string { return filepath.Join(dir, name) }
	got := readBy([]string{
		"UV_CONSTRAINT=" + at("one/a.txt") + " " + at("two/b.txt"), "SSL_CERT_FILE=" + at("my certificates/all.pem"),
		"UV_FIND_LINKS=https://example.org," + at("links"), "UV_INDEX=" + at("gone") + " ./relative",
	})
	slices.Sort(got)
	if want := []string{at("links"), at("my certificates"), at("one"), at("two")}; !slices.Equal(slices.Compact(got), want) {
		t.Errorf("it sees %q, want %q", got, want)
	}
}
