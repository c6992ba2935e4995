package task_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/task"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

// rig is one broker with a node, a runner and a caller.
func rig(t *testing.T, slots int) (d *desk, c *client.Client, broker *meshtest.Server) {
	t.Helper()
	broker, d = meshtest.Broker(t), newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	runs(t, broker.Connect(t), slots)
	return d, calls(t, broker.Connect(t), ""), broker
}

func TestTheSameTaskTwice(t *testing.T) {
	t.Parallel()
	d, c, _ := rig(t, 0)
	options := &client.SubmitOptions{ID: "mine"}
	for range 3 {
		succeeds(t, submit(t, c, "jobs.echo", "x", options), "did x")
	}
	if n := d.count("x"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
	if _, err := c.Submit(t.Context(), "jobs.echo", job{"y"}, options); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("another task under the id: %v", err)
	}
}

// A submission under the id of another task names the difference. A schedule is changed, an ended
// one begins again.
func TestSubmissionsUnderOneID(t *testing.T) {
	t.Parallel()
	d, c, _ := rig(t, 0)
	first := client.SubmitOptions{ID: "mine", Every: time.Hour, Attempts: 2, Priority: 1, TTL: time.Hour, Timeout: time.Minute, Key: "k"}
	handle := submit(t, c, "jobs.echo", "x", &first)
	submit(t, c, "jobs.echo", "x", &first)
	for field, change := range map[string]func(o *client.SubmitOptions){
		"attempts": func(o *client.SubmitOptions) { o.Attempts = 3 }, "priority": func(o *client.SubmitOptions) { o.Priority = 0 },
		"ttl_ms": func(o *client.SubmitOptions) { o.TTL = 2 * time.Hour }, "timeout_ms": func(o *client.SubmitOptions) { o.Timeout = time.Hour },
		"key": func(o *client.SubmitOptions) { o.Key = "other" }, "every_ms": func(o *client.SubmitOptions) { o.Every = 0 },
	} {
		other := first
		change(&other)
		if _, err := c.Submit(t.Context(), "jobs.echo", job{"x"}, &other); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), field) {
			t.Errorf("another %s: %v", field, err)
		}
	}
	if _, err := c.Submit(t.Context(), "jobs.echo", job{"y"}, &first); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "args") {
		t.Errorf("other arguments: %v", err)
	}
	changed := first
	changed.Every = 0
	changed.Cron = "0 0 30 2 *"
	if _, err := c.Submit(t.Context(), "jobs.echo", job{"x"}, &changed); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("a schedule that never fires: %v", err)
	}
	if info, err := handle.Show(t.Context()); err != nil || info.EveryMS != time.Hour.Milliseconds() || info.Cron != "" {
		t.Errorf("the schedule that was there: %+v, %v", info, err)
	}
	changed.Cron = "* * * * * *"
	submit(t, c, "jobs.echo", "x", &changed)
	d.starts(t, "x") // it is every second now
	if info, err := handle.Cancel(t.Context()); err != nil || info.EveryMS != 0 || info.Cron == "" {
		t.Errorf("the changed schedule: %+v, %v", info, err)
	}
	submit(t, c, "jobs.echo", "x", &changed)
	becomes(t, handle, codec.TaskScheduled)
	if _, err := handle.Cancel(t.Context()); err != nil {
		t.Fatal(err)
	}
	once := client.SubmitOptions{ID: "once", In: time.Second}
	succeeds(t, submit(t, c, "jobs.echo", "once", &once), "did once")
	submit(t, c, "jobs.echo", "once", &once) // a repetition
	if n := d.count("once"); n != 1 {
		t.Errorf("a task that was submitted twice ran %d times", n)
	}
	once.In = 2 * time.Second
	succeeds(t, submit(t, c, "jobs.echo", "once", &once), "did once")
	meshtest.Until(t, "it ran at its new time", func() bool { return d.count("once") == 2 })
}

func TestSubmitterIsGone(t *testing.T) {
	t.Parallel()
	d, c, broker := rig(t, 0)
	nc := broker.Connect(t)
	handle := submit(t, calls(t, nc, ""), "jobs.wait", "x", nil)
	nc.Close()
	d.starts(t, "x")
	close(d.gate("x"))
	succeeds(t, c.Task(handle.ID()), "waited x")
}

func TestDeadLettersAreTriedAgain(t *testing.T) {
	t.Parallel()
	d, c, _ := rig(t, 0)
	d.fails["x"] = 2
	handle := submit(t, c, "jobs.echo", "x", &client.SubmitOptions{Attempts: 2})
	_, err := handle.Wait(within(t))
	if toolmesh.CodeOf(err) != toolmesh.CodeToolError {
		t.Fatalf("the task ended with %v", err)
	}
	dead, err := c.Tasks(t.Context(), codec.TaskFailed)
	if err != nil || len(dead) != 1 || dead[0].ID != handle.ID() || dead[0].Attempts != 2 {
		t.Fatalf("dead letters: %+v %v", dead, err)
	}
	if _, err := handle.Retry(t.Context()); err != nil {
		t.Fatal(err)
	}
	succeeds(t, handle, "did x")
	if n := d.count("x"); n != 3 {
		t.Errorf("the tool ran %d times", n)
	}
	if _, err := handle.Retry(t.Context()); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("a task that succeeded, tried again: %v", err)
	}
}

func TestTasksThatCannotSucceedFailAtOnce(t *testing.T) {
	t.Parallel()
	d, c, _ := rig(t, 0)
	handle, err := c.Submit(t.Context(), "jobs.echo", map[string]any{"none": 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := handle.Wait(within(t)); toolmesh.CodeOf(err) != toolmesh.CodeInvalidArguments {
		t.Errorf("arguments that do not fit: %v", err)
	}
	if info := becomes(t, handle, codec.TaskFailed); info.Attempts != 1 {
		t.Errorf("%d attempts", info.Attempts)
	}
	gone := submit(t, c, "jobs.gone", "x", nil)
	if _, err := gone.Wait(within(t)); toolmesh.CodeOf(err) != toolmesh.CodeToolNotFound {
		t.Errorf("a tool that is gone: %v", err)
	}
	if info := becomes(t, gone, codec.TaskFailed); info.Attempts != 3 {
		t.Errorf("a tool that is gone: %d attempts", info.Attempts)
	}
	if n := d.count("x"); n != 0 {
		t.Errorf("%d runs", n)
	}
}

func TestQueuedTaskIsCancelled(t *testing.T) {
	t.Parallel()
	d, c, _ := rig(t, 1)
	var all []*client.Task
	for range firstTasks {
		all = append(all, submit(t, c, "jobs.wait", "x", nil))
		d.starts(t, "x")
	}
	// The runner may have asked for one task of the next level while its slot was free. This one
	// begins then, and is queued otherwise. All that are submitted after it are queued.
	all = append(all, submit(t, c, "jobs.wait", "x", nil))
	queued := submit(t, c, "jobs.echo", "queued", nil)
	if info, err := queued.Cancel(t.Context()); err != nil || info.State != codec.TaskCancelled {
		t.Fatalf("cancel: %+v %v", info, err)
	}
	next := submit(t, c, "jobs.echo", "next", nil)
	close(d.gate("x"))
	for _, handle := range append(all, next) {
		if _, err := handle.Wait(within(t)); err != nil {
			t.Error(err)
		}
	}
	if n := d.count("queued"); n != 0 {
		t.Errorf("a task that was cancelled before it began ran %d times", n)
	}
}

func TestResultsHaveATTL(t *testing.T) {
	t.Parallel()
	_, c, _ := rig(t, 0)
	handle := submit(t, c, "jobs.echo", "x", &client.SubmitOptions{TTL: time.Second})
	succeeds(t, handle, "did x")
	meshtest.Until(t, "the result is forgotten", func() bool {
		_, err := handle.Show(t.Context())
		return toolmesh.CodeOf(err) == toolmesh.CodeNotFound
	})
}

func TestTaskWithoutANodeInItsTime(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	first := d.serve(t, broker.Connect(t), host.Options{Slots: 1})
	runs(t, broker.Connect(t), 0)
	c := calls(t, broker.Connect(t), "")
	submit(t, c, "jobs.wait", "busy", nil)
	d.starts(t, "busy")
	late := submit(t, c, "jobs.echo", "late", &client.SubmitOptions{TTL: time.Second})
	if _, err := late.Wait(within(t)); toolmesh.CodeOf(err) != toolmesh.CodeDeadlineExceeded && toolmesh.CodeOf(err) != toolmesh.CodeNotFound {
		t.Errorf("the task ended with %v", err)
	}
	if n := d.count("late"); n != 0 {
		t.Errorf("it ran %d times", n)
	}
	close(d.gate("busy"))
	_ = first
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	d, c, s := rig(t, 0)
	for _, bad := range []client.SubmitOptions{
		{Cron: "0 0 30 2 *"}, {Cron: "every monday"}, {Cron: "61 * * * *"}, {Every: time.Millisecond}, {Cron: "* * * * *", In: time.Second},
	} {
		if _, err := c.Submit(t.Context(), "jobs.echo", job{"x"}, &bad); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	all, err := c.Tasks(t.Context(), "")
	if err != nil || len(all) != 0 {
		t.Errorf("what was refused has left %+v %v", all, err)
	}
	for i, options := range []client.SubmitOptions{{Every: time.Second}, {Cron: "* * * * * *"}} {
		key := []string{"every", "cron"}[i]
		handle := submit(t, c, "jobs.echo", key, &options)
		d.starts(t, key)
		d.starts(t, key)
		if info := becomes(t, handle, codec.TaskScheduled); info.Attempts != 0 {
			t.Errorf("the schedule itself: %+v", info)
		}
		if _, err := handle.Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
		js, err := jetstream.New(s.Connect(t))
		if err != nil {
			t.Fatal(err)
		}
		stream, err := js.Stream(t.Context(), subjects.StreamSchedules)
		if err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "the schedule is gone", func() bool {
			info, err := stream.Info(t.Context())
			return err == nil && info.State.Msgs == 0
		})
	}
	at := time.Now().Add(1500 * time.Millisecond)
	handle := submit(t, c, "jobs.echo", "at", &client.SubmitOptions{At: at})
	becomes(t, handle, codec.TaskScheduled)
	succeeds(t, handle, "did at")
	if now := time.Now(); now.Before(at) {
		t.Errorf("it ran %v too early", at.Sub(now))
	}
}

func TestTasksEndWithTheirSession(t *testing.T) {
	t.Parallel()
	d, _, s := rig(t, 0)
	r, err := router.New(s.Connect(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meshtest.End(t, r) })
	session, err := r.CreateSession(t.Context(), &router.SessionOptions{ID: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	c := session.Client()
	done := submit(t, c, "jobs.echo", "done", nil)
	succeeds(t, done, "did done")
	running := submit(t, c, "jobs.wait", "running", nil)
	d.starts(t, "running")
	timed := submit(t, c, "jobs.echo", "timed", &client.SubmitOptions{Every: time.Hour})
	if err := session.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.ended:
	case <-time.After(waitTimeout):
		t.Fatal("the call goes on")
	}
	if _, err := r.CreateSession(t.Context(), &router.SessionOptions{ID: "mine"}); err != nil {
		t.Fatal(err)
	}
	for _, handle := range []*client.Task{done, running, timed} {
		meshtest.Until(t, "the task is gone", func() bool {
			_, err := handle.Show(t.Context())
			return toolmesh.CodeOf(err) == toolmesh.CodeNotFound
		})
	}
	b := testmesh.Bus(t, s.Connect(t), nil)
	meshtest.Until(t, "the records are gone", func() bool {
		for m, err := range store.Of(b).Read(t.Context(), store.Query{Stream: "KV_MESH_TASKSTATE", Subject: "$KV.MESH_TASKSTATE.mine.*"}) {
			if err != nil || !store.Gone(m.Header) {
				return false
			}
		}
		return true
	})
}

// A caller reaches the tasks of its own session alone, and no answer goes anywhere but to
// an inbox.
func TestTasksOfAnotherSession(t *testing.T) {
	t.Parallel()
	k := meshtest.WithKeys(t)
	d := newDesk()
	d.serve(t, k.As(t, "node"), host.Options{})
	runs(t, k.As(t, "node"), 0)
	mine := k.AsSession(t, "mine")
	succeeds(t, submit(t, calls(t, mine, "mine"), "jobs.echo", "x", nil), "did x")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := calls(t, mine, "other").Submit(ctx, "jobs.echo", job{"x"}, nil); toolmesh.CodeOf(err) != toolmesh.CodePermissionDenied {
		t.Errorf("a task in another session: %v", err)
	}
	if _, err := calls(t, mine, "other").Tasks(ctx, ""); toolmesh.CodeOf(err) != toolmesh.CodePermissionDenied {
		t.Errorf("the tasks of another session: %v", err)
	}
	admin := k.As(t, "admin")
	spy, err := admin.SubscribeSync("spy")
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.PublishRequest("mesh.task.mine.ls", "spy", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Request("mesh.task.mine.ls", nil, waitTimeout); err != nil { // the one before was looked at
		t.Fatal(err)
	}
	if m, err := spy.NextMsg(time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Errorf("an answer that is no inbox's: %v %v", m, err)
	}
}

func TestFullQueue(t *testing.T) {
	t.Parallel()
	d, c, s := rig(t, 1)
	for _, key := range []string{"a", "b"} {
		submit(t, c, "jobs.wait", key, nil)
	}
	d.starts(t, "b")
	js, err := jetstream.New(s.Connect(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{subjects.StreamTasks, subjects.KVStream(subjects.BucketTaskState)} {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		config := stream.CachedInfo().Config
		before := config.MaxBytes
		info, err := stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		config.MaxBytes = int64(info.State.Bytes) //nolint:gosec // a few
		if _, err := js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		_, err = c.Submit(t.Context(), "jobs.echo", job{"x"}, &client.SubmitOptions{ID: "refused"})
		if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeBusy || e.Started != toolmesh.StartedNo || e.Details["limit"] != "tasks" {
			t.Errorf("%s is full: %v", name, err)
		}
		config.MaxBytes = before
		if _, err := js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	close(d.gate("a"))
	close(d.gate("b"))
	succeeds(t, submit(t, c, "jobs.echo", "x", &client.SubmitOptions{ID: "refused"}), "did x")
}

// The broker's clock ends in 2262: it delivers at once what is due later.
func TestTaskOfTheFarFutureWaits(t *testing.T) {
	t.Parallel()
	d, c, _ := rig(t, 0)
	far := submit(t, c, "jobs.echo", "far", &client.SubmitOptions{At: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)})
	succeeds(t, submit(t, c, "jobs.echo", "near", &client.SubmitOptions{In: time.Second}), "did near")
	state, err := far.Show(t.Context())
	if err != nil || state.State != codec.TaskScheduled || state.Due.After(time.Now().Add(toolmesh.MaxTime+time.Minute)) {
		t.Errorf("%+v %v", state, err)
	}
	if n := d.count("far"); n != 0 {
		t.Errorf("it ran %d times", n)
	}
}

// A session that does not exist has no tasks, and its caller knows that none was made.
func TestTaskOfASessionThatDoesNotExist(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	strict, err := registry.NewSessions("strict")
	if err != nil {
		t.Fatal(err)
	}
	runsWith(t, broker.Connect(t), task.Options{Sessions: strict})
	_, err = calls(t, broker.Connect(t), "none").Submit(t.Context(), "jobs.echo", job{"a"}, nil)
	if e := toolmesh.AsError(err); err == nil || e.Code != toolmesh.CodeSessionNotFound || e.Started != toolmesh.StartedNo {
		t.Errorf("submitted: %+v", e)
	}
}

// An invalid task is refused at its submission, and leaves nothing.
func TestBadSubmissions(t *testing.T) {
	t.Parallel()
	_, c, s := rig(t, 0)
	nc := s.Connect(t)
	for name, body := range map[string]string{
		"no tool": `{}`, "no object": `[]`, "args": `{"tool":"jobs.echo","args":[1]}`, "attempts": `{"tool":"jobs.echo","attempts":101}`,
		"priority": `{"tool":"jobs.echo","priority":2}`, "ttl": `{"tool":"jobs.echo","ttl_ms":1}`, "timeout": `{"tool":"jobs.echo","timeout_ms":-1}`,
		"id": `{"tool":"jobs.echo","id":" x"}`, "long id": `{"tool":"jobs.echo","id":"` + strings.Repeat("x", 300) + `"}`,
		"at": `{"tool":"jobs.echo","at":"tomorrow"}`, "in": `{"tool":"jobs.echo","in_ms":-1}`, "key": `{"tool":"jobs.echo","key":"` + strings.Repeat("k", 600) + `"}`,
		"two times": `{"tool":"jobs.echo","in_ms":1,"cron":"@daily"}`, "tool id": `{"tool":"jobs..echo"}`,
	} {
		m, err := nc.Request("mesh.task.default.submit", []byte(body), waitTimeout)
		if err != nil {
			t.Fatal(err)
		}
		if r := codec.ParseReply(codec.Header(m.Header), m.Data); r.Err == nil || r.Err.Code != toolmesh.CodeInvalidRequest || r.Err.Started != toolmesh.StartedNo {
			t.Errorf("%s: %s", name, m.Data)
		}
	}
	for subject, body := range map[string]string{
		"mesh.task.default.none": "", "mesh.task.default.show": "", "mesh.task.default.wait": "", "mesh.task.default.rm": `{"older_ms":-1}`,
	} {
		m, err := nc.Request(subject, []byte(body), waitTimeout)
		if err != nil {
			t.Fatal(err)
		}
		if r := codec.ParseReply(codec.Header(m.Header), m.Data); r.Err == nil || r.Err.Code != toolmesh.CodeInvalidRequest {
			t.Errorf("%s: %s", subject, m.Data)
		}
	}
	if all, err := c.Tasks(t.Context(), ""); err != nil || len(all) != 0 {
		t.Errorf("what was refused has left %+v %v", all, err)
	}
}
