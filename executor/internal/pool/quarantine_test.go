package pool_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
)

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
			if len(told) > 0 {
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
		if len(told) != 2 || told[1] != "" {
			t.Errorf("told %q", told)
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
			if trial, refused := q.Enter(); trial || refused != nil || !q.Suspect() {
				t.Errorf("%s: trial %v, refused %v, suspect %v", name, trial, refused, q.Suspect())
			}
		}
	})
}
