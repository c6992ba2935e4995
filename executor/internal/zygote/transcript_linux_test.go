package zygote

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// replayed is the variable that makes this program the zygote of a recording.
const replayed = "TOOLMESH_TEST_RECORDING"

func TestMain(m *testing.M) {
	if path := os.Getenv(replayed); path != "" {
		if err := beZygote(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// beZygote replays a recorded zygote on descriptor 3, in step with the agent's recorded messages.
func beZygote(path string) error {
	data, err := os.ReadFile(path) //nolint:gosec // of testdata
	if err != nil {
		return err
	}
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return err
	}
	for text := range strings.Lines(string(data)) {
		text = strings.TrimSuffix(text, "\n")
		if text == "" || text[0] == '#' {
			continue
		}
		parts := strings.SplitN(text, " ", 4)
		message, err := hex.DecodeString(parts[2])
		var body string
		if err := errors.Join(err, json.Unmarshal([]byte(parts[3]), &body)); err != nil {
			return err
		}
		for _, char := range body { // one for each byte
			message = append(message, byte(char))
		}
		h := frame.Parse(message)
		if parts[0] == "<" {
			var rights []byte
			if h.Type == frame.Forked && h.Flags&frame.FlagHandle != 0 {
				rights = unix.UnixRights(self)
			}
			if err := unix.Sendmsg(3, message, rights, nil, 0); err != nil {
				return err
			}
			continue
		}
		got, rights := make([]byte, 1<<16), make([]byte, 256)
		n, m, _, _, err := unix.Recvmsg(3, got, rights, 0)
		if err != nil {
			return err
		}
		if !bytes.Equal(got[:n], message) {
			return fmt.Errorf("recorded %q, the agent sent %q", message, got[:n])
		}
		if h.Type == frame.Fork {
			messages, err := unix.ParseSocketControlMessage(rights[:m])
			if err != nil || len(messages) != 1 {
				return fmt.Errorf("%d messages with descriptors came with a FORK: %w", len(messages), err)
			}
			if fds, err := unix.ParseUnixRights(&messages[0]); err != nil || len(fds) != 5 {
				return fmt.Errorf("the descriptors of a FORK: %v, %w", fds, err)
			}
		}
	}
	_, err = io.Copy(io.Discard, os.NewFile(3, "control")) // until the agent closes it
	return err
}

// A recorded conversation of a zygote is replayed to the agent's side: it sends the recorded messages, and reads the recorded results.
func TestRecordedZygote(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	spawner := sandbox.NewSpawner(slog.New(slog.DiscardHandler), sandbox.LevelReaper)
	defer spawner.Close()
	proc, err := spawner.Start(sandbox.Command{Path: path, Env: []string{replayed + "=../frame/testdata/zygote.txt"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := &Starter{opts: Options{MaxResult: 64 << 20, StartTimeout: time.Minute, MaxFrame: 1 << 20}}
	g := &Group{Config: Config{Logger: log}, starter: s}
	z, err := g.startZygote(ctx, proc, Setup{Root: "/i", Paths: []string{"/i"}, Tools: []string{"t.f"}, Sandbox: tool.SandboxNone})
	if err != nil {
		t.Fatal(err)
	}
	defer z.kill()
	if len(z.about.Tools) != 1 || z.about.Tools[0].Name != "t.f" || z.about.Tools[0].Kind != KindSync || z.about.Tools[0].OutputSchema != nil ||
		len(z.about.Unavailable) != 0 || z.about.ForkUnsafe != "" {
		t.Errorf("described: %+v", z.about)
	}
	p, err := s.startProcess(log, z, sandbox.User{}, Worker{Isolation: toolmesh.IsolationWarm}, false)
	if err != nil {
		t.Fatalf("%v: %s", err, z.words)
	}
	select {
	case <-p.Done():
		if want := (sandbox.Exit{Code: -1, Signal: 9}); p.Exit() != want {
			t.Errorf("the worker's end: %v, want %v", p.Exit(), want)
		}
	case <-ctx.Done():
		t.Error("the worker's end is not known")
	}
	p.Close()
	if _, err := s.startProcess(log, z, sandbox.User{}, Worker{Isolation: toolmesh.IsolationWarm}, false); err == nil ||
		!strings.Contains(err.Error(), "Resource temporarily unavailable") {
		t.Errorf("a fork that fails: %v", err)
	}
}
