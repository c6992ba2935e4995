package pool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/frame"
	"github.com/toolmesh/toolmesh/executor/output"
	"github.com/toolmesh/toolmesh/executor/pool"
	"github.com/toolmesh/toolmesh/tool"
)

// bubble runs a test in time that passes when nothing else can happen: what it sees
// after synctest.Wait does not depend on how fast the machine is.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

func wantCode(t *testing.T, err error, code toolmesh.Code, parts ...string) *toolmesh.Error {
	t.Helper()
	var e *toolmesh.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got %v, want %s", err, code)
	}
	for _, part := range parts {
		if !strings.Contains(e.Message, part) {
			t.Errorf("%q does not say %q", e.Message, part)
		}
	}
	return e
}

func TestAQueueIsServedInItsOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		var mu sync.Mutex
		var order []string
		p, ps := open(t, config(func(c *pool.Config) { c.MaxWorkers, c.MaxCalls = 1, 1 }), func(w *work) (string, error) {
			mu.Lock()
			order = append(order, w.args)
			mu.Unlock()
			return w.wait(gate)
		})
		const calls = 50
		var want []string
		var ends []<-chan outcome
		for i := range calls {
			want = append(want, fmt.Sprint(i))
			ends = append(ends, begin(t.Context(), p, args("%d", i)))
			synctest.Wait()
		}
		if s := p.Stats(); s.Busy != 1 || s.Waiting != calls-1 || s.Workers != 1 {
			t.Errorf("%+v, want one call at work and the others waiting", s)
		}
		close(gate)
		for _, end := range ends {
			if o := <-end; o.err != nil || o.body != `"waited"` {
				t.Errorf("%+v", o)
			}
		}
		if !slices.Equal(order, want) {
			t.Errorf("served in the order %v", order)
		}
		if n := len(ps.list()); n != 1 {
			t.Errorf("%d processes were started, want one", n)
		}
	})
}

// Workers are added for calls that wait, up to the limit; when they are idle, all
// but one end.
func TestAPoolGrowsAndShrinks(t *testing.T) {
	for least := range 2 {
		t.Run(fmt.Sprint(least), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				gate := make(chan struct{})
				p, _ := open(t, config(func(c *pool.Config) { c.MinIdle, c.IdleAfter = least, time.Minute }),
					func(w *work) (string, error) { return w.wait(gate) })
				var ends []<-chan outcome
				for range 6 {
					ends = append(ends, begin(t.Context(), p, args("{}")))
				}
				time.Sleep(time.Second)
				if s := p.Stats(); s.Workers != 4 || s.Busy != 4 || s.Waiting != 2 {
					t.Errorf("%+v, want 4 workers at work and 2 calls waiting", s)
				}
				close(gate)
				for _, end := range ends {
					<-end
				}
				time.Sleep(30 * time.Second)
				if s := p.Stats(); s.Workers != 4 {
					t.Errorf("%+v half a minute later, want 4 workers", s)
				}
				time.Sleep(time.Minute)
				if s := p.Stats(); s.Workers != least || s.Restarts != 0 {
					t.Errorf("%+v after a minute without calls, want %d workers", s, least)
				}
			})
		})
	}
}

func TestWorkersAreReplaced(t *testing.T) {
	for why, recycle := range map[string]pool.Recycle{
		"calls": {Calls: 10}, "age": {Age: time.Hour}, "memory": {Memory: 1 << 20},
	} {
		t.Run(why, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ps := open(t, config(func(c *pool.Config) { c.Recycle = recycle }), func(*work) (string, error) { return "1", nil })
				if err := p.Warm(); err != nil {
					t.Fatal(err)
				}
				first := ps.list()[0]
				switch why {
				case "calls":
					for range 12 {
						<-begin(t.Context(), p, args("{}"))
					}
				case "age":
					time.Sleep(30 * time.Minute)
					if n := p.Stats().Recycled; n != 0 {
						t.Errorf("%d were replaced after half of the time", n)
					}
					time.Sleep(time.Hour)
				case "memory":
					first.memory.Store(2 << 20)
					time.Sleep(time.Hour)
				}
				synctest.Wait()
				if s := p.Stats(); s.Recycled != 1 || s.Workers != 1 || s.Restarts != 0 {
					t.Errorf("%+v, want one worker, replaced once", s)
				}
				select {
				case <-first.done:
					if first.exit.Signal != 0 {
						t.Errorf("the old worker was killed: %v", first.exit)
					}
				default:
					t.Error("the old worker is still there")
				}
				if o := <-begin(t.Context(), p, args("{}")); o.err != nil {
					t.Error(o.err)
				}
			})
		})
	}
}

// A worker that dies takes its own call along, and no other.
func TestACrash(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ps := open(t, config(func(c *pool.Config) { c.MaxWorkers, c.MaxCalls = 1, 1 }), func(w *work) (string, error) {
			if w.args == "die" {
				return w.die(3)
			}
			return w.args, nil
		})
		dies := begin(t.Context(), p, args("die"))
		var others []<-chan outcome
		for i := range 10 {
			others = append(others, begin(t.Context(), p, args("%d", i)))
		}
		o := <-dies
		e := wantCode(t, o.err, toolmesh.CodeWorkerCrashed, "exit status 3")
		if e.Started != toolmesh.StartedYes {
			t.Errorf("started: %v", e.Started)
		}
		for i, other := range others {
			if o := <-other; o.err != nil || o.body != fmt.Sprint(i) {
				t.Errorf("call %d: %+v", i, o)
			}
		}
		// An idle one's death is repaired.
		synctest.Wait()
		list := ps.list()
		list[len(list)-1].Kill()
		synctest.Wait()
		if s := p.Stats(); s.Workers != 1 || s.Restarts != 2 {
			t.Errorf("%+v, want one worker and two restarts", s)
		}
	})
}

// Where no worker can be started, calls are told soon, and starts become rare.
func TestStartsThatFail(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ps := open(t, config(nil), nil)
		ps.failing(errors.New("no such interpreter"))
		began := time.Now()
		calls := 0
		for time.Since(began) < 5*time.Minute {
			o := <-begin(t.Context(), p, args("{}"))
			calls++
			wantCode(t, o.err, toolmesh.CodeUnavailable, "no such interpreter")
			time.Sleep(time.Second / 2)
		}
		if waited := time.Since(began) / time.Duration(calls); waited > 2*time.Second {
			t.Errorf("a call was told after %v", waited)
		}
		tries := len(ps.list())
		time.Sleep(time.Hour) // nobody calls
		if more := len(ps.list()) - tries; more > 60*60/15+2 {
			t.Errorf("%d starts in an hour without calls", more)
		}
	})
}

// A worker that is never ready is killed when its time is up.
func TestAWorkerThatIsNeverReady(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ps := &processes{}
		silent := func(ctx context.Context) (pool.Process, error) {
			p, err := ps.spawn(ctx)
			fake := p.(*process)
			fake.mu.Lock()
			fake.out = nil // READY
			fake.mu.Unlock()
			return p, err
		}
		p := pool.New(config(nil), silent)
		defer p.Close()
		if err := p.Warm(); err == nil || !strings.Contains(err.Error(), "not ready within 1m0s") {
			t.Errorf("got %v", err)
		}
	})
}

func TestQuarantine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var dies atomic.Bool
		dies.Store(true)
		p, _ := open(t, config(nil), func(w *work) (string, error) {
			if dies.Load() {
				return w.die(1)
			}
			return "1", nil
		})
		var told []string
		q := pool.NewQuarantine(pool.QuarantineConfig{
			Tool: "t.tool", CrashLimit: 3, Window: time.Minute, TrialEvery: time.Minute, Changed: func(reason string) { told = append(told, reason) },
		})
		call := func() error {
			trial, refused := q.Enter()
			if refused != nil {
				return refused
			}
			o := <-begin(t.Context(), p, args("{}"))
			q.Leave(trial, o.verdict)
			return o.err
		}
		for range 2 { // crashes that are far apart do not count together
			wantCode(t, call(), toolmesh.CodeWorkerCrashed)
			wantCode(t, call(), toolmesh.CodeWorkerCrashed)
			time.Sleep(2 * time.Minute)
		}
		for range 3 {
			if q.Active() {
				t.Fatal("it began before its time")
			}
			wantCode(t, call(), toolmesh.CodeWorkerCrashed)
		}
		wantCode(t, call(), toolmesh.CodeUnavailable, "quarantine", "next trial is in 1m0s")
		time.Sleep(time.Minute)
		wantCode(t, call(), toolmesh.CodeWorkerCrashed) // the trial
		wantCode(t, call(), toolmesh.CodeUnavailable, "quarantine")
		dies.Store(false)
		time.Sleep(time.Minute)
		if err := call(); err != nil {
			t.Error(err)
		}
		if q.Active() || len(told) != 2 || told[1] != "" {
			t.Errorf("active: %v, told %q", q.Active(), told)
		}
	})
}

// A worker that ran calls of several tools makes each of them a suspect, and none
// guilty.
func TestASharedCrashIsASuspicion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ps := open(t, config(func(c *pool.Config) { c.Async, c.MaxCalls = true, 0 }), func(w *work) (string, error) { return w.wait(nil) })
		ends := map[string]<-chan outcome{}
		for _, name := range []string{"t.a", "t.b"} {
			ends[name] = begin(t.Context(), p, pool.Call{Tool: name})
		}
		time.Sleep(time.Second)
		ps.list()[0].ended(ps.list()[0].exit)
		for name, end := range ends {
			q := pool.NewQuarantine(pool.QuarantineConfig{Tool: name, CrashLimit: 1, Window: time.Hour, TrialEvery: time.Hour})
			o := <-end
			wantCode(t, o.err, toolmesh.CodeWorkerCrashed)
			q.Leave(false, o.verdict)
			if q.Active() || !q.Suspect() {
				t.Errorf("%s: active %v, suspect %v", name, q.Active(), q.Suspect())
			}
		}
	})
}

func TestCancellation(t *testing.T) {
	for _, async := range []bool{false, true} {
		name := map[bool]string{false: "plain", true: "coroutine"}[async]
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ps := open(t, config(func(c *pool.Config) {
					c.Async, c.MaxWorkers, c.MaxCalls = async, 1, 1
				}), func(w *work) (string, error) { return w.wait(nil) })
				ctx, cancel := context.WithCancel(t.Context())
				first := begin(ctx, p, args("{}"))
				synctest.Wait()
				queuedCtx, cancelQueued := context.WithCancel(t.Context())
				queued := begin(queuedCtx, p, args("{}"))
				synctest.Wait()

				cancelQueued()
				if e := wantCode(t, (<-queued).err, toolmesh.CodeCancelled); e.Started != toolmesh.StartedNo {
					t.Errorf("the queued call: started %v", e.Started)
				}
				began := time.Now()
				cancel()
				if e := wantCode(t, (<-first).err, toolmesh.CodeCancelled); e.Started != toolmesh.StartedYes || e.Details["killed"] != nil {
					t.Errorf("the running call: started %v, %v", e.Started, e.Details)
				}
				if took := time.Since(began); took >= time.Second {
					t.Errorf("the grace was waited for: %v", took)
				}
				worker := ps.list()[0]
				select {
				case <-worker.done:
					t.Error("the worker did not survive a cancellation")
				default:
				}

				// One that does not hear is signalled until its grace is over, and then killed.
				worker.deaf.Store(true)
				ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began = time.Now()
				e := wantCode(t, (<-begin(ctx, p, args("{}"))).err, toolmesh.CodeDeadlineExceeded)
				if e.Details["killed"] != true || time.Since(began) != time.Minute+time.Second {
					t.Errorf("%v after %v", e.Details, time.Since(began))
				}
				synctest.Wait()
				select {
				case <-worker.done:
				default:
					t.Error("the worker still runs")
				}
				if s := p.Stats(); s.Busy != 0 || s.Workers != 1 {
					t.Errorf("%+v, want another worker that is idle", s)
				}
			})
		})
	}
}

// A cancellation that is not heard at first is sent again.
func TestACancellationIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ps := open(t, config(nil), func(w *work) (string, error) { return w.wait(nil) })
		ctx, cancel := context.WithCancel(t.Context())
		end := begin(ctx, p, args("{}"))
		synctest.Wait()
		ps.list()[0].deaf.Store(true)
		cancel()
		time.Sleep(100 * time.Millisecond)
		ps.list()[0].deaf.Store(false)
		if e := wantCode(t, (<-end).err, toolmesh.CodeCancelled); e.Details["killed"] != nil {
			t.Errorf("it was killed: %v", e.Details)
		}
	})
}

// nested makes a tool's calls in the pool that it is itself in.
type nested struct {
	pool  *pool.Pool
	depth int
}

func (n nested) Call(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, error) {
	body, _, err := n.pool.Call(ctx, pool.Call{Tool: name, Args: args, Depth: n.depth, Nested: nested{n.pool, n.depth + 1}})
	return body, err
}

func (n nested) Stream(context.Context, string, json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return nil
}

// recursive is a tool that calls itself, its arguments' length times.
func recursive(w *work) (string, error) {
	if w.args == "" {
		return "0", nil
	}
	below, err := w.call("t.tool", w.args[1:])
	if err != nil {
		return "", err
	}
	return below + fmt.Sprint(len(w.args)), nil
}

// Calls that tools make get workers though all places are taken by calls that wait
// for them, and the calls that compute are never more than the limit.
func TestNestedCallsDoNotWaitForEachOther(t *testing.T) {
	for _, async := range []bool{false, true} {
		for limit := 1; limit <= 3; limit++ {
			t.Run(fmt.Sprint(async, limit), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					var computing, most atomic.Int32
					p, _ := open(t, config(func(c *pool.Config) { c.Async, c.MaxWorkers, c.MaxCalls = async, limit, limit }),
						func(w *work) (string, error) {
							if n := computing.Add(1); n > most.Load() {
								most.Store(n)
							}
							time.Sleep(time.Millisecond)
							computing.Add(-1)
							return recursive(w)
						})
					var ends []<-chan outcome
					for range 5 {
						ends = append(ends, begin(t.Context(), p, pool.Call{Args: json.RawMessage("....."), Nested: nested{p, 1}}))
					}
					for _, end := range ends {
						if o := <-end; o.err != nil || o.body != "012345" {
							t.Errorf("%+v", o)
						}
					}
					// What waits for a call that is over by now may go on beside the next.
					if n := int(most.Load()); n > 2*limit {
						t.Errorf("%d calls computed at once, the limit is %d", n, limit)
					}
				})
			})
		}
	}
}

// stuck makes calls that end with their context.
type stuck struct{ nested }

func (stuck) Call(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Calls that wait for nested ones take no place of those that compute, but no more of
// them begin than the limit says.
func TestCallsThatWaitAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, _ := open(t, config(func(c *pool.Config) { c.MaxWorkers, c.MaxCalls = 2, 2 }), recursive)
		ctx, cancel := context.WithCancel(t.Context())
		var ends []<-chan outcome
		for depth := range 2 {
			for range 5 {
				ends = append(ends, begin(ctx, p, pool.Call{Args: json.RawMessage("."), Depth: depth, Nested: stuck{}}))
			}
		}
		time.Sleep(time.Second)
		if s := p.Stats(); s.Busy != 4 || s.Waiting != 6 {
			t.Errorf("%+v, want two calls of each depth to have begun", s)
		}
		cancel()
		for _, end := range ends {
			wantCode(t, (<-end).err, toolmesh.CodeCancelled)
		}
	})
}

// A queued call that must not wait any more is refused when the session's worker begins
// to wait for a call of its tool.
func TestAQueuedCallFromBelowIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		p, _ := open(t, config(func(c *pool.Config) { c.Affinity = tool.AffinityQueue }), func(w *work) (string, error) {
			if result, err := w.wait(gate); err != nil {
				return result, err
			}
			return recursive(w)
		})
		ctx, cancel := context.WithCancel(t.Context())
		first := begin(ctx, p, pool.Call{Args: json.RawMessage("."), Nested: stuck{}})
		synctest.Wait()
		beside, below := begin(ctx, p, args("")), begin(ctx, p, pool.Call{Depth: 1})
		synctest.Wait()
		close(gate)
		e := wantCode(t, (<-below).err, toolmesh.CodeBusy)
		if e.Details["reason"] != "worker_waits" {
			t.Errorf("%v", e.Details)
		}
		if s := p.Stats(); s.Waiting != 1 {
			t.Errorf("%+v, want the other call to wait on", s)
		}
		cancel()
		wantCode(t, (<-first).err, toolmesh.CodeCancelled)
		wantCode(t, (<-beside).err, toolmesh.CodeCancelled)
	})
}

// A worker that ends right after its answer takes nothing of that call along: at most
// the next call finds it dead, and is told that it had not begun.
func TestAnEndAfterTheAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ps := open(t, config(nil), func(w *work) (string, error) {
			w.send(frame.Header{Type: frame.Result, ID: w.id}, []byte("1"))
			return w.die(0)
		})
		for answered := 0; answered < 100; {
			o := <-begin(t.Context(), p, args("{}"))
			if o.err == nil {
				answered++
			} else if e := wantCode(t, o.err, toolmesh.CodeWorkerCrashed); e.Started != toolmesh.StartedNo {
				t.Fatalf("after %d answers: %v", answered, e)
			}
		}
		synctest.Wait()
		if s := p.Stats(); s.Restarts != len(ps.list())-1 || s.Workers != 1 {
			t.Errorf("%+v with %d processes, want each to be replaced", s, len(ps.list()))
		}
	})
}

// A session has one worker: a call that its tool makes of it would wait for ever.
func TestASessionsWorkerIsNotWaitedForFromBelow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, _ := open(t, config(func(c *pool.Config) { c.Affinity = tool.AffinityQueue }), recursive)
		o := <-begin(t.Context(), p, pool.Call{Args: json.RawMessage("."), Nested: nested{p, 1}})
		wantCode(t, o.err, toolmesh.CodeToolError, "worker_waits")
	})
}

// What a session's worker knew is gone with it: the session is told once. Another
// call of one with affinity fail does not wait.
func TestASessionsState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		p, ps := open(t, config(func(c *pool.Config) { c.Affinity = tool.AffinityFail }), func(w *work) (string, error) { return w.wait(gate) })
		if s := p.Stats(); s.Workers+s.Starting != 0 {
			t.Errorf("%+v before the first call", s)
		}
		first := begin(t.Context(), p, args("{}"))
		synctest.Wait()
		wantCode(t, (<-begin(t.Context(), p, args("{}"))).err, toolmesh.CodeBusy, "busy with another call")
		close(gate)
		if o := <-first; o.err != nil {
			t.Error(o.err)
		}
		ps.list()[0].Kill()
		synctest.Wait()
		wantCode(t, (<-begin(t.Context(), p, args("{}"))).err, toolmesh.CodeUnavailable, "signal 9")
		if o := <-begin(t.Context(), p, args("{}")); o.err != nil {
			t.Error(o.err)
		}
	})
}

// Where each call has a process of its own, calls that come together get theirs
// together, and the spares are there again afterwards.
func TestSpares(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		p, ps := open(t, config(func(c *pool.Config) { c.Once, c.Spares, c.MaxWorkers, c.MaxCalls = true, 2, 6, 6 }), func(w *work) (string, error) {
			return w.wait(gate)
		})
		var ends []<-chan outcome
		for range 4 {
			ends = append(ends, begin(t.Context(), p, args("{}")))
		}
		synctest.Wait()
		if s := p.Stats(); s.Busy != 4 || s.Workers != 6 {
			t.Errorf("%+v, want four at work and two that wait", s)
		}
		close(gate)
		for _, end := range ends {
			<-end
		}
		synctest.Wait()
		if s := p.Stats(); s.Workers != 2 || len(ps.list()) != 6 {
			t.Errorf("%+v with %d processes, want two that wait", s, len(ps.list()))
		}
		time.Sleep(2 * time.Hour)
		if n := len(ps.list()); n < 8 {
			t.Errorf("%d processes, want the spares to have been replaced for their age", n)
		}
	})
}

// Each call has a process of its own, and one waits for the next.
func TestOneCallForEachWorker(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ps := open(t, config(func(c *pool.Config) { c.Once, c.Spares = true, 1 }), func(w *work) (string, error) {
			return fmt.Sprint(w.process.id), nil
		})
		if err := p.Warm(); err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			if o := <-begin(t.Context(), p, args("{}")); o.body != fmt.Sprint(i+1) {
				t.Errorf("call %d: %+v", i+1, o)
			}
			synctest.Wait()
			if s := p.Stats(); s.Workers != 1 || len(ps.list()) != i+2 {
				t.Errorf("%+v and %d processes after call %d, want one that waits", s, len(ps.list()), i+1)
			}
		}
	})
}

// A coroutine that blocks its event loop stops no other calls: they go to another
// worker.
func TestABlockedEventLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ps := open(t, config(func(c *pool.Config) { c.Async, c.MaxCalls = true, 0 }), func(w *work) (string, error) {
			if w.args == "block" {
				w.deaf.Store(true)
				return w.wait(nil)
			}
			return "1", nil
		})
		blocked := begin(t.Context(), p, args("block"))
		time.Sleep(3 * time.Second)
		if s := p.Stats(); s.Workers != 2 {
			t.Errorf("%+v, want a second worker", s)
		}
		if o := <-begin(t.Context(), p, args("{}")); o.err != nil {
			t.Error(o.err)
		}
		ps.list()[0].Kill()
		wantCode(t, (<-blocked).err, toolmesh.CodeWorkerCrashed)
	})
}

// sink takes items, up to a number.
type sink struct {
	items []string
	most  int
}

var errEnough = errors.New("enough")

func (s *sink) Item(_ context.Context, data json.RawMessage) error {
	if len(s.items) == s.most {
		return errEnough
	}
	s.items = append(s.items, string(data))
	return nil
}

func (s *sink) Log(output.Record) {}

func TestStreams(t *testing.T) {
	for _, async := range []bool{false, true} {
		for _, most := range []int{3, 1} {
			t.Run(fmt.Sprint(async, most), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p, _ := open(t, config(func(c *pool.Config) { c.Async = async }), func(w *work) (string, error) {
						for i := range 3 {
							w.yield(fmt.Sprint(i))
						}
						if most < 3 {
							return w.wait(nil)
						}
						return "", nil
					})
					to := &sink{most: most}
					o := <-begin(t.Context(), p, pool.Call{Stream: true, Sink: to})
					if want := []string{"0", "1", "2"}[:most]; !slices.Equal(to.items, want) {
						t.Errorf("items: %v", to.items)
					}
					if refused := most < 3; refused != errors.Is(o.err, errEnough) || !refused && o.err != nil {
						t.Errorf("%v", o.err)
					}
				})
			})
		}
	}
}

func TestCloseWhileBusy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ps := open(t, config(func(c *pool.Config) { c.MaxWorkers, c.MaxCalls = 2, 2 }), func(w *work) (string, error) { return w.wait(nil) })
		var ends []<-chan outcome
		for range 5 {
			ends = append(ends, begin(t.Context(), p, args("{}")))
		}
		time.Sleep(time.Second)
		p.Close()
		<-p.Gone()
		codes := map[toolmesh.Code]int{}
		for _, end := range ends {
			o := <-end
			codes[toolmesh.AsError(o.err).Code]++
			if o.verdict != (pool.Verdict{}) {
				t.Errorf("a call that was cut off is held against its tool: %+v", o)
			}
		}
		if codes[toolmesh.CodeWorkerCrashed] != 2 || codes[toolmesh.CodeUnavailable] != 3 {
			t.Errorf("%v, want 2 that were cut off and 3 that had not begun", codes)
		}
		wantCode(t, (<-begin(t.Context(), p, args("{}"))).err, toolmesh.CodeUnavailable, "the index test is closed")
		if n := len(ps.list()); n != 2 {
			t.Errorf("%d processes, want 2", n)
		}
	})
}

// A session's end cancels its calls, and its worker ends by itself.
func TestEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ps := open(t, config(func(c *pool.Config) { c.Affinity = tool.AffinityQueue }), func(w *work) (string, error) { return w.wait(nil) })
		running := begin(t.Context(), p, args("{}"))
		synctest.Wait()
		queued := begin(t.Context(), p, args("{}"))
		synctest.Wait()
		p.End()
		wantCode(t, (<-queued).err, toolmesh.CodeUnavailable, "the session has ended")
		wantCode(t, (<-running).err, toolmesh.CodeToolError, "cancelled")
		<-p.Gone()
		if e := ps.list()[0].exit; e.Signal != 0 {
			t.Errorf("the worker was killed: %v", e)
		}
	})
}

// Whatever happens to workers and callers, each call has one outcome and its tool ran
// at most once, and the pool is at rest afterwards.
func TestRandomEvents(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				var ran sync.Map
				p, ps := open(t, config(func(c *pool.Config) {
					c.Async, c.Once = seed%2 == 1, seed%5 == 4
					c.MaxWorkers, c.MaxCalls = 3, 3
					c.IdleAfter = 40 * time.Millisecond
					c.Recycle = pool.Recycle{Calls: 20, Age: time.Second}
					c.Grace = 20 * time.Millisecond
				}), func(w *work) (string, error) {
					var act struct {
						Call  int
						Sleep time.Duration
						Die   bool
					}
					if err := json.Unmarshal([]byte(w.args), &act); err != nil {
						return "", err
					}
					if _, twice := ran.LoadOrStore(act.Call, true); twice {
						t.Errorf("call %d ran twice", act.Call)
					}
					after, stop := context.WithTimeout(context.Background(), act.Sleep)
					defer stop()
					if result, err := w.wait(after.Done()); err != nil || !act.Die {
						return result, err
					}
					return w.die(1)
				})
				const calls = 200
				var all sync.WaitGroup
				for i := range calls {
					ctx, cancel := context.WithCancel(t.Context())
					if random.IntN(3) == 0 {
						time.AfterFunc(time.Duration(random.IntN(40))*time.Millisecond, cancel)
					}
					call := args(`{"Call": %d, "Sleep": %d, "Die": %v}`, i, random.IntN(20)*int(time.Millisecond), random.IntN(8) == 0)
					all.Go(func() {
						defer cancel()
						o := <-begin(ctx, p, call)
						_, begun := ran.Load(i)
						if e := toolmesh.AsError(o.err); o.err != nil && begun && e.Started == toolmesh.StartedNo {
							t.Errorf("call %d ran, and its caller is told that it did not: %v", i, o.err)
						}
						if o.err == nil && o.body != `"waited"` {
							t.Errorf("call %d: %q", i, o.body)
						}
					})
					time.Sleep(time.Duration(random.IntN(10)) * time.Millisecond)
					if list := ps.list(); random.IntN(20) == 0 && len(list) > 0 {
						list[random.IntN(len(list))].Kill()
					}
				}
				all.Wait()
				time.Sleep(time.Minute)
				if s := p.Stats(); s.Busy != 0 || s.Waiting != 0 || s.Starting != 0 || s.Workers > 1 {
					t.Errorf("at rest: %+v", s)
				}
			})
		})
	}
}
