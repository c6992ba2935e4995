package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/meshtest"
)

// openSession serves stateTools under isolation session.
func openSession(t testing.TB, change func(*executor.Options)) *executor.Index {
	t.Helper()
	return openIsolated(t, executor.Policy{Isolation: toolmesh.IsolationSession}, change)
}

func callIn(t testing.TB, ix *executor.Index, session, name, args string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body, err := ix.Call(ctx, executor.Call{Tool: name, Session: session, Args: json.RawMessage(args)}, nil)
	return string(body), err
}

func mustCallIn(t testing.TB, ix *executor.Index, session, name, args, want string) {
	t.Helper()
	if got, err := callIn(t, ix, session, name, args); err != nil || got != want {
		t.Fatalf("%s in session %s = %s, %v, want %s", name, session, got, err, want)
	}
}

func mustFailIn(t testing.TB, ix *executor.Index, session, name string, code toolmesh.Code, reason string) {
	t.Helper()
	_, err := callIn(t, ix, session, name, `{}`)
	e := toolmesh.AsError(err)
	if e == nil || e.Code != code || e.Details["reason"] != reason || e.Started != toolmesh.StartedNo || !e.Retryable {
		t.Fatalf("%s in session %s: got %v %+v, want %s with the reason %s", name, session, err, e, code, reason)
	}
}

// beginIn starts a long call in a session and returns when its function has been
// entered. end cancels it and waits for its end.
func beginIn(t *testing.T, ix *executor.Index, session string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	sink := &collector{logged: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = ix.Call(ctx, executor.Call{Tool: "t.long", Session: session}, sink)
	}()
	select {
	case <-sink.logged:
	case <-done:
		t.Fatal("the long call has ended")
	}
	return func() { cancel(); <-done }
}

func TestASessionHasItsStateForItself(t *testing.T) {
	t.Parallel()
	ix := openSession(t, nil)
	if s := ix.Stats(); s.Workers != 0 {
		t.Errorf("%d workers before there is a session", s.Workers)
	}
	var wg sync.WaitGroup
	for n := range 6 {
		wg.Go(func() {
			session := fmt.Sprint("s", n)
			for k := 1; k <= 20; k++ {
				mustCallIn(t, ix, session, "t.count", `{}`, fmt.Sprint(k))
				mustCallIn(t, ix, session, "t.acount", `{}`, fmt.Sprint(k))
			}
			sink := &collector{}
			if _, err := ix.Call(t.Context(), executor.Call{Tool: "t.each", Session: session, Args: json.RawMessage(`{"n":2}`), Stream: true}, sink); err != nil {
				t.Error(err)
			}
			if got := strings.Join(sink.items, " "); got != "21 22" {
				t.Errorf("session %s streamed %s", session, got)
			}
		})
	}
	wg.Wait()
	if s := ix.Stats(); s.Workers != 12 || s.Restarts != 0 {
		t.Errorf("got %+v, want a worker of each kind for each of 6 sessions", s)
	}
}

// Rows F1 and F3: the session's call waits for its worker, the calls of others
// neither wait nor take it.
func TestACallWaitsForItsSessionsWorker(t *testing.T) {
	t.Parallel()
	ix := openSession(t, nil)
	mustCallIn(t, ix, "a", "t.count", `{}`, `1`)
	mustCallIn(t, ix, "b", "t.count", `{}`, `1`)
	end := beginIn(t, ix, "a")
	got := make(chan string, 2)
	for n := range 2 {
		go func() {
			body, err := callIn(t, ix, "a", "t.count", `{}`)
			got <- fmt.Sprint(body, err)
		}()
		meshtest.Until(t, "the call waits", func() bool { return ix.Stats().Waiting == n+1 })
	}
	mustCallIn(t, ix, "b", "t.count", `{}`, `2`)
	mustCallIn(t, ix, "c", "t.count", `{}`, `1`)
	if s := ix.Stats(); s.Waiting != 2 || s.Workers != 3 {
		t.Errorf("got %+v, want two that wait and three workers", s)
	}
	end()
	if one, two := <-got, <-got; one+two != "2<nil>3<nil>" && one+two != "3<nil>2<nil>" {
		t.Errorf("got %s and %s", one, two)
	}
}

// Row F5: one call of a session reports the loss of its state.
func TestLostWorkerOfASessionIsReportedOnce(t *testing.T) {
	t.Parallel()
	const gone = "session_worker_unavailable"
	ix := openSession(t, nil)
	mustCallIn(t, ix, "a", "t.count", `{}`, `1`)
	if err := syscall.Kill(ix.Stats().Pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "its end is noticed", func() bool { return ix.Stats().Restarts == 1 })
	mustFailIn(t, ix, "a", "t.count", toolmesh.CodeUnavailable, gone)
	mustCallIn(t, ix, "a", "t.count", `{}`, `1`)

	// In a call: the call says so itself, those that waited learn it.
	end := beginIn(t, ix, "a")
	waiting := make(chan error, 1)
	go func() {
		_, err := callIn(t, ix, "a", "t.count", `{}`)
		waiting <- err
	}()
	meshtest.Until(t, "the call waits", func() bool { return ix.Stats().Waiting == 1 })
	if err := syscall.Kill(ix.Stats().Pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := toolmesh.AsError(<-waiting); e == nil || e.Details["reason"] != gone || e.Started != toolmesh.StartedNo {
		t.Errorf("the call that waited: got %v", e)
	}
	end()
	mustCallIn(t, ix, "a", "t.count", `{}`, `1`)
	if _, err := callIn(t, ix, "a", "t.die", `{}`); toolmesh.CodeOf(err) != toolmesh.CodeWorkerCrashed ||
		toolmesh.AsError(err).Details["session_state"] != "lost" {
		t.Errorf("got %v %v", err, toolmesh.AsError(err).Details)
	}
	mustCallIn(t, ix, "a", "t.count", `{}`, `1`)
}

// Row F6: a worker of coroutines has many places.
func TestCoroutinesOfASessionShareItsWorker(t *testing.T) {
	t.Parallel()
	ix := openSession(t, nil)
	mustCallIn(t, ix, "a", "t.acount", `{}`, `1`)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			body, err := callIn(t, ix, "a", "t.anap", `{"n":0.2}`)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[body] = true
		})
	}
	wg.Wait()
	if len(seen) != 1 {
		t.Errorf("%d workers served the session", len(seen))
	}
}

func TestALeaseEndsByIdleness(t *testing.T) {
	t.Parallel()
	ix := openSession(t, func(o *executor.Options) { o.SessionIdle, o.IdleAfter = 50*time.Millisecond, 20*time.Millisecond })
	mustCallIn(t, ix, "a", "t.count", `{}`, `1`)
	meshtest.Until(t, "its worker is gone", func() bool { return len(ix.Stats().Pids) == 0 })
	mustCallIn(t, ix, "a", "t.count", `{}`, `1`)
	end := beginIn(t, ix, "b")
	meshtest.Until(t, "the idle one is gone, and the busy one is not", func() bool { return len(ix.Stats().Pids) == 1 })
	end()
}

func TestASessionsEndEndsItsWorkersAndCalls(t *testing.T) {
	t.Parallel()
	ix := openSession(t, nil)
	mustCallIn(t, ix, "a", "t.acount", `{}`, `1`)
	mustCallIn(t, ix, "b", "t.count", `{}`, `1`)
	sink := &collector{logged: make(chan struct{}, 1)}
	running := make(chan error, 1)
	go func() {
		_, err := ix.Call(t.Context(), executor.Call{Tool: "t.long", Session: "a"}, sink)
		running <- err
	}()
	<-sink.logged
	waiting := make(chan error, 1)
	go func() {
		_, err := callIn(t, ix, "a", "t.count", `{}`)
		waiting <- err
	}()
	meshtest.Until(t, "the call waits", func() bool { return ix.Stats().Waiting == 1 })
	if err := ix.EndSession(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	if s := ix.Stats(); len(s.Pids) != 1 || s.Restarts != 0 {
		t.Errorf("got %+v, want the other session's worker alone", s)
	}
	if err := <-running; toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
		t.Errorf("the call that ran: got %v", err)
	}
	if e := toolmesh.AsError(<-waiting); e == nil || e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo {
		t.Errorf("the call that waited: got %v", e)
	}
	mustCallIn(t, ix, "a", "t.count", `{}`, `1`)
	mustCallIn(t, ix, "b", "t.count", `{}`, `2`)
	if err := ix.EndSession(t.Context(), "nobody", ""); err != nil {
		t.Error(err)
	}
}

func TestScarceWorkersGoToTheSessionThatCalls(t *testing.T) {
	t.Parallel()
	ix := openSession(t, func(o *executor.Options) { o.SessionHold, o.MaxSessions = time.Nanosecond, 2 })
	mustCallIn(t, ix, "a", "t.count", `{}`, `1`)
	mustCallIn(t, ix, "b", "t.count", `{}`, `1`)
	mustCallIn(t, ix, "a", "t.count", `{}`, `2`)
	mustCallIn(t, ix, "c", "t.count", `{}`, `1`) // takes b's, which is idle for longest
	mustCallIn(t, ix, "a", "t.count", `{}`, `3`)
	endA, endC := beginIn(t, ix, "a"), beginIn(t, ix, "c")
	mustFailIn(t, ix, "d", "t.count", toolmesh.CodeBusy, "session_workers")
	endA()
	endC()
	mustFailIn(t, ix, "b", "t.count", toolmesh.CodeUnavailable, "session_worker_unavailable")
	mustCallIn(t, ix, "b", "t.count", `{}`, `1`)
	meshtest.Until(t, "those that were taken are gone", func() bool { return len(ix.Stats().Pids) == 2 })
}

func TestAHeldLeaseIsNotGivenAway(t *testing.T) {
	t.Parallel()
	ix := openSession(t, func(o *executor.Options) { o.SessionHold, o.MaxSessions = time.Hour, 1 })
	mustCallIn(t, ix, "a", "t.count", `{}`, `1`)
	mustFailIn(t, ix, "b", "t.count", toolmesh.CodeBusy, "session_workers")
	mustCallIn(t, ix, "a", "t.count", `{}`, `2`)
}

// A session that is created again under its name is another one, as is one that was not created;
// and a worker that another node had in between is not called any more.
func TestALeaseIsOfOneEpoch(t *testing.T) {
	t.Parallel()
	ix := openSession(t, nil)
	call := func(epoch, home, want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		got, err := ix.Call(ctx, executor.Call{Tool: "t.count", Session: "a", Epoch: epoch, Home: home}, nil)
		if err != nil || string(got) != want {
			t.Fatalf("epoch %q, home %q = %s, %v, want %s", epoch, home, got, err, want)
		}
	}
	call("", "", "1")
	call("one", "", "1")
	call("one", "", "2")
	call("two", "", "1")
	call("", "", "2")
	call("one", "", "3") // a late one has no effect
	call("two", "", "2")
	call("two", "x", "1")
	if got := ix.Sessions(); len(got) != 3 || got[0] != (executor.BoundSession{Name: "a"}) || got[2] != (executor.BoundSession{Name: "a", Epoch: "two"}) {
		t.Errorf("got %+v", got)
	}
	if err := ix.EndSession(t.Context(), "a", "one"); err != nil {
		t.Fatal(err)
	}
	call("two", "x", "2")
	if err := ix.EndSession(t.Context(), "a", "two"); err != nil {
		t.Fatal(err)
	}
	call("two", "x", "1")
}
