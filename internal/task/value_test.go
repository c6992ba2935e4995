package task_test

import (
	"context"
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/task"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// large is a key that fits into no message, and neither does the tool's result for it.
func large(name string) string { return name + strings.Repeat("x", 1500<<10) }

// A large task is the same one when it is submitted again, can be waited for more than
// once, and leaves nothing.
func TestLargeTasksAgain(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	s := runs(t, broker.Connect(t), 0)
	nc := broker.Connect(t)
	c := calls(t, nc, "")
	for range 2 {
		handle := submit(t, c, "jobs.echo", large("a"), &client.SubmitOptions{ID: "large"})
		for range 2 {
			succeeds(t, handle, "did "+large("a"))
		}
	}
	if n := d.count(large("a")); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
	if _, err := c.Submit(t.Context(), "jobs.echo", job{large("b")}, &client.SubmitOptions{ID: "large"}); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("another large task under its id: %v", err)
	}
	info, err := c.Task("large").Show(t.Context())
	if err != nil || info.ResultSize < 1500<<10 || info.Result != nil || info.Ref != "" {
		t.Errorf("shown: %d bytes of a result of %d, at %q: %v", len(info.Result), info.ResultSize, info.Ref, err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	names := func() int {
		t.Helper()
		stream, err := js.Stream(t.Context(), "OBJ_MESH_TASKVALUES")
		if err != nil {
			t.Fatal(err)
		}
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(">"))
		if err != nil {
			t.Fatal(err)
		}
		return len(info.State.Subjects)
	}
	if err := s.SweepValues(t.Context()); err != nil || names() != 2 {
		t.Errorf("%d values of a task with two: %v", names(), err)
	}
	kv, err := js.KeyValue(t.Context(), "MESH_TASKSTATE")
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(context.Background(), "default.large"); err != nil { // as its ttl does
		t.Fatal(err)
	}
	if err := s.SweepValues(t.Context()); err != nil || names() != 0 {
		t.Errorf("%d values of no task: %v", names(), err)
	}
}

// Results that a session has put out for reading, again and again, leave others their part of the store.
func TestResultsByReferenceAreShared(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	created(t, broker, "greedy", "other")
	newDesk().serve(t, broker.Connect(t), host.Options{})
	runs(t, broker.Connect(t), 0)
	nc := broker.Connect(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "OBJ_MESH_PAYLOADS")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxBytes = 16 << 20
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	succeeds(t, submit(t, calls(t, nc, "greedy"), "jobs.echo", large("a"), &client.SubmitOptions{ID: "large"}), "did "+large("a"))
	for {
		m, err := nc.Request("mesh.task.greedy.wait", []byte(`{"id":"large","accept_ref":true}`), waitTimeout)
		if err != nil {
			t.Fatal(err)
		}
		if e := codec.ParseReply(codec.Header(m.Header), m.Data).Err; e != nil {
			if e.Code != toolmesh.CodeBusy || e.Details["limit"] != "payloads_share" {
				t.Errorf("one more: %+v", e)
			}
			break
		}
	}
	succeeds(t, submit(t, calls(t, nc, "other"), "jobs.echo", large("b"), nil), "did "+large("b"))
}

// References that are none, or another session's, are refused where they enter.
func TestBadReferencesOfTasks(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	runs(t, broker.Connect(t), 0)
	nc := broker.Connect(t)
	const digest = "SHA-256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0="
	for name, c := range map[string]struct {
		body string
		code toolmesh.Code
	}{
		"gone":            {`{"tool":"jobs.echo","ref":"default.none","digest":"` + digest + `"}`, toolmesh.CodeInvalidRequest},
		"another session": {`{"tool":"jobs.echo","ref":"other.none","digest":"` + digest + `"}`, toolmesh.CodePermissionDenied},
		"no digest":       {`{"tool":"jobs.echo","ref":"default.none"}`, toolmesh.CodeInvalidRequest},
		"and arguments":   {`{"tool":"jobs.echo","args":{},"ref":"default.none","digest":"` + digest + `"}`, toolmesh.CodeInvalidRequest},
	} {
		m, err := nc.Request("mesh.task.default.submit", []byte(c.body), waitTimeout)
		if err != nil {
			t.Fatal(err)
		}
		if r := codec.ParseReply(codec.Header(m.Header), m.Data); r.Err == nil || r.Err.Code != c.code || r.Err.Started != toolmesh.StartedNo {
			t.Errorf("%s: %s", name, m.Data)
		}
	}
}

// Missing parts of a value, as from a lagging replica, are waited for; a complete value with
// another digest fails at once.
func TestValuesThatComeLate(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	newDesk().serve(t, broker.Connect(t), host.Options{})
	nc := broker.Connect(t)
	service := runs(t, nc, 0)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	store := func(task, part string) {
		t.Helper()
		if _, err := js.Publish(t.Context(), "$O.MESH_TASKVALUES.C.default."+task+".13.x", []byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	for task, digest := range map[subjects.RPCID]string{"late": codec.DigestText(sum(`{"key":"late"}`)), "altered": codec.DigestText(sum("another"))} {
		put(t, nc, task, map[string]any{"args": nil, "large_args": map[string]any{"id": "default." + task + ".13.x", "digest": digest, "size": 14, "parts": 2}})
		store(string(task), `{"key":`)
	}
	if err := service.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := calls(t, broker.Connect(t), "")
	becomes(t, c.Task("late"), codec.TaskRunning)
	store("late", `"late"}`)
	store("altered", `"altered"}`)
	succeeds(t, c.Task("late"), "did late")
	if _, err := c.Task("altered").Wait(within(t)); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("a value that was altered: %v", err)
	}
}

func sum(text string) []byte {
	all := sha256.Sum256([]byte(text))
	return all[:]
}

// A long call holds none of its arguments in the runner: another large payload is accepted
// meanwhile, where one fits.
func TestALongTaskHoldsNoArguments(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	runsWith(t, broker.Connect(t), task.Options{}, func(s *task.Service) { s.SetHeld(2 << 20) })
	long := submit(t, calls(t, broker.Connect(t), ""), "jobs.wait", large("long"), nil)
	d.starts(t, large("long"))
	other, err := calls(t, broker.Connect(t), "other").Submit(within(t), "jobs.wait", job{large("other")}, nil)
	if err != nil {
		t.Fatalf("another large task beside one that runs: %v", err)
	}
	d.starts(t, large("other"))
	for name, one := range map[string]*client.Task{"long": long, "other": other} {
		close(d.gate(large(name)))
		succeeds(t, one, "waited "+large(name))
	}
}
