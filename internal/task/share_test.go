package task_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/task"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// busyTasks fails the test unless an error says that a session has its share.
func busyTasks(t testing.TB, err error) {
	t.Helper()
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeBusy || e.Started != toolmesh.StartedNo || e.Details["limit"] != "tasks" {
		t.Errorf("a task over the share of its session: %v", err)
	}
}

// A session that fills the store with tasks is refused further ones. Its existing tasks go on,
// and so do those of others.
func TestSessionFillsTheStoreWithTasks(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	created(t, broker, "greedy", "other")
	runsWith(t, broker.Connect(t), task.Options{}, func(s *task.Service) { s.SetRoom(24, 1e9, 100) })
	greedy, other := calls(t, broker.Connect(t), "greedy"), calls(t, broker.Connect(t), "other")
	var err error
	n := 0
	for ; err == nil && n < 24; n++ {
		_, err = greedy.Submit(t.Context(), "jobs.wait", job{"g"}, &client.SubmitOptions{ID: codecID(n)})
	}
	busyTasks(t, err)
	if n < 8 || n > 13 {
		t.Errorf("a session alone has %d of 24 records", n)
	}
	if _, err := greedy.Submit(t.Context(), "jobs.wait", job{"g"}, &client.SubmitOptions{ID: codecID(0)}); err != nil {
		t.Errorf("a task that was accepted, submitted again: %v", err)
	}
	succeeds(t, submit(t, other, "jobs.echo", "o", nil), "did o")
	if info, err := greedy.Task(codecID(1)).Cancel(t.Context()); err != nil || info.State != codec.TaskCancelled {
		t.Errorf("cancel in a session that has its share: %+v %v", info, err)
	}
	close(d.gate("g"))
	succeeds(t, greedy.Task(codecID(0)), "waited g")
	becomes(t, greedy.Task(codecID(n-2)), codec.TaskSucceeded)
	if n, err := greedy.RemoveTasks(t.Context(), codec.TaskCancelled, 0); err != nil || n != 1 {
		t.Errorf("%d cancelled tasks removed, %v", n, err)
	}
	if n, err := greedy.RemoveTasks(t.Context(), "", time.Hour); err != nil || n != 0 {
		t.Errorf("%d tasks removed that have just ended, %v", n, err)
	}
	if _, err := greedy.Task("").Remove(t.Context()); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("removal of a task without an id: %v, want invalid_request", err)
	}
	if _, err := greedy.RemoveTasks(t.Context(), codec.TaskRunning, 0); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("running tasks removed: %v", err)
	}
	meshtest.Until(t, "all have ended, and are removed", func() bool {
		_, err := greedy.RemoveTasks(t.Context(), "", 0)
		left, bad := greedy.Tasks(t.Context(), "")
		return err == nil && bad == nil && len(left) == 0
	})
	meshtest.Until(t, "there is room again", func() bool {
		_, err := greedy.Submit(t.Context(), "jobs.echo", job{"again"}, nil)
		return err == nil
	})
}

// Sessions that were not created share one share of the store, of the requests that
// are answered at once and of the values that are read for them: their names cost nothing.
func TestInventedSessionsHaveOneShare(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	created(t, broker, "other")
	s := runsWith(t, broker.Connect(t), task.Options{}, func(s *task.Service) { s.SetRoom(24, 1e9, 100); s.SetRequests(10) })
	nc := broker.Connect(t)
	var err error
	n := 0
	for ; err == nil && n < 24; n++ {
		_, err = calls(t, nc, subjects.SessionID("made-up-"+strconv.Itoa(n))).Submit(t.Context(), "jobs.wait", job{"g"}, &client.SubmitOptions{ID: "x"})
	}
	busyTasks(t, err)
	if n < 8 || n > 13 {
		t.Errorf("they have %d of 24 records", n)
	}
	other := calls(t, nc, "other")
	large := submit(t, other, "jobs.echo", strings.Repeat("x", 1500<<10), nil)
	if _, err := large.Wait(within(t)); err != nil {
		t.Fatal(err)
	}

	running := submit(t, other, "jobs.wait", "other", nil)
	ask := func(session, verb, body string) chan *codec.Reply {
		got := make(chan *codec.Reply, 1)
		go func() {
			m, err := nc.Request("mesh.task."+session+"."+verb, []byte(body), waitTimeout)
			if err != nil {
				t.Error(err)
				m = &nats.Msg{}
			}
			r := codec.ParseReply(codec.Header(m.Header), m.Data)
			got <- &r
		}()
		return got
	}
	const flood = 40
	refused, waits := 0, make([]chan *codec.Reply, flood)
	for i := range waits { // of tasks that run: each is answered after 2 s
		waits[i] = ask("made-up-"+strconv.Itoa(i%(n-1)), "wait", `{"id":"x","wait_ms":2000}`)
	}
	if r := <-ask("other", "show", `{"id":"`+string(running.ID())+`"}`); r.Err != nil {
		t.Errorf("another session beside them: %v", r.Err)
	}
	for _, wait := range waits {
		if r := <-wait; r.Err != nil && r.Err.Details["limit"] == "requests" {
			refused++
		}
	}
	if refused == 0 {
		t.Errorf("none of %d requests is refused where 10 are answered at once", flood)
	}

	free := s.HoldValues("made-up-0")
	show := `{"id":"` + string(large.ID()) + `","accept_ref":true}`
	if r := <-ask("other", "show", show); r.Err == nil || r.Err.Code != toolmesh.CodeBusy || r.Err.Details["limit"] != "held_bytes" || r.Err.RetryAfter() == 0 {
		t.Errorf("one more value where there is no room: %v", r.Err)
	}
	free()
	if r := <-ask("other", "show", show); r.Err != nil {
		t.Error(r.Err)
	}
	// Requests that wait hold their messages.
	s.SetHeld(1 << 20)
	s.SetRequests(100)
	padded := `{"id":"x","wait_ms":2000,"args":{"pad":"` + strings.Repeat("x", 100<<10) + `"}}`
	refused = 0
	for i := range waits[:10] {
		waits[i] = ask("made-up-"+strconv.Itoa(i%(n-1)), "wait", padded)
	}
	if r := <-ask("other", "show", `{"id":"`+string(running.ID())+`"}`); r.Err != nil {
		t.Errorf("another session beside long requests: %v", r.Err)
	}
	for _, wait := range waits[:10] {
		if r := <-wait; r.Err != nil && r.Err.Details["limit"] == "held_bytes" {
			refused++
		}
	}
	if refused < 5 {
		t.Errorf("%d of 10 requests of 100 KiB are refused that wait where half of 1 MiB is free", refused)
	}
	close(d.gate("g"))
	close(d.gate("other"))
}

// A session that fills the store with results has its further tasks wait, before their calls
// begin, until it removes some. Others go on.
func TestSessionFillsTheStoreWithResults(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	const room = 8 << 20
	created(t, broker, "greedy", "other")
	runsWith(t, broker.Connect(t), task.Options{}, func(s *task.Service) { s.SetRoom(1000, room, 100) })
	greedy, other := calls(t, broker.Connect(t), "greedy"), calls(t, broker.Connect(t), "other")
	big := func(i int) string { return strings.Repeat("x", 950<<10) + string(codecID(i)) }
	var waits *client.Task
	for i := 0; waits == nil; i++ {
		if i == 12 {
			t.Fatal("a session has more than the store holds")
		}
		// Small arguments with a large result would do as well; echo returns its argument.
		handle, err := greedy.Submit(t.Context(), "jobs.echo", job{big(i)}, nil)
		if err != nil {
			busyTasks(t, err)
			break
		}
		meshtest.Until(t, "it has ended, or waits", func() bool {
			info, err := handle.Show(t.Context())
			if err == nil && info.State == codec.TaskQueued && info.Error != nil {
				busyTasks(t, info.Error)
				waits = handle
			}
			return err == nil && (waits != nil || info.State.Ended())
		})
	}
	small := submit(t, greedy, "jobs.echo", "small", nil) // its record has room
	meshtest.Until(t, "it waits", func() bool {
		info, err := small.Show(t.Context())
		return err == nil && info.State == codec.TaskQueued && info.Error != nil && info.Error.Code == toolmesh.CodeBusy
	})
	succeeds(t, submit(t, other, "jobs.echo", "o", nil), "did o")
	if n, err := greedy.RemoveTasks(t.Context(), codec.TaskSucceeded, 0); err != nil || n == 0 {
		t.Fatalf("%d removed, %v", n, err)
	}
	succeeds(t, small, "did small")
	if waits != nil {
		if _, err := waits.Wait(within(t)); err != nil {
			t.Error(err)
		}
	}
}

// Of a schedule so many tasks are kept, and it makes none while they have not ended.
func TestTasksOfAScheduleAreKeptByNumber(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	runsWith(t, broker.Connect(t), task.Options{}, func(s *task.Service) { s.SetRoom(1000, 1e9, 2) })
	c := calls(t, broker.Connect(t), "")
	quick := submit(t, c, "jobs.echo", "quick", &client.SubmitOptions{ID: "quick", Every: time.Second})
	slow := submit(t, c, "jobs.wait", "slow", &client.SubmitOptions{ID: "slow", Every: time.Second})
	for range 5 {
		d.starts(t, "quick")
	}
	all, err := c.Tasks(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	made := make(map[subjects.RPCID]int)
	for _, info := range all {
		made[info.Schedule]++
	}
	if made["quick"] > 2 || made["quick"] == 0 || made["slow"] != 2 || d.count("slow") != 2 {
		t.Errorf("kept: %v, and %d slow ones begun", made, d.count("slow"))
	}
	close(d.gate("slow"))
	d.starts(t, "slow")
	for _, handle := range []*client.Task{quick, slow} {
		if _, err := handle.Cancel(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// The times of a schedule that came while nothing ran tasks are caught up with as it says.
func TestSchedulesCatchUp(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	gone := broker.Connect(t)
	runs(t, gone, 0)
	c := calls(t, broker.Connect(t), "")
	ids := []subjects.RPCID{"default", "none", "one", "all"}
	for i, catchUp := range []string{"", codec.CatchUpNone, codec.CatchUpOne, codec.CatchUpAll} {
		submit(t, c, "jobs.echo", string(ids[i]), &client.SubmitOptions{ID: ids[i], Every: time.Second, CatchUp: catchUp})
	}
	gone.Close()
	nc := broker.Connect(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subjects.StreamSchedules)
	if err != nil {
		t.Fatal(err)
	}
	due, err := js.Consumer(t.Context(), subjects.StreamSchedules, "due")
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the broker passes no more times to the runner that is gone", func() bool {
		info, err := due.Info(t.Context())
		return err == nil && info.NumWaiting == 0
	})
	closed, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Of each schedule the times that came since; those of one second make one task.
	missed := make(map[subjects.RPCID][]int64)
	meshtest.Until(t, "four times of each have come", func() bool {
		clear(missed)
		info, err := stream.Info(t.Context())
		if err != nil {
			return false
		}
		for seq := closed.State.LastSeq + 1; seq <= info.State.LastSeq; seq++ {
			if m, err := stream.GetMsg(t.Context(), seq); err == nil && strings.HasPrefix(m.Subject, "mesh.schedules.due.") {
				id := subjects.RPCID(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
				missed[id] = slices.Compact(append(missed[id], m.Time.Unix()))
			}
		}
		for _, id := range ids {
			if len(missed[id]) < 4 {
				return false
			}
		}
		return true
	})
	runs(t, nc, 0)
	made := func(id subjects.RPCID, at int64) bool {
		_, err := c.Task(id + "-" + subjects.RPCID(strconv.FormatInt(at, 10))).Show(t.Context())
		return err == nil
	}
	meshtest.Until(t, "all times of one schedule are caught up with", func() bool {
		return !slices.ContainsFunc(missed["all"], func(at int64) bool { return !made("all", at) })
	})
	for _, id := range ids[:3] {
		for _, at := range missed[id][:3] {
			if made(id, at) {
				t.Errorf("%s: %d, which was not the last time, was caught up with", id, at)
			}
		}
		d.starts(t, string(id)) // it goes on
	}
}

// Simultaneous requests share one listing of all tasks.
func TestRequestsAtOnceShareOneListing(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	s := runs(t, broker.Connect(t), 0)
	var lists atomic.Int64
	spy := broker.Connect(t)
	if _, err := spy.Subscribe("$JS.API.STREAM.INFO.>", func(*nats.Msg) { lists.Add(1) }); err != nil {
		t.Fatal(err)
	}
	if err := spy.Flush(); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			if err := s.Counts(t.Context(), "made-up"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := spy.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := lists.Load(); n == 0 || n > 20 { // three each second
		t.Errorf("%d listings for 40 that asked at once, want 3", n)
	}
}

// Simultaneous submissions of one session, counted by several runners, exceed its share by little:
// other sessions find room.
func TestABurstLeavesOthersRoom(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{Slots: 1000})
	created(t, broker, "greedy", "other")
	const records, share, burst = 128, 64, 600
	for range 4 {
		runsWith(t, broker.Connect(t), task.Options{}, func(s *task.Service) { s.SetRoom(records, 1e9, 100) })
	}
	nc := broker.Connect(t)
	answers := make(chan *nats.Msg, burst)
	inbox := nats.NewInbox()
	if _, err := nc.ChanSubscribe(inbox, answers); err != nil {
		t.Fatal(err)
	}
	for i := range burst {
		if err := nc.PublishRequest("mesh.task.greedy.submit", inbox, []byte(`{"tool":"jobs.wait","args":{"key":"g"},"id":"`+string(codecID(i))+`"}`)); err != nil {
			t.Fatal(err)
		}
	}
	taken := 0
	for range burst {
		select {
		case m := <-answers:
			if r := codec.ParseReply(codec.Header(m.Header), m.Data); r.Err == nil {
				taken++
			} else {
				busyTasks(t, r.Err)
			}
		case <-time.After(waitTimeout):
			t.Fatal("submissions are not answered")
		}
	}
	if taken < share*3/4 || taken > share*5/4 {
		t.Errorf("a burst has %d of %d records", taken, records)
	}
	other := calls(t, broker.Connect(t), "other")
	for range share / 4 {
		submit(t, other, "jobs.echo", "o", nil)
	}
	succeeds(t, submit(t, other, "jobs.echo", "o", nil), "did o")
	close(d.gate("g"))
}

// A message of another publisher in the store of values counts nothing, and ends no runner.
func TestForeignMessagesAmongValues(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	runs(t, broker.Connect(t), 0)
	nc := broker.Connect(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"default.x", "default.x.many", "made-up.x"} {
		if _, err := js.Publish(t.Context(), subjects.ObjectParts(subjects.ObjectTasks)+name, []byte("foreign")); err != nil {
			t.Fatal(err)
		}
	}
	succeeds(t, submit(t, calls(t, nc, ""), "jobs.echo", "a", nil), "did a")
	succeeds(t, submit(t, calls(t, nc, "made-up"), "jobs.echo", "b", nil), "did b")
}
