package task_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/task"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// One record that cannot be repaired does not end the sweeps of others: a schedule that the
// broker refuses ends as failed, and an unreadable record is skipped.
func TestSweepGoesOnAfterABadRecord(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	newDesk().serve(t, broker.Connect(t), host.Options{})
	nc := broker.Connect(t)
	logs := meshtest.CaptureLogs(t)
	service := runsWith(t, nc, task.Options{Logger: logs.Logger})
	put(t, nc, "never", map[string]any{"state": "scheduled", "cron": "0 0 0 30 2 *"})
	putRaw(t, nc, "unreadable", []byte("{"))
	put(t, nc, "plain", nil)
	for range 3 {
		if err := service.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c := calls(t, broker.Connect(t), "")
	succeeds(t, c.Task("plain"), "did plain")
	if info := becomes(t, c.Task("never"), codec.TaskFailed); info.Error == nil || info.Error.Code != toolmesh.CodeInvalidRequest || info.Error.Started != toolmesh.StartedNo {
		t.Errorf("a schedule that never fires: %+v", info)
	}
	if n := logs.Count("a task cannot be queued"); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
	if all, err := c.Tasks(t.Context(), ""); err != nil || len(all) != 3 {
		t.Errorf("tasks beside a record that cannot be read: %d, %v", len(all), err)
	}
}

// putRaw writes a record that no runner would write.
func putRaw(t testing.TB, nc *nats.Conn, id subjects.RPCID, body []byte) {
	t.Helper()
	b := testmesh.Bus(t, nc, nil)
	key, err := subjects.TaskKey(subjects.DefaultSession, id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Of(b).Create(t.Context(), store.Key{Bucket: subjects.BucketTaskState, Name: key}, body, 0); err != nil {
		t.Fatal(err)
	}
}
