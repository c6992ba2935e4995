package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

const countingTools = `
import os
calls = 0
held = None
def hold(path: str) -> None:
    global held
    held = open(path, "w")
def die() -> None:
    os._exit(3)
def warm() -> int:
    global calls
    calls += 1
    return calls
kept = apart = warm
def each(n: int):
    for _ in range(n):
        yield warm()
def token() -> list:
    return [os.environ.get("SHARED"), os.environ.get("TOKEN")]
plain = token
`

const countingIndex = `
[index]
tools = ["t.warm", "t.kept", "t.hold", "t.die", "t.apart", "t.each", "t.token", "t.plain"]

[[index.env]]
name = "SHARED"

[[index.env]]
name = "TOKEN"
tools = ["t.token"]

[tool."t.kept"]
isolation = "session"

[tool."t.hold"]
isolation = "session"

[tool."t.apart"]
isolation = "fork"
`

func installCounting(t *testing.T, nc *nats.Conn) {
	t.Helper()
	install(t, nc, map[string]any{
		"source": repository(t, "iso", map[string]string{"tools.toml": countingIndex, "t.py": countingTools}),
		"env":    map[string]string{"SHARED": "all", "TOKEN": "one"},
	})
}

func TestDeclaredIsolationHolds(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	installCounting(t, nc)
	c := newClient(t, nc, nil)
	expect := func(c *client.Client, name, want string, opts ...client.CallOption) {
		t.Helper()
		r, err := c.Call(t.Context(), subjects.ToolID("iso.t."+name), nil, opts...)
		if err != nil || string(r.Value) != want {
			t.Errorf("%s: got %v, %v, want %s", name, r, err, want)
		}
	}
	for n := 1; n <= 3; n++ {
		expect(c, "warm", fmt.Sprint(n))
		expect(c, "apart", "1")
		expect(c.In("a"), "kept", fmt.Sprint(n))
		expect(c.In("b"), "kept", fmt.Sprint(n))
		expect(c, "warm", "1", client.WithIsolation(toolmesh.IsolationFork))
		expect(c, "warm", "1", client.WithIsolation(toolmesh.IsolationFresh))
		expect(c.In("a"), "apart", "1", client.WithIsolation(toolmesh.IsolationWarm))
		expect(c.In("c"), "warm", fmt.Sprint(n), client.WithIsolation(toolmesh.IsolationSession))
	}
	expect(c, "token", `["all","one"]`)
	expect(c, "plain", `["all",null]`)

	// The same from a client that knows only the wire.
	for n := range 2 {
		m := &nats.Msg{Subject: "tools.default.iso.t.warm", Header: nats.Header{"Mesh-Isolation": {"fork"}}}
		got, err := nc.RequestMsg(m, time.Minute)
		if err != nil || string(got.Data) != "1" {
			t.Errorf("call %d of a plain client: got %s, %v", n, got.Data, err)
		}
	}
	m := &nats.Msg{Subject: "tools.default.iso.t.warm", Header: nats.Header{"mesh-isolation": {"tight"}}}
	got, err := nc.RequestMsg(m, time.Minute)
	if err != nil || got.Header.Get("Mesh-Error-Code") != "invalid_request" || got.Header.Get("Mesh-Started") != "false" {
		t.Errorf("an unknown isolation: got %v %s, %v", got.Header, got.Data, err)
	}
	items := []json.RawMessage{}
	for chunk, err := range c.Stream(t.Context(), "iso.t.each", map[string]any{"n": 3}, client.WithIsolation(toolmesh.IsolationFork)) {
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, chunk.Data)
	}
	if fmt.Sprintf("%s", items) != "[1 2 3]" {
		t.Errorf("streamed %s", items)
	}
}

// A session that is created again under its name is another one.
func TestASessionsStateEndsWithIt(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	startIn(t, s, "one", t.TempDir(), func(o *agent.Options) { o.SessionPolicy = "strict" })
	nc := s.Connect(t)
	installCounting(t, nc)
	r, err := router.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meshtest.End(t, r) })
	for range 2 {
		session, err := r.CreateSession(t.Context(), &router.SessionOptions{ID: "chat"})
		if err != nil {
			t.Fatal(err)
		}
		for n := 1; n <= 2; n++ {
			var got *client.Result
			meshtest.Until(t, "the node knows the session", func() bool {
				got, err = session.Call(t.Context(), "iso.t.kept", nil)
				return toolmesh.CodeOf(err) != toolmesh.CodeSessionNotFound
			})
			if err != nil || string(got.Value) != fmt.Sprint(n) {
				t.Fatalf("got %v, %v, want %d", got, err, n)
			}
		}
		if err := session.End(t.Context()); err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "the node knows that the session has ended", func() bool {
			_, err := session.Call(t.Context(), "iso.t.warm", nil)
			return toolmesh.CodeOf(err) == toolmesh.CodeSessionNotFound
		})
	}
}

// fifo makes a named pipe, and is the end that reads.
func fifo(t *testing.T) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "held")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// The workers of a session end with it, even while they run.
func TestASessionsWorkersEndWithIt(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	installCounting(t, nc)
	r, err := router.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meshtest.End(t, r) })
	pipes := map[string]*os.File{}
	sessions := map[string]*router.Session{}
	for _, name := range []string{"ends", "stays"} {
		if sessions[name], err = r.CreateSession(t.Context(), &router.SessionOptions{ID: subjects.SessionID(name)}); err != nil {
			t.Fatal(err)
		}
		pipes[name] = fifo(t)
		if _, err := sessions[name].Call(t.Context(), "iso.t.hold", map[string]any{"path": pipes[name].Name()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := sessions["ends"].End(t.Context()); err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	_ = pipes["ends"].SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := pipes["ends"].Read(b[:]); !errors.Is(err, io.EOF) {
		t.Errorf("the ended session's worker still has its file: %v", err)
	}
	_ = pipes["stays"].SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := pipes["stays"].Read(b[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the other session's worker should be there: %v", err)
	}
	if _, err := sessions["stays"].Call(t.Context(), "iso.t.kept", nil); err != nil {
		t.Error(err)
	}
}

// Workers that served a session name before the session was created do not serve it afterwards.
func TestACreatedSessionStartsAnew(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	installCounting(t, nc)
	r, err := router.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meshtest.End(t, r) })
	session := r.Session("late")
	pipe := fifo(t)
	if _, err := session.Call(t.Context(), "iso.t.hold", map[string]any{"path": pipe.Name()}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.CreateSession(t.Context(), &router.SessionOptions{ID: "late"}); err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	_ = pipe.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := pipe.Read(b[:]); !errors.Is(err, io.EOF) {
		t.Errorf("the worker of those calls still has its file: %v", err)
	}
	got, err := session.Call(t.Context(), "iso.t.kept", nil)
	if err != nil || string(got.Value) != "1" {
		t.Errorf("got %v, %v, want a worker of its own", got, err)
	}
}

func TestAQuarantineIsInTheRegistry(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	installCounting(t, nc)
	c := newClient(t, nc, nil)
	for n := range 5 {
		if _, err := c.Call(t.Context(), "iso.t.die", nil); toolmesh.CodeOf(err) != toolmesh.CodeWorkerCrashed {
			t.Fatalf("crash %d: got %v", n+1, err)
		}
	}
	_, err := c.Call(t.Context(), "iso.t.die", nil)
	e := toolmesh.AsError(err)
	if _, ok := e.Details["quarantine"]; !ok || e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo || !e.Retryable {
		t.Errorf("a call in quarantine: got %+v", e)
	}
	meshtest.Until(t, "the list says that the tool is in quarantine, and of no other", func() bool {
		tools, err := c.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		said := 0
		for _, one := range tools {
			if strings.Contains(one.Reason, "quarantine") {
				said++
				if one.ID != "iso.t.die" || one.State != "serving" {
					t.Fatalf("got %+v", one)
				}
			}
		}
		return said == 1
	})
	got, err := nc.Request("mesh.registry.default.describe", []byte(`{"tool":"iso.t.die"}`), time.Minute)
	if err != nil || !strings.Contains(string(got.Data), `"reason":"in quarantine`) {
		t.Errorf("described as %s, %v", got.Data, err)
	}
	if r, err := c.Call(t.Context(), "iso.t.warm", nil); err != nil || string(r.Value) != "1" {
		t.Errorf("another tool of the index: %v, %v", r, err)
	}
}
