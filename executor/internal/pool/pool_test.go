package pool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
)

// bubble runs a test in time that passes when nothing else can happen: its observations after
// synctest.Wait do not depend on the machine's speed.
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

// A call that has waited does not begin if its callers are gone by then; the next one does.
func TestCallsOfDeadCallersDoNotBegin(t *testing.T) {
	for _, async := range []bool{false, true} {
		t.Run(fmt.Sprint(async), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				gate := make(chan struct{})
				p, _ := open(t, config(func(c *pool.Config) { c.Async, c.MaxWorkers, c.MaxCalls = async, 1, 1 }), func(w *work) (string, error) { return w.wait(gate) })
				gone := func() bool { return true }
				first := begin(t.Context(), p, pool.Call{Deserted: func() bool { return false }})
				synctest.Wait()
				dead := begin(t.Context(), p, pool.Call{Deserted: gone})
				synctest.Wait()
				next := begin(t.Context(), p, pool.Call{})
				synctest.Wait()
				close(gate)
				if e := wantCode(t, (<-dead).err, toolmesh.CodeUnavailable); e.Started != toolmesh.StartedNo {
					t.Errorf("started %v", e.Started)
				}
				for _, end := range []<-chan outcome{first, next} {
					if o := <-end; o.err != nil {
						t.Error(o.err)
					}
				}
			})
		})
	}
}

// The pool alternates between accounts: one with many calls in the queue is not served before
// another that comes later, even if it cancels and repeats calls.
func TestAccountsTakeTurns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		var mu sync.Mutex
		var order []string
		p, _ := open(t, config(func(c *pool.Config) { c.MaxWorkers, c.MaxCalls = 1, 1 }), func(w *work) (string, error) {
			mu.Lock()
			order = append(order, w.args)
			mu.Unlock()
			return w.wait(gate)
		})
		var ends []<-chan outcome
		queue := func(account, name string) {
			ends = append(ends, begin(t.Context(), p, pool.Call{Args: json.RawMessage(name), Account: account}))
			synctest.Wait()
		}
		for i := range 6 {
			queue("flood", fmt.Sprint("f", i)) // the first has the worker
		}
		ctx, cancel := context.WithCancel(t.Context())
		given := begin(ctx, p, pool.Call{Account: "flood"})
		synctest.Wait()
		cancel()
		wantCode(t, (<-given).err, toolmesh.CodeCancelled)
		queue("b", "b0")
		queue("b", "b1")
		queue("c", "c0")
		gate <- struct{}{} // f0 ends
		synctest.Wait()
		queue("d", "d0")
		queue("b", "b2")
		close(gate)
		for _, end := range ends {
			if o := <-end; o.err != nil {
				t.Error(o.err)
			}
		}
		if want := strings.Fields("f0 f1 b0 c0 d0 f2 b1 f3 b2 f4 f5"); !slices.Equal(order, want) {
			t.Errorf("served in the order %v, want %v", order, want)
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

// If no worker can be started, calls fail soon, and starts become rare.
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
		time.Sleep(time.Hour) // no calls
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
				w.silent.Store(true)
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
