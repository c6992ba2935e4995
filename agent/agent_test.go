package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "agent-test-uv-")
	if err != nil {
		panic(err)
	}
	uvFolder = dir
	meshtest.Main(m, func() { _ = os.RemoveAll(uvFolder) })
}

// start runs an agent in a new folder until the test ends. MESH_TEST_LOG=1
// shows its log.
func start(t *testing.T, s *meshtest.Server, node subjects.NodeID) *agent.Agent {
	t.Helper()
	return startIn(t, s, node, t.TempDir())
}

// startIn is start in a folder that may be an earlier agent's.
func startIn(t *testing.T, s *meshtest.Server, node subjects.NodeID, dir string, change ...func(*agent.Options)) *agent.Agent {
	t.Helper()
	return startOn(t, s.Connect(t), node, dir, change...)
}

// startOn is startIn on a connection.
func startOn(t *testing.T, nc *nats.Conn, node subjects.NodeID, dir string, change ...func(*agent.Options)) *agent.Agent {
	t.Helper()
	// The tools of most tests write where the test is.
	o := &agent.Options{Node: node, Environ: os.Environ(), WorkerUser: strconv.Itoa(os.Geteuid()), PrivateSources: true}
	if meshtest.ShowLogs() {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	for _, c := range change {
		c(o)
	}
	meshtest.Warm(filepath.Join(dir, "executor"), t.Cleanup)
	a, err := agent.New(nc, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, a)
	t.Cleanup(func() { meshtest.End(t, a) })
	return a
}

// stop stops an agent; a second time is nothing.
func stop(t *testing.T, a *agent.Agent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// repository makes a git repository of files and returns its URL.
func repository(t *testing.T, name string, files map[string]string) string {
	t.Helper()
	return "file://" + testmesh.Repository(t, name, files)
}

// admin sends an administrative request and returns the answer's lines.
func admin(t *testing.T, nc *nats.Conn, verb string, body any) (lines []map[string]any, failure *toolmesh.Error) {
	t.Helper()
	lines, failure, err := tryAdmin(t.Context(), nc, verb, body)
	if err != nil {
		t.Fatal(err)
	}
	return lines, failure
}

// tryAdmin is admin for goroutines of a test.
func tryAdmin(ctx context.Context, nc *nats.Conn, verb string, body any) (lines []map[string]any, failure *toolmesh.Error, err error) {
	subject, err := subjects.Subject{Kind: subjects.KindAdmin, Verb: verb}.Build()
	if err != nil {
		return nil, nil, err
	}
	return tryAdminAt(ctx, nc, subject, body)
}

// tryAdminAt is tryAdmin on a subject, of any agent or of a node.
func tryAdminAt(ctx context.Context, nc *nats.Conn, subject string, body any) (lines []map[string]any, failure *toolmesh.Error, err error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, nil, err
	}
	reply := nc.NewInbox()
	sub, err := nc.SubscribeSync(reply)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(subject, reply, data); err != nil {
		return nil, nil, err
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return lines, failure, err
		}
		if len(m.Data) == 0 {
			return lines, failure, nil
		}
		var line map[string]any
		if err := json.Unmarshal(m.Data, &line); err != nil {
			return lines, failure, err
		}
		if line["error"] != nil {
			var e struct{ Error *toolmesh.Error }
			if err := json.Unmarshal(m.Data, &e); err != nil {
				return lines, failure, err
			}
			failure = e.Error
		}
		lines = append(lines, line)
	}
}

// install installs an index and returns the last line of the answer.
func install(t *testing.T, nc *nats.Conn, body map[string]any) map[string]any {
	t.Helper()
	lines, failure := admin(t, nc, "install", body)
	if failure != nil {
		t.Fatalf("install %v: %v (%v)", body["source"], failure, failure.Details)
	}
	return lines[len(lines)-1]
}

// newClient makes a client that is closed with the test.
func newClient(t *testing.T, nc *nats.Conn, o *client.Options) *client.Client {
	t.Helper()
	c := testmesh.Client(t, nc, o)
	return c
}

const mathTools = `
[index]
tools = ["calc.add", "calc.count", "calc.boom", "calc.gone"]
`

const mathSource = `
import asyncio

def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b

def count(to: int):
    for i in range(to):
        yield {"n": i}

async def boom():
    await asyncio.sleep(0)
    raise ValueError("no such luck")
`

func TestInstallCallStream(t *testing.T) {
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	url := repository(t, "math", map[string]string{"tools.toml": mathTools, "calc.py": mathSource})
	lines, failure := admin(t, nc, "install", map[string]any{"source": url})
	if failure != nil {
		t.Fatalf("install: %v", failure)
	}
	last, _ := json.Marshal(lines[len(lines)-1])
	for _, want := range []string{`"index":"math"`, `"math.calc.add"`, `"id":"math.calc.gone"`} {
		if !bytes.Contains(last, []byte(want)) {
			t.Errorf("last line has no %s: %s", want, last)
		}
	}
	c := testmesh.Client(t, nc, nil)
	r, err := c.Call(t.Context(), "math.calc.add", map[string]any{"a": 41})
	if err != nil || string(r.Value) != "42" {
		t.Fatalf("add: %v %v", r, err)
	}
	_, err = c.Call(t.Context(), "math.calc.boom", nil)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeToolError || e.Type != "ValueError" || e.Message != "no such luck" {
		t.Errorf("boom: %#v", e)
	}
	n := 0
	for chunk, err := range c.Stream(t.Context(), "math.calc.count", map[string]any{"to": 1000}) {
		if err != nil {
			t.Fatalf("stream after %d: %v", n, err)
		}
		var item struct{ N int }
		if err := chunk.Decode(&item); err != nil || item.N != n {
			t.Fatalf("item %d: %s", n, chunk.Data)
		}
		n++
	}
	if n != 1000 {
		t.Errorf("stream had %d items", n)
	}
	// A second agent serves the installed index without git.
	two := start(t, s, "two")
	if err := two.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := make(map[subjects.NodeID]bool)
	meshtest.Until(t, "both nodes serve", func() bool {
		r, err := c.Call(t.Context(), "math.calc.add", map[string]any{"a": 1}, client.ViaQueue())
		if err != nil {
			t.Fatal(err)
		}
		seen[r.Node] = true
		return len(seen) == 2
	})
	if _, failure := admin(t, nc, "uninstall", map[string]any{"name": "math"}); failure != nil {
		t.Fatalf("uninstall: %v", failure)
	}
	meshtest.Until(t, "nobody serves it any more", func() bool {
		_, err := c.Call(t.Context(), "math.calc.add", map[string]any{"a": 1}, client.ViaQueue())
		return toolmesh.CodeOf(err) == toolmesh.CodeToolNotFound
	})
}
