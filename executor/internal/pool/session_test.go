package pool_test

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
)

// A queued call that must not wait any more is refused when the session's worker begins
// to wait for a call of its tool.
func TestAQueuedCallFromBelowIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		p, _ := open(t, config(func(c *pool.Config) { c.Session = true }), func(w *work) (string, error) {
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

// A session has one worker: a call that its tool makes of it would wait for ever.
func TestASessionsWorkerIsNotWaitedForFromBelow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, _ := open(t, config(func(c *pool.Config) { c.Session = true }), recursive)
		o := <-begin(t.Context(), p, pool.Call{Args: json.RawMessage("."), Nested: nested{pool: p, depth: 1}})
		wantCode(t, o.err, toolmesh.CodeToolError, "worker_waits")
	})
}

// The state of a session's worker ends with it: one call reports that.
func TestASessionsState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		p, ps := open(t, config(func(c *pool.Config) { c.Session = true }), func(w *work) (string, error) { return w.wait(gate) })
		if s := p.Stats(); s.Workers+s.Starting != 0 {
			t.Errorf("%+v before the first call", s)
		}
		first := begin(t.Context(), p, args("{}"))
		synctest.Wait()
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

// A session's end cancels its calls, and its worker ends by itself.
func TestEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ps := open(t, config(func(c *pool.Config) { c.Session = true }), func(w *work) (string, error) { return w.wait(nil) })
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
