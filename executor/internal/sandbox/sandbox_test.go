package sandbox_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newSpawner(t *testing.T, levels ...sandbox.Level) *sandbox.Spawner {
	t.Helper()
	s := sandbox.NewSpawner(slog.New(slog.DiscardHandler), levels...)
	t.Cleanup(s.Close)
	return s
}

func TestStartGivesTheProgramItsChannels(t *testing.T) {
	t.Parallel()
	s := newSpawner(t)
	p, err := s.Start(sandbox.Command{
		Path: "/bin/sh", Args: []string{"-c", `echo "mode $1"; echo oops >&2; cat <&4; exit 7`, "sh"},
		Env: []string{"PATH=/usr/bin:/bin"}, Dir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 64)
	n, err := p.Stdout.Read(out)
	want := "mode namespace\n"
	if p.Level == sandbox.LevelReaper {
		want = "mode reaper\n"
	}
	if err != nil || string(out[:n]) != want {
		t.Errorf("stdout %q, %v, want %q", out[:n], err, want)
	}
	// It waits for the end of its lifeline; Kill closes that or kills it before.
	p.Kill()
	p.Kill()
	<-p.Done()
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	s := newSpawner(t, sandbox.LevelReaper)
	for script, want := range map[string]int{"exit 7": 7, "exit 0": 0, "kill -KILL $$": 128 + int(syscall.SIGKILL)} {
		p, err := s.Start(sandbox.Command{Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"PATH=/usr/bin:/bin"}})
		if err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		if got := p.ExitCode(); got != want {
			t.Errorf("%s: exit code %d, want %d", script, got, want)
		}
		p.Kill()
	}
}

// An unreadable report of a program's end is never success.
func TestUnreadableEndIsNoSuccess(t *testing.T) {
	t.Parallel()
	s := newSpawner(t, sandbox.LevelReaper)
	lost := sandbox.Ending{Lost: true}
	for said, want := range map[string]sandbox.Ending{
		"exit 0":              {},
		"exit 768":            {Exit: sandbox.Exit{Code: 3}},
		"exit 9":              {Exit: sandbox.Exit{Code: -1, Signal: 9}},
		"exec 2":              {Failed: syscall.ENOENT},
		"exec 0":              {Failed: syscall.ENOEXEC},
		"refused no Landlock": {Refused: "no Landlock"},
		"refused ":            {Refused: "no reason was given"},
		"refused":             {Refused: "no reason was given"},
		"exit":                lost, "exit ": lost, "exit x": lost, "exit 65536": lost, "exit 0 0": lost, "exit -1": lost,
		"exec": lost, "exec x": lost, "exec -1": lost, "": lost, "0": lost,
	} {
		p, err := s.Start(sandbox.Command{Path: "/bin/sh", Args: []string{"-c", `printf "$0" >&3`, said}, Env: []string{"PATH=/usr/bin:/bin"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Ending(); got != want {
			t.Errorf("%q: got %+v, want %+v", said, got, want)
		}
		p.Kill()
	}
}

func TestStartOfAMissingProgramFails(t *testing.T) {
	t.Parallel()
	s := newSpawner(t)
	if _, err := s.Start(sandbox.Command{Path: "/nowhere/python"}); err == nil || !strings.Contains(err.Error(), "/nowhere/python") {
		t.Errorf("got %v, want an error that names the program", err)
	}
}

func TestAPageIsSharedMemory(t *testing.T) {
	t.Parallel()
	page, err := sandbox.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	page.Store(sandbox.WordStarted, 0x0102030405060708)
	data := make([]byte, 16)
	if _, err := page.File().ReadAt(data, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data[8:], []byte{8, 7, 6, 5, 4, 3, 2, 1}) || page.Load(sandbox.WordCancel) != 0 {
		t.Errorf("got % x", data)
	}
	// A read of a page that is cut off ends this process.
	if err := page.File().Truncate(0); err == nil && runtime.GOOS == "linux" {
		t.Fatal("a worker can cut the page off")
	}
	page.Sent()
	if page.Load(sandbox.WordStarted) != 0x0102030405060708 {
		t.Error("the memory went with the descriptor")
	}
}

// A process may send any descriptor in place of a pidfd: one of a socket, whose close would wait for an hour.
func TestHandlesOfOtherFilesAreClosedAtOnce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept() // reads nothing
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	sent := -1
	if err := raw.Control(func(fd uintptr) { sent, err = unix.Dup(int(fd)) }); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	for err = unix.SetsockoptLinger(sent, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}); err == nil; {
		err = unix.Sendto(sent, make([]byte, 1<<20), unix.MSG_DONTWAIT, nil)
	}
	h := sandbox.NewHandle(sent, 1)
	if h.Below(os.Getpid()) && runtime.GOOS == "linux" {
		t.Error("a socket is a process")
	}
	h.Close()
}

// The child's end of a pipe blocks; ours does not, so that it cannot block the runtime.
func TestPipeEnds(t *testing.T) {
	t.Parallel()
	var r *os.File
	theirs, err := sandbox.NewPipes(sandbox.Channel{Ours: &r})
	if err != nil {
		t.Fatal(err)
	}
	w := theirs[0]
	done := make(chan string)
	go func() {
		data, _ := io.ReadAll(r)
		done <- string(data)
	}()
	if _, err := w.WriteString("through"); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if got := <-done; got != "through" {
		t.Errorf("got %q", got)
	}
	if err := r.SetReadDeadline(time.Time{}); err != nil {
		t.Errorf("our end is not known to the poller: %v", err)
	}
	_ = r.Close()
}
