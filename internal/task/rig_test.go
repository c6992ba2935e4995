package task_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/task"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// waitTimeout bounds every wait for a signal: long, because machines are busy.
const waitTimeout = 90 * time.Second

// desk has the tools of a test, and records their calls.
type desk struct {
	mu    sync.Mutex
	runs  map[string]int // of each key
	order []string       // in which they began
	fails map[string]int // how often a key fails yet
	began chan string
	open  map[string]chan struct{}
	says  chan string // reports of calls of the tool "wait"
	ended chan error  // causes of contexts that ended first
}

func newDesk() *desk {
	return &desk{
		runs: make(map[string]int), fails: make(map[string]int), began: make(chan string, 1<<15),
		open: make(map[string]chan struct{}), ended: make(chan error, 1<<10), says: make(chan string),
	}
}

// firstTasks is the number of a session's tasks that always run at once.
const firstTasks = 8

type job struct {
	Key string `json:"key"`
}

func (d *desk) begin(key string) (fail bool) {
	d.mu.Lock()
	d.runs[key]++
	d.order = append(d.order, key)
	if fail = d.fails[key] > 0; fail {
		d.fails[key]--
	}
	d.mu.Unlock()
	d.began <- key
	return fail
}

func (d *desk) count(key string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.runs[key]
}

// gate is the channel for which calls of the tool "wait" with a key wait.
func (d *desk) gate(key string) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open[key] == nil {
		d.open[key] = make(chan struct{})
	}
	return d.open[key]
}

func (d *desk) echo(_ context.Context, j job) (string, error) {
	if d.begin(j.Key) {
		return "", toolmesh.Errorf(toolmesh.CodeToolError, "not now")
	}
	return "did " + j.Key, nil
}

func (d *desk) wait(ctx context.Context, j job) (string, error) {
	fails := d.begin(j.Key)
	for {
		select {
		case text := <-d.says:
			host.Progress(ctx, 0.25, text)
		case <-d.gate(j.Key):
			if fails {
				return "", toolmesh.Errorf(toolmesh.CodeToolError, "not now")
			}
			return "waited " + j.Key, nil
		case <-ctx.Done():
			d.ended <- context.Cause(ctx)
			return "", ctx.Err()
		}
	}
}

// starts waits until a call with a key begins.
func (d *desk) starts(t testing.TB, key string) {
	t.Helper()
	deadline := time.After(waitTimeout)
	for {
		select {
		case got := <-d.began:
			if got == key {
				return
			}
		case <-deadline:
			t.Fatalf("%s has not begun", key)
		}
	}
}

// serve has a node serve the desk's tools as jobs.echo and jobs.wait.
func (d *desk) serve(t testing.TB, nc *nats.Conn, options host.Options) *host.Host {
	t.Helper()
	options.Index = "jobs"
	h := testmesh.Host(t, nc, &options)
	for name, f := range map[string]host.Handler{"echo": host.Func(d.echo), "wait": host.Func(d.wait)} {
		if _, err := h.Handle(name, f); err != nil {
			t.Fatal(err)
		}
	}
	testmesh.Start(t, h)
	return h
}

// runs has a member of the mesh run tasks, as agents do; 0 slots are the default.
func runs(t testing.TB, nc *nats.Conn, slots int) *task.Service {
	t.Helper()
	return runsWith(t, nc, task.Options{}, func(s *task.Service) {
		if slots > 0 {
			s.SetSlots(slots)
		}
	})
}

func runsWith(t testing.TB, nc *nats.Conn, options task.Options, changes ...func(*task.Service)) *task.Service {
	t.Helper()
	b := testmesh.Bus(t, nc, nil)
	if err := store.Of(b).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	view := testmesh.View(t, b, nil)
	t.Cleanup(view.Close)
	if options.Sessions == nil {
		options.Sessions = &registry.Sessions{}
	}
	options.Sessions.Use(view)
	store := testmesh.Store(t, b)
	responder, err := registry.NewResponder(b, view, store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(responder.Close)
	c, err := client.NewOn(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if options.Logger == nil {
		options.Logger = meshtest.CaptureLogs(t).Logger
	}
	s := task.New(b, store, c, &options)
	for _, change := range changes {
		change(s)
	}
	testmesh.Start(t, s)
	t.Cleanup(func() { s.Stop(context.Background()) })
	return s
}

// created makes sessions, before anything runs.
func created(t testing.TB, broker *meshtest.Server, sessions ...subjects.SessionID) {
	t.Helper()
	b := testmesh.Bus(t, broker.Connect(t), nil)
	if err := store.Of(b).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, id := range sessions {
		if err := testmesh.Store(t, b).CreateSession(t.Context(), registry.SessionRecord{ID: id, Epoch: string(id) + "-1"}); err != nil {
			t.Fatal(err)
		}
	}
}

// calls makes a caller of a session; empty for the default one.
func calls(t testing.TB, nc *nats.Conn, session subjects.SessionID) *client.Client {
	t.Helper()
	c := testmesh.Client(t, nc, &client.Options{Session: session})
	return c
}

func submit(t testing.TB, c *client.Client, tool subjects.ToolID, key string, options *client.SubmitOptions) *client.Task {
	t.Helper()
	handle, err := c.Submit(t.Context(), tool, job{key}, options)
	if err != nil {
		t.Fatalf("submit %s: %v", key, err)
	}
	return handle
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	t.Cleanup(cancel)
	return ctx
}

// succeeds waits for a task's result.
func succeeds(t testing.TB, handle *client.Task, want string) {
	t.Helper()
	r, err := handle.Wait(within(t))
	if err != nil {
		t.Fatalf("task %s: %v", handle.ID(), err)
	}
	var got string
	if err := json.Unmarshal(r.Value, &got); err != nil || got != want {
		t.Fatalf("task %s: got %s, want %q", handle.ID(), r.Value, want)
	}
}

// becomes waits until a task has a state.
func becomes(t testing.TB, handle *client.Task, state codec.TaskState) *client.TaskInfo {
	t.Helper()
	var info *client.TaskInfo
	meshtest.Until(t, string(handle.ID())+" is "+string(state), func() bool {
		var err error
		info, err = handle.Show(t.Context())
		return err == nil && info.State == state
	})
	return info
}
