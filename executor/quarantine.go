package executor

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/failure"
)

// quarantine keeps a tool that kills its workers from doing so for ever: after a
// storm of crashes its calls are refused, but for one now and then, which ends
// the quarantine when its worker survives. Other tools have their own.
type quarantine struct {
	active  atomic.Bool // in quarantine: calls must ask
	suspect atomic.Bool // a crash may have been its own or another tool's

	mu      sync.Mutex
	crashes []crash   // its own, within the window
	next    time.Time // when a trial may be made
	trying  bool
}

type crash struct {
	at     time.Time
	worker uint64 // its death is one crash, however many calls it took along
}

// blame says what a call's end tells about its tool.
type blame int

const (
	blameNothing blame = iota // the call did not come to an end of its own
	blameSurvived
	// blameMaybe: the worker crashed while it ran calls of several tools. Each of
	// them runs apart from the others until a call of it has gone well.
	blameMaybe
	blameCrash
)

// enter asks whether a call may be made; trial says that it is the one of its
// kind.
func (q *quarantine) enter(name string, now time.Time) (trial bool, _ *toolmesh.Error) {
	if !q.active.Load() {
		return false, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.active.Load() {
		return false, nil
	}
	if !q.trying && !now.Before(q.next) {
		q.trying = true
		return true, nil
	}
	wait := max(q.next.Sub(now), 0)
	return false, failure.Unavailable("%s is in quarantine, because its workers crashed %d times: the next trial is in %v",
		name, len(q.crashes), wait.Round(time.Millisecond)).WithRetryable(true).
		WithDetail("quarantine", map[string]any{"crashes": len(q.crashes), "retry_after_ms": wait.Milliseconds()})
}

// verdict is what a call's end tells about its tool.
type verdict struct {
	blame  blame
	worker uint64 // that crashed
}

// leave notes how a call ended.
func (q *quarantine) leave(ix *Index, name string, trial bool, v verdict) {
	b := v.blame
	switch {
	case trial, b == blameMaybe, b == blameCrash, b == blameSurvived && q.suspect.Load():
	default:
		return
	}
	o := ix.x.opts
	now := time.Now()
	tell := func(string) {}
	if ix.spec.Quarantined != nil {
		tell = func(reason string) { ix.spec.Quarantined(name, reason) }
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if trial {
		q.trying = false
	}
	switch b {
	case blameNothing:
	case blameSurvived:
		q.suspect.Store(false)
		if trial {
			q.crashes = nil
			q.active.Store(false)
			tell("")
			ix.log.Info("a tool's quarantine has ended", slog.String("tool", name))
		}
	case blameMaybe:
		q.suspect.Store(true)
	case blameCrash:
		q.crashes = slices.DeleteFunc(q.crashes, func(c crash) bool {
			return now.Sub(c.at) > o.CrashWindow || c.worker == v.worker
		})
		q.crashes = append(q.crashes, crash{now, v.worker})
		if trial {
			q.next = now.Add(o.TrialEvery)
		} else if len(q.crashes) >= o.CrashLimit && !q.active.Load() {
			q.next = now.Add(o.TrialEvery)
			q.active.Store(true)
			tell(fmt.Sprintf("in quarantine: its workers crashed %d times within %v; one call in %v is tried", len(q.crashes), o.CrashWindow, o.TrialEvery))
			ix.log.Warn("a tool is in quarantine", slog.String("tool", name), slog.Int("crashes", len(q.crashes)))
		}
	}
}

// judge tells whose fault a call's end is.
func judge(j *job) verdict {
	switch {
	case j.err == nil:
		return verdict{blame: blameSurvived}
	case j.err.Code != toolmesh.CodeWorkerCrashed || j.innocent:
		return verdict{}
	case j.shared:
		return verdict{blameMaybe, j.fatal}
	}
	return verdict{blameCrash, j.fatal}
}
