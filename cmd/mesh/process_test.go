package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/meshtest"
)

// watch keeps the output of a process and waits for a text in it.
type watch struct {
	want string
	seen chan struct{}

	mu   sync.Mutex
	buf  bytes.Buffer
	once sync.Once
}

func newWatch(want string) *watch { return &watch{want: want, seen: make(chan struct{})} }

func (w *watch) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(p)
	if strings.Contains(w.buf.String(), w.want) {
		w.once.Do(func() { close(w.seen) })
	}
	return len(p), nil
}

func (w *watch) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// command is mesh with files of its own.
func meshCommand(t *testing.T, home string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "mesh", args...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_DATA_HOME=" + filepath.Join(home, "data"),
		"XDG_STATE_HOME=" + filepath.Join(home, "state"), "XDG_CONFIG_HOME=" + filepath.Join(home, "config"),
	}
	return cmd
}

// startUp runs `mesh up` in the foreground until its ready line.
func startUp(t *testing.T, home string, args ...string) (cmd *exec.Cmd, url string, log *watch) {
	t.Helper()
	cmd = meshCommand(t, home, append([]string{"up", "--nats-listen=127.0.0.1:0"}, args...)...)
	log = newWatch("")
	cmd.Stderr = log
	meshtest.Warm(filepath.Join(home, "data", "toolmesh", "executor"), t.Cleanup)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Wait()
		t.Fatalf("no ready line: %v\n%s", err, log.text())
	}
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "ready nats=")
	url, _, _ = strings.Cut(url, " ")
	if !ok {
		t.Fatalf("first line is %q, want ready nats=URL", line)
	}
	return cmd, url, log
}

func exitStatus(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// A mesh ends well on each of the signals that ask for it, and takes its records
// with it.
func TestUpEndsOnSignals(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			cmd, _, log := startUp(t, home)
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatalf("end of mesh up: %v, want exit status 0\n%s", err, log.text())
			}
			left, err := filepath.Glob(filepath.Join(home, "state", "toolmesh", "*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left in the state folder: %q %v", left, err)
			}
			if _, err := os.Stat(filepath.Join(home, "data", "toolmesh", upFile)); err == nil {
				t.Errorf("%s is left in the data folder", upFile)
			}
		})
	}
}

// A mesh whose log has lost its reader, as when Ctrl-C ends both sides of a pipe, ends as well.
func TestUpOutlivesTheReaderOfItsLog(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	cmd := meshCommand(t, home, "up", "--nats-listen=127.0.0.1:0", "--gateway-listen=off")
	meshtest.Warm(filepath.Join(home, "data", "toolmesh", "executor"), t.Cleanup)
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, err = bufio.NewReader(out).ReadString('\n')
	if err := errors.Join(err, log.Close(), cmd.Process.Signal(os.Interrupt)); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("end of mesh up: %v, want exit status 0", err)
	}
	if _, err := os.Stat(filepath.Join(home, "data", "toolmesh", upFile)); err == nil {
		t.Errorf("%s is left in the data folder", upFile)
	}
}

// The second signal does not wait for the call that runs.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	cmd, _, log := startUp(t, home)
	source, err := filepath.Abs("../../examples/indexes/lab")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := meshCommand(t, home, "install", source).CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	stream := meshCommand(t, home, "stream", "lab.streams.countdown", "start=1000")
	items, err := stream.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stream.Process.Kill() // it has no mesh any more
		_ = stream.Wait()
	}()
	if _, err := bufio.NewReader(items).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(log.text(), "draining") {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("it does not drain")
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if got := exitStatus(cmd.Wait()); got != 130 {
		t.Errorf("exit status %d, want 130\n%s", got, log.text())
	}
}

// Ctrl-C cancels the call where it runs, and the command says so by its status.
func TestInterruptedCallIsCancelled(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	up, url, log := startUp(t, home)
	defer func() {
		_ = up.Process.Signal(os.Interrupt)
		if err := up.Wait(); err != nil {
			t.Errorf("end of mesh up: %v\n%s", err, log.text())
		}
	}()
	source, err := filepath.Abs("../../examples/indexes/lab")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := meshCommand(t, home, "install", source).CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	for name, tc := range map[string]struct {
		args []string
		want string // on stdout
	}{
		"plain":  {[]string{"stream", "lab.streams.countdown", "start=1000"}, ""},
		"json":   {[]string{"stream", "lab.streams.countdown", "start=1000", "--json"}, `"code":"cancelled"`},
		"stdin":  {[]string{"call", "lab.streams.countdown", "-"}, ""},
		"server": {[]string{"stream", "lab.streams.countdown", "start=1000", "--server", url}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := meshCommand(t, home, tc.args...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stdin.Close() }()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(out)
			if name == "stdin" {
				// More than a pipe holds: written, it is being read.
				if _, err := stdin.Write(bytes.Repeat([]byte(" "), 1<<20)); err != nil {
					t.Fatal(err)
				}
			} else if _, err := lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(lines)
			if got := exitStatus(cmd.Wait()); got != 130 {
				t.Errorf("exit status %d, want 130", got)
			}
			if !strings.Contains(string(rest), tc.want) {
				t.Errorf("stdout ends with %q, want %q in it", rest, tc.want)
			}
		})
	}
	// Nothing runs any more where the calls ran, long before they would have ended.
	meshtest.Until(t, "no call is in flight", func() bool {
		out, err := meshCommand(t, home, "nodes", "--json").Output()
		if err != nil {
			t.Fatalf("nodes: %s %v", out, err)
		}
		return strings.Contains(string(out), `"in_flight":0`)
	})
}

// An interrupted install says what is true: it goes on, and can be taken back once
// it is there, not before.
func TestInterruptedInstall(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	up, _, log := startUp(t, home)
	defer func() {
		_ = up.Process.Signal(os.Interrupt)
		if err := up.Wait(); err != nil {
			t.Errorf("end of mesh up: %v\n%s", err, log.text())
		}
	}()
	source := filepath.Join(t.TempDir(), "slow")
	hang := filepath.Join(home, "hang")
	for path, text := range map[string]string{
		filepath.Join(source, "tools.toml"): "[index]\ntools = [\"s.f\"]\n",
		filepath.Join(source, "s.py"): "import os, time\nwhile os.path.exists(os.path.expanduser('~/hang')):\n    time.sleep(0.05)\n\n" +
			"def f():\n    return 1\n",
		hang: "",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	install := meshCommand(t, home, "install", source)
	said := newWatch("import\n")
	install.Stderr = said
	if err := install.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-said.seen:
	case <-time.After(time.Minute):
		t.Fatalf("it does not come to the import:\n%s", said.text())
	}
	if err := install.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if got := exitStatus(install.Wait()); got != 130 {
		t.Errorf("exit status %d, want 130", got)
	}
	for _, part := range []string{"the agent goes on with the install (job_", "mesh uninstall slow ends it or removes the index"} {
		if !strings.Contains(said.text(), part) {
			t.Errorf("it says %q, want %q in it", said.text(), part)
		}
	}
	// The advice in its output, executed.
	if err := os.Remove(hang); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		out, _ := meshCommand(t, home, "indexes").CombinedOutput()
		if strings.Contains(string(out), "slow") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a minute long there is no index: %s", out)
		}
	}
	if out, err := meshCommand(t, home, "uninstall", "slow").CombinedOutput(); err != nil {
		t.Errorf("uninstall: %v %s", err, out)
	}
}

// A demo that is interrupted leaves neither a process nor a file.
func TestInterruptedDemoCleansUp(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	cmd := meshCommand(t, t.TempDir(), "demo")
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "mesh install") {
	}
	pids, err := filepath.Glob(filepath.Join(tmp, "*", "data", "lock"))
	if err != nil || len(pids) != 1 {
		t.Fatalf("locks of the demo's mesh: %q %v, want one", pids, err)
	}
	text, err := os.ReadFile(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || connect.ProcessID(pid) == "" {
		t.Fatalf("the demo's mesh is process %q: %v", text, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if got := exitStatus(cmd.Wait()); got != 130 {
		t.Errorf("exit status %d, want 130", got)
	}
	if connect.ProcessID(pid) != "" {
		t.Errorf("process %d lives on", pid)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// The process that listens is found although the address is that of a dead mesh:
// nothing answers there, and the message says where.
func TestNoServerListens(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	cmd := meshCommand(t, t.TempDir(), "ls", "--server", "nats://me:secret@"+address)
	out, err := cmd.CombinedOutput()
	if exitStatus(err) != 3 || !strings.Contains(string(out), "no mesh at nats://"+address) {
		t.Errorf("status %d: %s", exitStatus(err), out)
	}
	if strings.Contains(string(out), "secret") {
		t.Errorf("the password is shown: %s", out)
	}
}
