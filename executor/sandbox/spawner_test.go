package sandbox_test

import (
	"io"
	"testing"

	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh/executor/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A process whose control socket closes with it is seen to end, at every level
// that this machine has.
func TestProcessEnds(t *testing.T) {
	t.Parallel()
	for _, level := range []sandbox.Level{sandbox.LevelPID, sandbox.LevelUser, sandbox.LevelReaper} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			s := sandbox.NewSpawner(&sandbox.Options{Levels: []sandbox.Level{level}})
			t.Cleanup(s.Close)
			p, err := s.Start(sandbox.Command{Path: "/bin/sh", Args: []string{"-c", "exit 3"}, Env: []string{"PATH=/bin:/usr/bin"}, Dir: t.TempDir()})
			if err != nil {
				t.Skipf("skipped: level %s is refused here: %v", level, err)
			}
			<-p.Done()
			if code := p.ExitCode(); code != 3 {
				t.Errorf("exit code = %d, want 3", code)
			}
		})
	}
}

func TestKill(t *testing.T) {
	t.Parallel()
	s := sandbox.NewSpawner(nil)
	t.Cleanup(s.Close)
	p, err := s.Start(sandbox.Command{Path: "/bin/sh", Args: []string{"-c", "while :; do sleep 1; done"}, Env: []string{"PATH=/bin:/usr/bin"}, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	<-p.Done()
}

func TestPipe(t *testing.T) {
	t.Parallel()
	r, w, err := sandbox.NewPipe(sandbox.ReadEnd)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // read only
	if _, err := w.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || string(got) != "x" {
		t.Errorf("read %q, %v", got, err)
	}
}
