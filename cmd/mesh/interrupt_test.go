package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
)

// A command that reads stdin ends on a signal while that is open and says nothing.
func TestCommandsThatReadEndOnSignals(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	// More than a pipe holds: once it is written the command reads.
	fill := strings.Repeat(" ", 1<<17)
	for name, c := range map[string]struct {
		args []string
		says string // its final output for the given line
	}{
		"call --lines":  {[]string{"call", "--lines"}, `"code":"invalid_request"`},
		"call -":        {[]string{"call", "desk.add", "-"}, ""},
		"install -":     {[]string{"install", "-"}, ""},
		"task submit -": {[]string{"task", "submit", "desk.add", "-"}, ""},
	} {
		for _, signal := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
			t.Run(name+" "+signal.String(), func(t *testing.T) {
				t.Parallel()
				cmd := meshCommand(t, t.TempDir(), append(c.args, "--json", "--server="+broker.URL)...)
				in, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				out := newWatch(c.says)
				var stderr bytes.Buffer
				cmd.Stdout, cmd.Stderr = out, &stderr
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if c.says != "" {
					_, err = io.WriteString(in, "{}\n") // a line without a tool
				} else {
					_, err = io.WriteString(in, fill)
				}
				if err != nil {
					t.Fatalf("%v: %s", err, stderr.String())
				}
				if c.says != "" {
					<-out.seen
				}
				if err := cmd.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
				if got := exitStatus(cmd.Wait()); got != 130 {
					t.Errorf("exit status %d, want 130\n%s%s", got, out.text(), stderr.String())
				}
				var answer struct{ Error struct{ Code string } }
				if err := json.Unmarshal([]byte(out.text()), &answer); c.says == "" && (err != nil || answer.Error.Code != "cancelled") {
					t.Errorf("it prints %q", out.text())
				}
			})
		}
	}
}

// An interrupted command that makes a key takes the key back, and its file: in a bounded time, as the server may be what
// the user gave up on.
func TestAnInterruptedKeyIsForgotten(t *testing.T) {
	t.Parallel()
	l := &link{nc: meshtest.Broker(t).Connect(t)} // a server that takes no keys
	ctx, cancel := context.WithCancel(t.Context())
	file, forgotten := filepath.Join(t.TempDir(), "key.nk"), false
	_, err := new(app).newKey(ctx, l, "mine", file, func(string) error { cancel(); return nil }, func(ctx context.Context) error {
		_, bounded := ctx.Deadline()
		forgotten = ctx.Err() == nil && bounded
		return nil
	})
	if _, gone := os.Stat(file); err == nil || !forgotten || !os.IsNotExist(gone) {
		t.Errorf("the command ends with %v; forgotten is %t; the file: %v", err, forgotten, gone)
	}
}
