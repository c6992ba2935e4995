package agent_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/meshtest"
)

// Sessions share the workers of an index fairly; all sessions that were not created count as one. A
// waiting call whose caller has died does not begin. The same holds for commands.
func TestSessionsShareWorkersFairly(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string]string{
		"functions": {
			"tools.toml": "[index]\nconcurrency = 1\ntools = [\"t.hold\", \"t.note\"]\n",
			"t.py":       "def hold(path: str):\n    return open(path).read()\n\ndef note(path: str, name: str):\n    with open(path, 'a') as f:\n        f.write(name + ' ')\n",
		},
		"commands": {"tools.toml": `[index]
concurrency = 1
[tool."t.hold"]
command = ["cat", "{path}"]
stdout = "text"
[tool."t.note"]
command = ["sh", "-c", 'printf "%s " "$1" >> "$2"', "-", "{name}", "{path}"]
stdout = "text"
`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takeTurns(t, files)
		})
	}
}

func takeTurns(t *testing.T, files map[string]string) {
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	install(t, nc, map[string]any{"source": repository(t, "turns", files)})
	dir := t.TempDir()
	gatePath, notes := filepath.Join(dir, "gate"), filepath.Join(dir, "notes")
	if err := syscall.Mkfifo(gatePath, 0o600); err != nil {
		t.Fatal(err)
	}
	beats, err := nc.SubscribeSync("mesh.hb.one")
	if err != nil {
		t.Fatal(err)
	}
	next := func(in *nats.Subscription) *nats.Msg {
		t.Helper()
		m, err := in.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	answers, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	send := func(session, name, path string) {
		t.Helper()
		args := map[string]string{"path": path}
		if name == "note" {
			args["name"] = session
		}
		body, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishMsg(&nats.Msg{
			Subject: "tools." + session + ".turns.t." + name, Reply: answers.Subject, Data: body,
			Header: nats.Header{"Mesh-Timeout-Ms": {"600000"}}, // a slow machine's heartbeats are waited for
		}); err != nil {
			t.Fatal(err)
		}
	}
	send("invented", "hold", gatePath)
	gate, err := os.OpenFile(gatePath, os.O_WRONLY, 0) // returns when the tool reads
	if err != nil {
		t.Fatal(err)
	}
	dead := s.Connect(t) // its call is the first that waits
	inbox := dead.NewInbox()
	if _, err := dead.SubscribeSync(inbox); err != nil {
		t.Fatal(err)
	}
	if err := dead.PublishMsg(&nats.Msg{
		Subject: "tools.dead.turns.t.note", Reply: inbox, Data: fmt.Appendf(nil, `{"path":%q,"name":"dead"}`, notes),
		Header: nats.Header{"Mesh-Timeout-Ms": {"600000"}, "Mesh-Keepalive": {"1"}},
	}); err != nil {
		t.Fatal(err)
	}
	if err := dead.Flush(); err != nil {
		t.Fatal(err)
	}
	waits := func(calls int) {
		t.Helper()
		for queued := 0; queued < calls; {
			var beat codec.Heartbeat
			if err := json.Unmarshal(next(beats).Data, &beat); err != nil {
				t.Fatal(err)
			}
			queued = beat.Queued
		}
	}
	waits(1)
	order := []string{"x0", "x1", "x2", "x3", "default"}
	for i, session := range order {
		send(session, "note", notes)
		waits(i + 2)
	}
	dead.Close()
	for range 3 { // heartbeats, in which time a keepalive has found the caller gone
		next(beats)
	}
	if err := gate.Close(); err != nil {
		t.Fatal(err)
	}
	for range len(order) + 1 {
		if m := next(answers); m.Header.Get("Mesh-Error-Code") != "" {
			t.Errorf("a call: %s", m.Data)
		}
	}
	got, err := os.ReadFile(notes) // the turn before that of default is the dead caller's
	if want := "default x0 x1 x2 x3"; err != nil || strings.TrimSpace(string(got)) != want {
		t.Errorf("served in the order %s (%v), want %s", got, err, want)
	}
}
