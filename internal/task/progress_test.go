package task_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/task"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
)

// reports has a task's call tell how far it is, and waits until that is shown.
func (d *desk) reports(t *testing.T, handle *client.Task, text string) {
	t.Helper()
	select {
	case d.says <- text + "\nand more":
	case <-time.After(waitTimeout):
		t.Fatal("no call runs")
	}
	want := &codec.Progress{Fraction: new(0.25), Text: text}
	meshtest.Until(t, text+" is shown", func() bool {
		info, err := handle.Show(t.Context())
		return err == nil && cmp.Equal(info.Progress, want)
	})
}

// progress shows that every caller sees how far a task is, whichever runner has it, and that
// this is over once the task has succeeded.
func (d *desk) progress(t *testing.T, top *meshtest.Topology, c *client.Client, first *task.Service) {
	t.Helper()
	handle := submit(t, c, "jobs.wait", "x", nil)
	d.reports(t, handle, "wärms up")
	runs(t, top.Serve(t), 0)
	first.Stop(t.Context())
	d.reports(t, handle, "half of it")
	all, err := c.Tasks(t.Context(), codec.TaskRunning)
	if err != nil || len(all) != 1 || all[0].Progress == nil || all[0].Progress.Text != "half of it" {
		t.Errorf("listed: %+v, %v", all, err)
	}
	close(d.gate("x"))
	succeeds(t, handle, "waited x")
	if info, err := handle.Show(t.Context()); err != nil || info.Progress != nil {
		t.Errorf("when it has ended: %+v, %v", info, err)
	}
	if n := d.count("x"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// The runner may be in the process that serves the tool.
func TestProgressInTheRunnersOwnProcess(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	r, err := router.New(broker.Connect(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meshtest.End(t, r) })
	testmesh.Start(t, r)
	session, err := r.CreateSession(t.Context(), &router.SessionOptions{ID: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Handle("wait", host.Func(d.wait)); err != nil {
		t.Fatal(err)
	}
	handle := submit(t, session.Client(), "wait", "here", nil)
	d.reports(t, handle, "half of it")
	close(d.gate("here"))
	succeeds(t, handle, "waited here")
}
