package meshtest

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"
)

// ShowLogs reports whether MESH_TEST_LOG is set: tests then print the logs of the mesh
// while it runs, and a failing test with a broker prints the goroutines of its process.
func ShowLogs() bool { return os.Getenv("MESH_TEST_LOG") != "" }

// dumpOnFailure prints the goroutines of this process where a test has failed.
func dumpOnFailure(t testing.TB) {
	if t.Failed() && ShowLogs() {
		var text bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&text, 1) // a buffer takes all
		t.Logf("goroutines:\n%s", &text)
	}
}

// Logs is a captured log.
type Logs struct {
	// Logger is captured.
	Logger *slog.Logger

	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

// CaptureLogs returns a logger that keeps its records, of all levels. A failing test prints them;
// with [ShowLogs] they are printed as they are written.
func CaptureLogs(t testing.TB) *Logs {
	t.Helper()
	l := &Logs{changed: make(chan struct{})}
	var to io.Writer = l
	if ShowLogs() {
		to = io.MultiWriter(l, t.Output())
	}
	l.Logger = slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: slog.LevelDebug}))
	t.Cleanup(func() {
		if t.Failed() && !ShowLogs() {
			t.Logf("log:\n%s", l)
		}
	})
	return l
}

// Write takes one line; it is for the logger.
func (l *Logs) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
	return l.text.Write(line)
}

func (l *Logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count returns how many lines contain text.
func (l *Logs) Count(text string) int {
	n := 0
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// Wait returns when a line contains text, and fails the test if none does within a minute.
func (l *Logs) Wait(t testing.TB, text string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		l.mu.Lock()
		found, changed := strings.Contains(l.text.String(), text), l.changed
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("the log does not say %q within a minute", text)
		}
	}
}
