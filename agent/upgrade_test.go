package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// revisionTools is an index; its tools return their revision.
func revisionTools(n int) map[string]string {
	return map[string]string{
		"tools.toml": "[index]\ntools = [\"t.fast\", \"t.slow\", \"t.aslow\", \"t.items\", \"t.held\"]\n",
		"t.py": fmt.Sprintf(`import asyncio, os, time

def fast() -> int:
    return %[1]d

def slow(seconds: float) -> int:
    time.sleep(seconds)
    return %[1]d

async def aslow(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return %[1]d

def held(folder: str) -> int:
    """Say that it runs, and run until it may go."""
    open(os.path.join(folder, "started"), "w").close()
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)
    return %[1]d

def items(n: int):
    for i in range(n):
        time.sleep(0.01)
        yield [%[1]d, i]
`, n),
	}
}

// A revision is replaced while callers call: every call is
// answered by one revision or the other, and none is lost. Plain clients are
// among the callers, because those never send a call again.
func TestUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	start(t, s, "two")
	nc := s.Connect(t)
	dir := filepath.Join(t.TempDir(), "idx")
	testmesh.Commit(t, dir, revisionTools(1))
	url := "file://" + dir
	install(t, nc, map[string]any{"source": url})
	c := newClient(t, nc, nil)
	meshtest.Until(t, "both agents serve", func() bool { return len(servedBy(t, c, "idx.t.fast")) == 2 })

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var calls atomic.Int64
	seen := make(chan string, 1000)
	report := func(err error) {
		if err != nil && ctx.Err() == nil {
			select {
			case seen <- err.Error():
			default:
			}
		}
	}
	for n := range 3 {
		plain := s.Connect(t)
		wg.Go(func() { // plain requests, without our client
			for ctx.Err() == nil {
				m, err := plain.RequestWithContext(ctx, "tools.default.idx.t.fast", nil)
				if err == nil && m.Header.Get("Mesh-Error-Code") != "" {
					err = fmt.Errorf("plain: %s %s", m.Header.Get("Mesh-Error-Code"), m.Data)
				}
				calls.Add(1)
				report(err)
			}
		})
		wg.Go(func() { // calls that are in flight when the revision changes
			for ctx.Err() == nil {
				tool := []subjects.ToolID{"idx.t.slow", "idx.t.aslow"}[n%2]
				_, err := c.Call(ctx, tool, map[string]any{"seconds": 0.3})
				calls.Add(1)
				report(err)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				next, revision := 0.0, -1.0
				for chunk, err := range c.Stream(ctx, "idx.t.items", map[string]any{"n": 60}) {
					if err != nil {
						report(fmt.Errorf("stream after %v: %w", next, err))
						break
					}
					var item [2]float64
					if err := json.Unmarshal(chunk.Data, &item); err != nil || item[1] != next || revision >= 0 && item[0] != revision {
						report(fmt.Errorf("item %v of the stream is %s", next, chunk.Data))
					}
					revision = item[0]
					next++
				}
				calls.Add(1)
				if ctx.Err() == nil && next != 60 {
					report(fmt.Errorf("the stream had %v items", next))
				}
			}
		})
	}
	for revision := 2; revision <= 4; revision++ {
		testmesh.Commit(t, dir, revisionTools(revision))
		install(t, nc, map[string]any{"source": url})
		meshtest.Until(t, "both agents serve the new revision", func() bool {
			for range 8 {
				r, err := c.Call(t.Context(), "idx.t.fast", nil, client.ViaQueue())
				if err != nil || string(r.Value) != fmt.Sprint(revision) {
					return false
				}
			}
			return true
		})
	}
	cancel()
	wg.Wait()
	close(seen)
	for err := range seen {
		t.Error(err)
	}
	t.Logf("%d calls during 3 upgrades", calls.Load())
}

func TestInstallAgainUnchanged(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	url := repository(t, "idx", map[string]string{
		"tools.toml": "[index]\ntools = [\"t.started\"]\n",
		"t.py":       "import time\nSTARTED = time.time_ns()\ndef started(): return STARTED\n",
	})
	first := install(t, nc, map[string]any{"source": url})
	c := newClient(t, nc, nil)
	started := func() string {
		t.Helper()
		r, err := c.Call(t.Context(), "idx.t.started", nil)
		if err != nil {
			t.Fatal(err)
		}
		return string(r.Value)
	}
	before, record := started(), recordOf(t, nc, "idx")
	second := install(t, nc, map[string]any{"source": url})
	if fmt.Sprint(first) != fmt.Sprint(second) {
		t.Errorf("answers differ: %v, %v", first, second)
	}
	if started() != before {
		t.Error("the index was imported again")
	}
	if recordOf(t, nc, "idx") != record {
		t.Error("the record changed")
	}
}

func TestUninstallEverywhere(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	dirs := []string{t.TempDir(), t.TempDir()}
	startIn(t, s, "one", dirs[0])
	startIn(t, s, "two", dirs[1])
	nc := s.Connect(t)
	url := repository(t, "idx", revisionTools(1))
	install(t, nc, map[string]any{"source": url})
	c := newClient(t, nc, nil)
	meshtest.Until(t, "both agents serve", func() bool { return len(servedBy(t, c, "idx.t.fast")) == 2 })
	held := holdCall(t, c, "idx.t.held")
	if _, failure := admin(t, nc, "uninstall", map[string]any{"name": "idx"}); failure != nil {
		t.Fatal(failure)
	}
	if err := held.release(t); err != nil {
		t.Errorf("the call that ran at the uninstall: %v", err)
	}
	meshtest.Until(t, "nothing of it is left", func() bool {
		for _, dir := range dirs {
			if len(halfDone(t, dir)) > 0 || len(processesOf(t, dir)) > 0 {
				return false
			}
		}
		tools, err := c.List(t.Context())
		return err == nil && len(tools) == 0
	})
	_, failure := admin(t, nc, "uninstall", map[string]any{"name": "idx"})
	if failure == nil || !strings.Contains(failure.Message, "idx") {
		t.Errorf("uninstalling again: %v", failure)
	}
}

// heldCall is a call of revisionTools' held: it runs until it is released.
type heldCall struct {
	folder string
	done   chan error
}

// holdCall starts a call and returns when the tool's code runs.
func holdCall(t *testing.T, c *client.Client, id subjects.ToolID) *heldCall {
	t.Helper()
	h := &heldCall{folder: t.TempDir(), done: make(chan error, 1)}
	go func() {
		_, err := c.Call(t.Context(), id, map[string]any{"folder": h.folder})
		h.done <- err
	}()
	meshtest.Until(t, "the call runs", func() bool {
		_, err := os.Stat(filepath.Join(h.folder, "started"))
		return err == nil
	})
	return h
}

// release lets the call end and returns its error.
func (h *heldCall) release(t *testing.T) error {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.folder, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return <-h.done
}

func TestAgentServesAgainFromItsFolder(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	dir := t.TempDir()
	one := startIn(t, s, "one", dir)
	nc := s.Connect(t)
	repo := filepath.Join(t.TempDir(), "idx")
	files := revisionTools(1)
	files["tools.toml"] += "init = [\"python\", \"-c\", \"open('init-ran', 'a').write('x')\"]\n"
	files["t.py"] += "\ndef init_ran() -> str:\n    return open('init-ran').read()\n"
	files["tools.toml"] = strings.Replace(files["tools.toml"], "tools = [", "tools = [\"t.init_ran\", ", 1)
	testmesh.Commit(t, repo, files)
	install(t, nc, map[string]any{"source": "file://" + repo})
	c := newClient(t, nc, nil)
	for range 2 {
		meshtest.End(t, one)
		if left := processesOf(t, dir); len(left) > 0 {
			t.Fatalf("processes are left after Stop: %v", left)
		}
		if err := os.RemoveAll(repo); err != nil {
			t.Fatal(err)
		}
		one = startIn(t, s, "one", dir, onlyPython(t))
		if err := one.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r, err := c.Call(t.Context(), "idx.t.fast", nil); err != nil || string(r.Value) != "1" {
			t.Fatalf("after the restart: %v %v", r, err)
		}
		if r, err := c.Call(t.Context(), "idx.t.init_ran", nil); err != nil || string(r.Value) != `"x"` {
			t.Errorf("the init command ran %v times (%v)", r, err)
		}
	}
	// An agent with nothing but the broker serves it too.
	two := startIn(t, s, "two", t.TempDir(), onlyPython(t))
	if err := two.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop(t, one)
	if r, err := c.Call(t.Context(), "idx.t.init_ran", nil); err != nil || string(r.Value) != `"x"` || r.Node != "two" {
		t.Errorf("on the second agent: %v %v", r, err)
	}
}

// onlyPython is a PATH where Python is and git is not.
func onlyPython(t *testing.T) func(*agent.Options) {
	t.Helper()
	out, err := exec.Command("python3", "-c", "import os, sys; print(os.path.realpath(sys.executable))").Output()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(strings.TrimSpace(string(out)), filepath.Join(bin, "python3")); err != nil {
		t.Fatal(err)
	}
	return func(o *agent.Options) {
		env := slices.DeleteFunc(slices.Clone(o.Environ), func(v string) bool { return strings.HasPrefix(v, "PATH=") })
		o.Environ = append(env, "PATH="+bin)
	}
}

// servedBy lists the nodes that serve a tool.
func servedBy(t *testing.T, c *client.Client, id subjects.ToolID) []subjects.NodeID {
	t.Helper()
	tools, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools {
		if tool.ID == id {
			return tool.Nodes
		}
	}
	return nil
}
