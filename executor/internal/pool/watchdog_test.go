package pool_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// A measurement of one call is not attributed to a call that began meanwhile.
func TestAMeasurementIsOfTheCallsThatRan(t *testing.T) {
	for _, async := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "coroutine"}[async], func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				first, second := make(chan struct{}), make(chan struct{})
				p, ps := open(t, config(func(c *pool.Config) {
					c.Async, c.MaxWorkers, c.MaxCalls, c.Limits = async, 1, 1, tool.Limits{Memory: 1 << 20}
				}), func(w *work) (string, error) {
					if w.args == "1" {
						w.memory.Store(2 << 20)
						defer w.memory.Store(0)
						return w.wait(first)
					}
					return w.wait(second)
				})
				if err := p.Warm(); err != nil {
					t.Fatal(err)
				}
				looked := false
				look := func() {
					if !looked {
						looked = true
						close(first)
						time.Sleep(10 * time.Millisecond)
					}
				}
				ps.list()[0].measured.Store(&look)
				ends := []<-chan outcome{begin(t.Context(), p, args("1"))}
				synctest.Wait()
				ends = append(ends, begin(t.Context(), p, args("2")))
				time.Sleep(time.Second)
				close(second)
				for i, end := range ends {
					if o := <-end; o.err != nil {
						t.Errorf("call %d: %v", i+1, o.err)
					}
				}
				if !looked {
					t.Error("nothing was measured")
				}
				ps.list()[0].measured.Store(nil)
				third := make(chan struct{})
				second = third
				ps.list()[0].memory.Store(2 << 20)
				wantCode(t, (<-begin(t.Context(), p, args("3"))).err, toolmesh.CodeWorkerOutOfMemory)
			})
		})
	}
}

// Limits of the node hold for tools without declared ones: memory beyond the zygote's, and
// temporary files. The next call has another worker.
func TestLimitsOfTheNodeAreWatched(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const base = 100 << 20
		p, ps := open(t, config(func(c *pool.Config) {
			c.MaxWorkers, c.Limits = 1, tool.Limits{Memory: 2 << 20, TempFiles: 1 << 20}
		}), func(w *work) (string, error) {
			w.memory.Store(base)
			switch w.args {
			case "more":
				w.memory.Store(base + 1<<20)
			case "too much":
				w.memory.Store(base + 3<<20)
			case "files":
				w.files.Store(2 << 20)
			}
			time.Sleep(time.Second)
			return "1", nil
		})
		ps.base = base
		call := func(text string) error { return (<-begin(t.Context(), p, args("%s", text))).err }
		wantCode(t, call("too much"), toolmesh.CodeWorkerOutOfMemory)
		if e := wantCode(t, call("files"), toolmesh.CodeToolError); e.Details["limit"] != "temp_files" || e.Details["max"] != int64(1<<20) {
			t.Errorf("details %v", e.Details)
		}
		if err := call("more"); err != nil {
			t.Error(err)
		}
		if n := len(ps.list()); n != 3 {
			t.Errorf("%d workers, want one for each call", n)
		}
	})
}

// A look that took long, because it counted thousands of processes or many workers, does
// not put off the next one: a call that begins after a breach is looked at as soon as any.
func TestALongLookDoesNotPutOffTheNext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ps := open(t, config(func(c *pool.Config) {
			c.MaxWorkers, c.Limits = 1, tool.Limits{Memory: 2 << 20}
		}), func(w *work) (string, error) {
			w.memory.Store(3 << 20)
			time.Sleep(time.Second) // until then it must have been looked at
			return "1", nil
		})
		defer time.Sleep(2 * time.Second)
		for range 3 {
			if err := p.Warm(); err != nil {
				t.Fatal(err)
			}
			workers := ps.list()
			look := func() { time.Sleep(150 * time.Millisecond) }
			workers[len(workers)-1].measured.Store(&look)
			wantCode(t, (<-begin(t.Context(), p, args("1"))).err, toolmesh.CodeWorkerOutOfMemory)
		}
	})
}

// compute uses processor time, a millisecond of every five, until a channel is closed or the call is
// to stop. sampled tells that the worker sees which call computes, after each ten milliseconds.
func (w *work) compute(until <-chan struct{}, sampled bool) (string, error) {
	for {
		select {
		case <-until:
			return `"done"`, nil
		case <-w.cancelled:
			return "", errors.New("cancelled")
		case <-w.done:
			return "", errExit
		case <-time.After(5 * time.Millisecond):
		}
		if now := w.cpu.Add(int64(time.Millisecond)); sampled && now%int64(10*time.Millisecond) == 0 {
			w.page[sandbox.WordRunning].Store(w.id)
		}
	}
}

// coroutines is a pool with one event loop whose calls may use 100 ms of processor time.
func coroutines(c *pool.Config) {
	c.Async, c.MaxWorkers, c.MaxCalls, c.Limits = true, 1, 10, tool.Limits{CPUTime: 100 * time.Millisecond}
	c.Declared = c.Limits
}

// exceeded checks that a call ended because of its processor time.
func exceeded(t *testing.T, err error) {
	t.Helper()
	if e := wantCode(t, err, toolmesh.CodeDeadlineExceeded); e.Details["limit"] != "cpu_time" {
		t.Errorf("details %v", e.Details)
	}
}

// unanswered are nested calls that last until they are cancelled.
type unanswered struct{ pool.Nested }

func (unanswered) Call(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Looks are more frequent than the worker sees which call computes: the time between is not the
// neighbour's, though the call that computes also waits for one that it made.
func TestProcessorTimeIsNotTheNeighbours(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		p, _ := open(t, config(coroutines), func(w *work) (string, error) {
			if w.args == "rest" {
				return w.wait(gate)
			}
			go func() { _, _ = w.call("t.tool", "{}") }()
			return w.compute(nil, true)
		})
		rest := begin(t.Context(), p, args("rest"))
		exceeded(t, (<-begin(t.Context(), p, pool.Call{Args: json.RawMessage("compute"), Nested: unanswered{}})).err)
		close(gate)
		if o := <-rest; o.err != nil {
			t.Error(o.err)
		}
	})
}

// Calls that have ended leave their processor time to no neighbour.
func TestProcessorTimeOfEndedCallsIsNotTheNeighbours(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		p, _ := open(t, config(coroutines), func(w *work) (string, error) {
			if w.args == "rest" {
				return w.wait(gate)
			}
			brief := make(chan struct{})
			time.AfterFunc(52*time.Millisecond, func() { close(brief) })
			return w.compute(brief, true)
		})
		rest := begin(t.Context(), p, args("rest"))
		for range 50 {
			if o := <-begin(t.Context(), p, args("brief")); o.err != nil {
				t.Fatal(o.err)
			}
		}
		close(gate)
		if o := <-rest; o.err != nil {
			t.Error(o.err)
		}
	})
}

// Threads and processes of a call are never seen at work on the event loop: their time counts for
// all calls that may have started them.
func TestProcessorTimeBesideTheEventLoopIsLimited(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, _ := open(t, config(coroutines), func(w *work) (string, error) { return w.compute(nil, false) })
		first := begin(t.Context(), p, args("{}"))
		exceeded(t, (<-begin(t.Context(), p, args("{}"))).err)
		exceeded(t, (<-first).err)
	})
}
