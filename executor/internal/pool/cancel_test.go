package pool_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
)

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
				worker.silent.Store(true)
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
		ps.list()[0].silent.Store(true)
		cancel()
		time.Sleep(100 * time.Millisecond)
		ps.list()[0].silent.Store(false)
		if e := wantCode(t, (<-end).err, toolmesh.CodeCancelled); e.Details["killed"] != nil {
			t.Errorf("it was killed: %v", e.Details)
		}
	})
}
