package task_test

import (
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// Tasks run, are cancelled and scheduled, carry values over the broker's limit, also in an
// attempt that is not the first, and tell how far they are, in any topology and by any key.
func TestTasksInEveryTopology(t *testing.T) {
	t.Parallel()
	meshtest.Conversations(t, func(t *testing.T, top *meshtest.Topology) {
		d := newDesk()
		d.serve(t, top.Serve(t), host.Options{})
		runner := runs(t, top.ServeOn(t, 1), 0)
		c := calls(t, top.Call(t), top.Session)
		d.fails["second"] = 1
		for _, key := range []string{"first", "second"} {
			succeeds(t, submit(t, c, "jobs.echo", key, nil), "did "+key)
		}
		if n := d.count("second"); n != 2 {
			t.Errorf("the tool that failed once ran %d times", n)
		}
		all, err := c.Tasks(t.Context(), codec.TaskSucceeded)
		if err != nil || len(all) != 2 || all[1].Attempts != 2 {
			t.Fatalf("tasks: %+v %v", all, err)
		}
		waiting := submit(t, c, "jobs.wait", "held", nil)
		d.starts(t, "held")
		if info, err := waiting.Cancel(t.Context()); err != nil || info.State != codec.TaskCancelled {
			t.Fatalf("cancel: %+v %v", info, err)
		}
		if cause := <-d.ended; toolmesh.CodeOf(cause) != toolmesh.CodeCancelled {
			t.Errorf("the call ended with %v", cause)
		}
		if _, err := waiting.Wait(t.Context()); toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
			t.Errorf("wait for a cancelled task: %v", err)
		}
		later := submit(t, c, "jobs.echo", "later", &client.SubmitOptions{In: 1})
		succeeds(t, later, "did later")

		d.fails[large("twice")] = 1
		for _, name := range []string{"once", "twice"} {
			succeeds(t, submit(t, c, "jobs.echo", large(name), nil), "did "+large(name))
		}
		if n := d.count(large("twice")); n != 2 {
			t.Errorf("the tool that failed once ran %d times", n)
		}
		d.progress(t, top, c, runner)
	})
}
