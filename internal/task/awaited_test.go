package task_test

import (
	"sync/atomic"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/task"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// A task for an index without a node stays queued, without a call or an attempt, is counted for its
// pool, and runs once a node serves the index.
func TestTasksWaitForANode(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, s.Connect(t), host.Options{}) // calls would run, but none is made
	var there atomic.Bool
	runner := runsWith(t, s.Connect(t), task.Options{Await: func(subjects.SessionID, subjects.ToolID) (string, bool) { return "gpu", !there.Load() }})
	c := calls(t, s.Connect(t), "")
	handle := submit(t, c, "jobs.echo", "x", &client.SubmitOptions{Attempts: 1})
	other := submit(t, c, "jobs.echo", "y", &client.SubmitOptions{Attempts: 1})
	meshtest.Until(t, "both are counted, and have waited a while", func() bool {
		all := runner.Awaited()
		return len(all) == 1 && all["gpu"].Tasks == 2 && all["gpu"].Calls == 0 && all["gpu"].OldestMS > 2500
	})
	info, err := handle.Show(t.Context())
	if err != nil || info.State != codec.TaskQueued || info.Attempts != 0 || info.Error == nil || info.Error.Code != toolmesh.CodeUnavailable {
		t.Errorf("a task that waits: %+v, %v", info, err)
	}
	if n := d.count("x"); n != 0 {
		t.Errorf("%d runs", n)
	}
	there.Store(true)
	succeeds(t, handle, "did x")
	succeeds(t, other, "did y")
	if info := becomes(t, handle, codec.TaskSucceeded); info.Attempts != 1 {
		t.Errorf("%d attempts", info.Attempts)
	}
	meshtest.Until(t, "none waits", func() bool { return len(runner.Awaited()) == 0 })
}

// A task for a function of a service whose only node is silent waits for it, without an attempt.
func TestTasksWaitForASilentService(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	proxy := meshtest.NewProxy(t, s)
	t.Cleanup(proxy.Heal)
	newDesk().serve(t, proxy.Connect(t), host.Options{})
	view := testmesh.View(t, testmesh.Bus(t, s.Connect(t), nil), nil)
	t.Cleanup(view.Close)
	runsWith(t, s.Connect(t), task.Options{Await: view.Await})
	c := calls(t, s.Connect(t), "")
	succeeds(t, submit(t, c, "jobs.echo", "x", &client.SubmitOptions{Attempts: 1}), "did x")
	proxy.Blackhole()
	meshtest.Until(t, "the node is silent", func() bool {
		route, _ := view.Route("default", "jobs.echo")
		return len(route.Nodes) == 0
	})
	handle := submit(t, c, "jobs.echo", "y", &client.SubmitOptions{Attempts: 1})
	meshtest.Until(t, "the task waits, or has failed", func() bool {
		info, err := handle.Show(t.Context())
		return err == nil && info.Error != nil
	})
	proxy.Heal()
	succeeds(t, handle, "did y")
}
