package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// process is one of our programs that runs until it is stopped.
type process struct {
	cmd  *exec.Cmd
	dir  string // its data folder, which the command lines of all its workers name
	url  string // of mesh up
	logs *tape
	done chan struct{}
	err  error // once done is closed
}

// tape keeps the output of a process; await waits for a text in it.
type tape struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

func newTape() *tape { return &tape{changed: make(chan struct{})} }

func (w *tape) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	close(w.changed)
	w.changed = make(chan struct{})
	return len(p), nil
}

func (w *tape) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// await waits for a match in the output and returns it.
func (p *process) await(t *testing.T, w *tape, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		w.mu.Lock()
		text, changed := w.text.String(), w.changed
		w.mu.Unlock()
		if found := re.FindStringSubmatch(text); found != nil {
			return found
		}
		select {
		case <-changed:
		case <-p.done:
			if re.MatchString(w.String()) {
				continue
			}
			t.Fatalf("it ended (%v) without %q:\n%s", p.err, pattern, p.logs)
		case <-ctx.Done():
			t.Fatalf("%q did not come:\n%s", pattern, p.logs)
		}
	}
}

// start runs a program until the test ends at the latest.
func (u *user) start(t *testing.T, dir, name string, args ...string) (p *process, stdout *tape) {
	t.Helper()
	// Not the test's context: it ends before the cleanup, which stops in order.
	p = &process{cmd: u.command(context.WithoutCancel(t.Context()), name, args...), dir: dir, logs: newTape(), done: make(chan struct{})}
	stdout = newTape()
	p.cmd.Stdout, p.cmd.Stderr = stdout, p.logs
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process, which the cleanup ends
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.signal(t, syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(time.Minute):
			t.Errorf("%s did not end on SIGTERM within a minute:\n%s", name, p.logs)
			p.signal(t, syscall.SIGKILL)
			<-p.done
		}
		if t.Failed() || meshtest.ShowLogs() {
			t.Logf("%s %s:\n%s", name, strings.Join(args, " "), p.logs)
		}
		if left := p.processes(t); len(left) > 0 {
			meshtest.Until(t, "the workers of "+dir+" are gone", func() bool { return len(p.processes(t)) == 0 })
		}
	})
	return p, stdout
}

// signal sends a signal to a process, unless it has ended.
func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal %v: %v", s, err)
	}
}

// end waits for the end of a process and returns its exit status; -1 for a signal.
func (p *process) end(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-t.Context().Done():
		t.Fatal("it does not end")
		return 0
	}
}

// kill ends a process by SIGKILL.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	p.end(t)
}

// processes lists the other processes with its data folder on their command line: workers, and those that watch
// them.
func (p *process) processes(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range files {
		data, err := os.ReadFile(f)
		line := strings.ReplaceAll(string(data), "\x00", " ")
		if err == nil && strings.Contains(line, filepath.Join(p.dir, "executor")) {
			found = append(found, filepath.Base(filepath.Dir(f))+" "+line)
		}
	}
	return found
}

// up runs a mesh in one process and waits for its ready line.
func (u *user) up(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	args = append([]string{"up", "--nats-listen=127.0.0.1:0", "--data-dir=" + dir}, args...)
	meshtest.Warm(filepath.Join(dir, "executor"), t.Cleanup)
	p, out := u.start(t, dir, "mesh", args...)
	p.url = p.await(t, out, `(?m)^ready nats=(\S+)( |$)`)[1]
	return p
}

// gateway runs a mesh in one process, and returns the URL of its gateway as well.
func (u *user) gateway(t *testing.T, args ...string) (p *process, url string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mesh")
	args = append([]string{"up", "--nats-listen=127.0.0.1:0", "--gateway-listen=127.0.0.1:0", "--data-dir=" + dir}, args...)
	meshtest.Warm(filepath.Join(dir, "executor"), t.Cleanup)
	p, out := u.start(t, dir, "mesh", args...)
	found := p.await(t, out, `(?m)^ready nats=(\S+) http=(\S+)$`)
	p.url = found[1]
	return p, found[2]
}

// agent runs mesh-agent with the address of NATS alone, and waits until it is ready.
func (u *user) agent(t *testing.T, url, node string) *process {
	t.Helper()
	dir := filepath.Join(t.TempDir(), node)
	meshtest.Warm(filepath.Join(dir, "executor"), t.Cleanup)
	p, _ := u.start(t, dir, "mesh-agent", "--server="+url, "--node="+node, "--data-dir="+dir)
	p.await(t, p.logs, `msg=ready`)
	return p
}

// example makes a git repository of one of the examples.
func example(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, "examples", "indexes", name))); err != nil {
		t.Fatal(err)
	}
	testmesh.Commit(t, dir, nil)
	return dir
}

// held is an index with a tool that reports its start and runs until it is released.
func held(t *testing.T) string {
	t.Helper()
	return testmesh.Repository(t, "held", map[string]string{
		"tools.toml": "[index]\ntools = [\"t.wait\", \"t.items\", \"t.fast\", \"t.retried\"]\n",
		"t.py": `import os, time

def wait(folder: str, name: str) -> str:
    """Say that it runs, and run until the file "go" is in the folder."""
    open(os.path.join(folder, name), "w").close()
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)
    return name

def retried(folder: str, name: str) -> str:
    """Fail until the file "go" is in the folder."""
    with open(os.path.join(folder, name), "a") as runs:
        runs.write("run\n")
    if not os.path.exists(os.path.join(folder, "go")):
        raise RuntimeError("not yet")
    return name

def items(n: int, pause: float = 0.0):
    for i in range(n):
        yield {"n": i}
        if pause:
            time.sleep(pause)

def fast(n: int = 0) -> int:
    return n
`,
	})
}
