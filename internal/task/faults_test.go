package task_test

import (
	"context"
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// queued is how many messages the queue of tasks has.
func queued(t testing.TB, nc *nats.Conn) uint64 {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subjects.StreamTasks)
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

// A runner dies while the call of its task runs elsewhere: the next one gets that call's
// outcome.
func TestRunnerIsLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		dies  func(nc *nats.Conn, stop func())
		marks codec.TaskState
	}{
		{"killed", func(nc *nats.Conn, _ func()) { nc.Close() }, codec.TaskRunning},
		{"stopped", func(_ *nats.Conn, stop func()) { stop() }, codec.TaskRunning},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			d := newDesk()
			d.serve(t, broker.Connect(t), host.Options{})
			first := broker.Connect(t)
			service := runs(t, first, 0)
			caller := calls(t, broker.Connect(t), "")
			handle := submit(t, caller, "jobs.wait", "x", nil)
			d.starts(t, "x")
			becomes(t, handle, c.marks)
			c.dies(first, func() { service.Stop(context.Background()) })
			runs(t, broker.Connect(t), 0)
			close(d.gate("x"))
			succeeds(t, handle, "waited x")
			if n := d.count("x"); n != 1 {
				t.Errorf("the tool ran %d times", n)
			}
			meshtest.Until(t, "the queue is empty", func() bool { return queued(t, broker.Connect(t)) == 0 })
		})
	}
}

// A task is cancelled while its runner is cut off, so that the runner misses the change: its call ends
// once the runner is back, and nothing runs again.
func TestTaskIsCancelledWhileItsRunnerIsCutOff(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	proxy := meshtest.NewProxy(t, broker)
	runs(t, proxy.Connect(t, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond)), 0)
	handle := submit(t, calls(t, broker.Connect(t), ""), "jobs.wait", "x", nil)
	d.starts(t, "x")
	becomes(t, handle, codec.TaskRunning)
	proxy.Cut(true)
	runs(t, broker.Connect(t), 0)
	if info, err := handle.Cancel(within(t)); err != nil || info.State != codec.TaskCancelled {
		t.Fatalf("cancel: %+v %v", info, err)
	}
	proxy.Heal()
	select {
	case <-d.ended:
	case <-time.After(waitTimeout):
		t.Fatal("the call of a cancelled task goes on")
	}
	meshtest.Until(t, "the queue is empty", func() bool { return queued(t, broker.Connect(t)) == 0 })
	if n := d.count("x"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// Tasks that are queued when their runner dies, or the broker, run all the same.
func TestQueuedTasksOutliveRunnerAndBroker(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	first := broker.Connect(t)
	runs(t, first, 1)
	caller := calls(t, broker.Connect(t), "")
	var handles []*client.Task
	for i := range firstTasks + 4 {
		handles = append(handles, submit(t, caller, "jobs.wait", strconv.Itoa(i), nil))
	}
	meshtest.Until(t, "the first ones run", func() bool {
		for i := range firstTasks {
			if d.count(strconv.Itoa(i)) == 0 {
				return false
			}
		}
		return true
	})
	first.Close()
	broker.Restart(t)
	meshtest.Until(t, "the caller is connected", func() bool {
		_, err := caller.Describe(t.Context(), "jobs.wait")
		return err == nil || toolmesh.CodeOf(err) == toolmesh.CodeUnavailable
	})
	second := broker.Connect(t)
	runs(t, second, 4)
	for i, handle := range handles {
		close(d.gate(strconv.Itoa(i)))
		succeeds(t, handle, "waited "+strconv.Itoa(i))
		if n := d.count(strconv.Itoa(i)); n != 1 {
			t.Errorf("%d ran %d times", i, n)
		}
	}
}

func TestBrokerRestartsWhileATaskRuns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key  string
		most int
	}{
		{"once", 1},
		{"", 2}, // a node that is slower to come back than its caller counts as lost: at least once
	} {
		t.Run("key "+strconv.Quote(c.key), func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			d := newDesk()
			d.serve(t, broker.Connect(t), host.Options{})
			runs(t, broker.Connect(t), 0)
			handle := submit(t, calls(t, broker.Connect(t), ""), "jobs.wait", "x", &client.SubmitOptions{Key: c.key})
			d.starts(t, "x")
			becomes(t, handle, codec.TaskRunning)
			broker.Restart(t)
			close(d.gate("x"))
			succeeds(t, handle, "waited x")
			if n := d.count("x"); n > c.most {
				t.Errorf("the tool ran %d times", n)
			}
		})
	}
}

// put writes a record as a runner that died at once has left it.
func put(t testing.TB, nc *nats.Conn, id subjects.RPCID, fields map[string]any) {
	t.Helper()
	b := testmesh.Bus(t, nc, nil)
	record := map[string]any{
		"id": id, "tool": "jobs.echo", "args": job{string(id)}, "state": "queued", "attempts": 0, "max_attempts": 3,
		"created": time.Now(), "queued": time.Now(), "ttl_ms": 3600_000,
	}
	for k, v := range fields {
		record[k] = v
	}
	body, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	key, err := subjects.TaskKey(subjects.DefaultSession, id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Of(b).Create(t.Context(), store.Key{Bucket: subjects.BucketTaskState, Name: key}, body, 0); err != nil {
		t.Fatal(err)
	}
}

// A task that was submitted and not queued, because its runner died in between, is found by a sweep.
func TestSubmissionsThatWereCutOff(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	nc := broker.Connect(t)
	d.serve(t, broker.Connect(t), host.Options{})
	service := runs(t, nc, 0)
	caller := calls(t, broker.Connect(t), "")
	put(t, nc, "plain", nil)
	put(t, nc, "begun", map[string]any{"state": "running", "attempts": 1, "runner": "another"})
	put(t, nc, "once", map[string]any{"state": "running", "attempts": 1, "runner": "another", "max_attempts": 1})
	put(t, nc, "timed", map[string]any{"state": "scheduled", "due": time.Now().Add(time.Second)})
	if err := service.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range []subjects.RPCID{"plain", "begun", "timed"} {
		succeeds(t, caller.Task(id), "did "+string(id))
	}
	if _, err := caller.Task("once").Wait(within(t)); toolmesh.CodeOf(err) != toolmesh.CodeNodeLost {
		t.Errorf("a task with one attempt that may have begun: %v", err)
	}
	if n := d.count("once"); n != 0 {
		t.Errorf("it ran %d times more", n)
	}
}

// The message of a task that has ended, which its runner could not say any more, runs
// nothing.
func TestEndedTaskIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	nc := broker.Connect(t)
	d.serve(t, broker.Connect(t), host.Options{})
	runs(t, broker.Connect(t), 0)
	handle := submit(t, calls(t, broker.Connect(t), ""), "jobs.echo", "x", nil)
	succeeds(t, handle, "did x")
	subject, err := subjects.Subject{Kind: subjects.KindTask, Verb: "normal", Level: "0", Session: subjects.DefaultSession, RPC: handle.ID()}.Build()
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), subject, nil); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the queue is empty", func() bool { return queued(t, nc) == 0 })
	if n := d.count("x"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// A node dies with the call of a task.
func TestNodeOfATaskIsLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		options client.SubmitOptions
		runs    int
		code    toolmesh.Code
	}{
		{"attempts", client.SubmitOptions{}, 2, ""},
		{"one attempt", client.SubmitOptions{Attempts: 1}, 1, toolmesh.CodeNodeLost},
		{"key", client.SubmitOptions{Key: "pay"}, 1, toolmesh.CodeNodeLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			d := newDesk()
			first := broker.Connect(t)
			d.serve(t, first, host.Options{Node: "first"})
			runs(t, broker.Connect(t), 0)
			handle := submit(t, calls(t, broker.Connect(t), ""), "jobs.wait", "x", &c.options)
			d.starts(t, "x")
			d.serve(t, broker.Connect(t), host.Options{Node: "second"}) // so that an attempt behind the loss finds a node
			first.Close()
			close(d.gate("x"))
			if c.code == "" {
				succeeds(t, handle, "waited x")
			} else if _, err := handle.Wait(within(t)); toolmesh.CodeOf(err) != c.code {
				t.Errorf("the task ended with %v", err)
			}
			if n := d.count("x"); n != c.runs {
				t.Errorf("the tool ran %d times", n)
			}
		})
	}
}

// A long task passes to the runner that gets its message, and from then on that runner owns it;
// the other one leaves the call running.
func TestTaskIsHandedOver(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	first := runs(t, broker.Connect(t), 0)
	c := calls(t, broker.Connect(t), "")
	handle := submit(t, c, "jobs.wait", "x", nil)
	second := runs(t, broker.Connect(t), 0)
	d.starts(t, "x")
	becomes(t, handle, codec.TaskRunning)
	meshtest.Until(t, "one runner has it", func() bool { return first.Running()+second.Running() == 1 })
	js, err := jetstream.New(broker.Connect(t))
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := js.Consumer(t.Context(), subjects.StreamTasks, "normal-0")
	if err != nil {
		t.Fatal(err)
	}
	if info := consumer.CachedInfo(); info.NumRedelivered != 0 || info.NumAckPending != 1 {
		t.Errorf("the message: %d pending, %d delivered again", info.NumAckPending, info.NumRedelivered)
	}
	select {
	case cause := <-d.ended:
		t.Errorf("the call was ended: %v", cause)
	default:
	}
	close(d.gate("x"))
	succeeds(t, handle, "waited x")
	if n := d.count("x"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// The submitter, the runner, the node of the calls and the broker die, each while one task is
// scheduled, one waits for room, one runs, and one is between two attempts.
func TestDeathsInEveryState(t *testing.T) {
	t.Parallel()
	type mesh struct {
		*meshtest.Topology
		desk                 *desk
		caller, runner, node *nats.Conn
	}
	for _, c := range []struct {
		victim string
		most   int // runs of a call that was under way
		dies   func(*testing.T, mesh)
	}{
		{"submitter", 1, func(_ *testing.T, m mesh) { m.caller.Close() }},
		{"runner", 1, func(t *testing.T, m mesh) {
			m.runner.Close()
			runs(t, m.Serve(t), 1)
		}},
		{"node", 2, func(t *testing.T, m mesh) {
			m.node.Close()
			m.desk.serve(t, m.Serve(t), host.Options{Node: "second"})
		}},
		{"broker", 2, func(t *testing.T, m mesh) { m.Brokers[0].Restart(t) }},
	} {
		dies := func(t *testing.T, top *meshtest.Topology) {
			d := newDesk()
			m := mesh{Topology: top, desk: d, caller: top.Call(t), runner: top.Serve(t), node: top.Serve(t)}
			d.serve(t, m.node, host.Options{Node: "first"})
			runs(t, m.runner, 1)
			caller, other := calls(t, m.caller, top.Session), calls(t, top.Call(t), top.Session)

			submit(t, caller, "jobs.echo", "scheduled", &client.SubmitOptions{ID: "scheduled", In: 10 * time.Second})
			const failures = 3 // the next attempt is 2 s away, or more
			d.fails["retried"] = failures
			submit(t, caller, "jobs.echo", "retried", &client.SubmitOptions{ID: "retried", Attempts: failures + 1})
			meshtest.Until(t, "the attempts have failed", func() bool {
				info, err := other.Task("retried").Show(t.Context())
				return err == nil && info.Attempts == failures && info.State == codec.TaskQueued
			})
			// All but the last one begin without a free slot: the task that is tried again counts. The
			// last one begins if the runner had asked for a task of its level, so that none behind it does.
			var running []string
			for i := range firstTasks {
				key := "running-" + strconv.Itoa(i)
				running = append(running, key)
				submit(t, caller, "jobs.wait", key, &client.SubmitOptions{ID: subjects.RPCID(key)})
			}
			for _, key := range running[:firstTasks-1] {
				becomes(t, other.Task(subjects.RPCID(key)), codec.TaskRunning)
			}
			submit(t, caller, "jobs.wait", "queued", &client.SubmitOptions{ID: "queued"})
			for id, state := range map[subjects.RPCID]codec.TaskState{"scheduled": codec.TaskScheduled, "queued": codec.TaskQueued, "retried": codec.TaskQueued} {
				if info, err := other.Task(id).Show(t.Context()); err != nil || info.State != state {
					t.Logf("the machine is slow: %s is %+v %v", id, info, err)
				}
			}

			c.dies(t, m)
			for _, key := range append(running, "queued") {
				close(d.gate(key))
			}
			for _, key := range running {
				succeeds(t, other.Task(subjects.RPCID(key)), "waited "+key)
				if n := d.count(key); n > c.most {
					t.Errorf("%s was run %d times", key, n)
				}
			}
			for id, want := range map[subjects.RPCID]string{"queued": "waited queued", "scheduled": "did scheduled", "retried": "did retried"} {
				succeeds(t, other.Task(id), want)
			}
			for key, want := range map[string]int{"queued": 1, "scheduled": 1, "retried": failures + 1} {
				if n := d.count(key); n != want {
					t.Errorf("%s was run %d times, want %d", key, n, want)
				}
			}
		}
		t.Run(c.victim, func(t *testing.T) {
			t.Parallel()
			if meshtest.Soak() {
				meshtest.Topologies(t, dies)
				return
			}
			dies(t, meshtest.Single(t))
		})
	}
}
