package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// keptTools is an index with one slot; its tools return the time of their execution.
func keptTools(revision int) map[string]string {
	return map[string]string{
		"tools.toml": `[index]
tools = ["t.stamp", "t.common", "t.slow", "t.fails", "t.items", "t.held", "t.listed"]
concurrency = 1
[[index.env]]
name = "REGION"
[tool."t.stamp"]
cache_ttl = "1h"
[tool."t.common"]
cache_ttl = "1h"
cache_shared = true
[tool."t.slow"]
cache_ttl = "1h"
[tool."t.fails"]
cache_ttl = "1h"
[tool."t.items"]
cache_ttl = "1h"
`,
		"t.py": fmt.Sprintf(`import itertools, os, time

runs = itertools.count(1)

def stamp(city: str, days: int = 1) -> str:
    return f"%[1]d {os.environ.get('REGION')} {city} {next(runs)} {time.time_ns()}"

def common(city: str) -> str:
    return stamp(city)

def slow(folder: str) -> int:
    open(os.path.join(folder, "ran"), "a").write("x")
    open(os.path.join(folder, "started"), "w").close()
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)
    return os.path.getsize(os.path.join(folder, "ran"))

def fails(folder: str) -> None:
    open(os.path.join(folder, "failed"), "a").write("x")
    raise ValueError(os.path.getsize(os.path.join(folder, "failed")))

def held(folder: str) -> int:
    open(os.path.join(folder, "started"), "w").close()
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)
    return 1

def items(n: int):
    yield from range(n)

def listed(n: int):
    yield from range(n)
`, revision),
	}
}

// Results of Python tools are cached: a cached result needs no worker, and a new revision begins
// with an empty cache.
func TestPythonToolsKeepResults(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	dir := filepath.Join(t.TempDir(), "idx")
	commit(t, dir, keptTools(1))
	body := map[string]any{"source": "file://" + dir, "env": map[string]string{"REGION": "eu"}}
	last := install(t, nc, body)
	c := newClient(t, nc, nil)
	beats, err := nc.SubscribeSync("mesh.hb.one")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(id subjects.ToolID, args any, use string, opts ...client.CallOption) string {
		t.Helper()
		r, err := c.Call(t.Context(), id, args, opts...)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		if r.Cache != use {
			t.Errorf("%s %v is a %q, want %q", id, args, r.Cache, use)
		}
		return string(r.Value)
	}
	oslo := map[string]any{"city": "Oslo", "days": 2}

	// A generator cannot be cached: it is not served, and the answer has the reason.
	if text := fmt.Sprint(last["unavailable"]); !strings.Contains(text, "idx.t.items") || !strings.Contains(text, "cache_ttl") || strings.Contains(text, "listed") {
		t.Errorf("unavailable are %s", text)
	}
	first := ask("idx.t.stamp", oslo, "miss")
	if got := ask("idx.t.stamp", []byte(`{"days":2, "city":"Oslo"}`), "hit"); got != first {
		t.Errorf("%s, want %s", got, first)
	}
	ask("idx.t.stamp", map[string]any{"city": "Oslo"}, "miss")
	fresh := ask("idx.t.stamp", oslo, "bypass", client.NoCache())
	if got := ask("idx.t.stamp", oslo, "hit"); got != fresh || got == first {
		t.Errorf("after a call that asked for a run: %s, want %s", got, fresh)
	}

	// So have the calls of a batch.
	batch, err := c.Batch(t.Context(), []client.BatchCall{{Tool: "idx.t.stamp", Args: oslo}, {Tool: "idx.t.stamp", Args: oslo}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range batch {
		if r.Err != nil || string(r.Value) != fresh {
			t.Errorf("in a batch: %s %v, want %s", r.Value, r.Err, fresh)
		}
	}

	// Of another session, unless it is common.
	if got := ask("idx.t.stamp", oslo, "miss", client.WithSession("other")); got == fresh {
		t.Errorf("another session has %s", got)
	}
	common := ask("idx.t.common", map[string]any{"city": "Oslo"}, "miss")
	if got := ask("idx.t.common", map[string]any{"city": "Oslo"}, "hit", client.WithSession("other")); got != common {
		t.Errorf("another session has %s of what is common", got)
	}

	// The only slot of the index is taken: a cached result is returned all the same.
	folder := t.TempDir()
	var running sync.WaitGroup
	running.Go(func() {
		if _, err := c.Call(context.WithoutCancel(t.Context()), "idx.t.held", map[string]any{"folder": folder}); err != nil {
			t.Errorf("held: %v", err)
		}
	})
	meshtest.Until(t, "the worker is busy", func() bool { return exists(filepath.Join(folder, "started")) })
	ask("idx.t.stamp", oslo, "hit")
	touch(t, filepath.Join(folder, "go"))
	running.Wait()

	// Errors are not kept.
	for n := 1; n <= 2; n++ {
		if _, err := c.Call(t.Context(), "idx.t.fails", map[string]any{"folder": folder}); err == nil || !strings.Contains(err.Error(), fmt.Sprint(n)) {
			t.Errorf("failure %d: %v", n, err)
		}
	}

	// Equal calls at once: one run, also where the one that began it gives up.
	folder = t.TempDir()
	giveUp, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	callers.Go(func() {
		if _, err := c.Call(giveUp, "idx.t.slow", map[string]any{"folder": folder}); err == nil {
			t.Error("a call that was cancelled has a result")
		}
	})
	meshtest.Until(t, "the tool runs", func() bool { return exists(filepath.Join(folder, "started")) })
	for range 10 {
		callers.Go(func() {
			r, err := c.Call(t.Context(), "idx.t.slow", map[string]any{"folder": folder})
			if err != nil || string(r.Value) != "1" || r.Cache != "hit" {
				t.Errorf("one of several: %+v %v", r, err)
			}
		})
	}
	inFlight(t, beats, 11)
	cancel()
	inFlight(t, beats, 10)
	touch(t, filepath.Join(folder, "go"))
	callers.Wait()

	// Another variable, another revision: other tools.
	body["env"] = map[string]string{"REGION": "us"}
	install(t, nc, body)
	if got := ask("idx.t.stamp", oslo, "miss"); !strings.HasPrefix(got, `"1 us `) {
		t.Errorf("with another variable: %s", got)
	}
	commit(t, dir, keptTools(2))
	install(t, nc, body)
	if got := ask("idx.t.stamp", oslo, "miss"); !strings.HasPrefix(got, `"2 us `) {
		t.Errorf("of another revision: %s", got)
	}
}

// inFlight waits until a node says that it runs so many calls.
func inFlight(t *testing.T, beats *nats.Subscription, want int) {
	t.Helper()
	meshtest.Until(t, fmt.Sprint(want, " calls run"), func() bool {
		m, err := beats.NextMsg(10 * time.Second)
		var beat struct {
			InFlight int `json:"in_flight"`
		}
		return err == nil && json.Unmarshal(m.Data, &beat) == nil && beat.InFlight == want
	})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}
