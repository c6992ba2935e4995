package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// start runs an agent until the test ends. MESH_TEST_LOGS=1 shows its log.
func start(t *testing.T, s *meshtest.Server, node subjects.NodeID) *agent.Agent {
	t.Helper()
	var log *slog.Logger
	if os.Getenv("MESH_TEST_LOGS") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	a, err := agent.New(s.Connect(t), t.TempDir(), &agent.Options{Node: node, Environ: os.Environ(), Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return a
}

// repository makes a git repository of files and returns its URL.
func repository(t *testing.T, name string, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, dir, "first")
	return "file://" + dir
}

func commit(t *testing.T, dir, message string) {
	t.Helper()
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"add", "-A"},
		{"-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", message},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
}

// admin sends an administrative request and returns the answer's lines.
func admin(t *testing.T, nc *nats.Conn, verb string, body any) (lines []map[string]any, failure *toolmesh.Error) {
	t.Helper()
	subject, err := subjects.Admin(verb)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	reply := nc.NewInbox()
	sub, err := nc.SubscribeSync(reply)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(subject, reply, data); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := sub.NextMsgWithContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Data) == 0 {
			return lines, failure
		}
		var line map[string]any
		if err := json.Unmarshal(m.Data, &line); err != nil {
			t.Fatalf("line %s: %v", m.Data, err)
		}
		if line["error"] != nil {
			var e struct{ Error *toolmesh.Error }
			_ = json.Unmarshal(m.Data, &e)
			failure = e.Error
		}
		lines = append(lines, line)
	}
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
	c, err := client.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
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
	// A second agent serves what is installed, without git.
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

func TestInstallFailures(t *testing.T) {
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	cases := map[string]struct {
		files map[string]string
		body  map[string]any
		want  string
	}{
		"no manifest":    {files: map[string]string{"a.py": ""}, want: "tools.toml"},
		"another format": {files: map[string]string{"tools.toml": "[tools]\nx = 1\n"}, want: "[index]"},
		"nothing works":  {files: map[string]string{"tools.toml": "[index]\ntools=[\"a.b\"]\n", "a.py": "raise RuntimeError('down')\n"}, want: "down"},
		"revision":       {files: map[string]string{"tools.toml": mathTools, "calc.py": mathSource}, body: map[string]any{"rev": "nope"}, want: "nope"},
		"dependency":     {files: map[string]string{"tools.toml": mathTools, "calc.py": mathSource, "requirements.txt": "packaging==0.0.0.1\n"}, want: "packaging"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			body := map[string]any{"source": repository(t, "thing", tc.files)}
			for k, v := range tc.body {
				body[k] = v
			}
			_, failure := admin(t, nc, "install", body)
			if failure == nil || failure.Code != toolmesh.CodeInstallFailed || !strings.Contains(failure.Message, tc.want) {
				t.Errorf("failure = %v, want install_failed with %q", failure, tc.want)
			}
		})
	}
	if _, failure := admin(t, nc, "install", map[string]any{"source": "file:///no/such/repository"}); failure == nil || failure.Code != toolmesh.CodeInstallFailed {
		t.Errorf("unreachable repository: %v", failure)
	}
}
