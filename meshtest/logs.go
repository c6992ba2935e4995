package meshtest

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// Logs is a captured log.
type Logs struct {
	// Logger is what is captured.
	Logger *slog.Logger

	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

// CaptureLogs returns a logger that keeps what it gets, of all levels. A test that
// fails prints it.
func CaptureLogs(t testing.TB) *Logs {
	t.Helper()
	l := &Logs{changed: make(chan struct{})}
	l.Logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
	t.Cleanup(func() {
		if t.Failed() {
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

// Wait returns when a line contains text, and fails the test if the test's
// context ends first.
func (l *Logs) Wait(t testing.TB, text string) {
	t.Helper()
	for {
		l.mu.Lock()
		found, changed := strings.Contains(l.text.String(), text), l.changed
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatalf("the log never says %q", text)
		}
	}
}
