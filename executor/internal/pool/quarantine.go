package pool

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
)

// Quarantine stops a tool that keeps killing its workers: after too many crashes its calls are
// refused, except for an occasional trial, which ends the quarantine if its worker survives.
// Each tool has one quarantine for all pools. Its methods may be called concurrently.
type Quarantine struct {
	cfg     QuarantineConfig
	active  atomic.Bool // in quarantine: calls must Enter
	suspect atomic.Bool // a crash may have been its own or another tool's

	mu      sync.Mutex
	crashes []crash   // its own, within the window
	next    time.Time // when a trial may be made
	trying  bool
}

// QuarantineConfig configures the quarantine of a tool.
type QuarantineConfig struct {
	Tool       string // for messages
	CrashLimit int    // crashes within Window that begin it
	Window     time.Duration
	TrialEvery time.Duration
	// Changed is called with the reason when the quarantine begins, and with "" when it ends.
	// It must return at once.
	Changed func(reason string)
}

// NewQuarantine makes the quarantine of one tool, not active.
func NewQuarantine(cfg QuarantineConfig) *Quarantine { return &Quarantine{cfg: cfg} }

type crash struct {
	at     time.Time
	worker uint64 // its end is one crash, however many calls it had
}

// Verdict is the consequence of a call's end for its tool.
type Verdict struct {
	blame  blame
	worker uint64 // that crashed
}

type blame int

const (
	blameNothing blame = iota // the call did not end by itself
	blameSurvived
	// blameMaybe: the worker crashed while it ran calls of several tools. Each tool runs
	// apart from the others until one of its calls has succeeded.
	blameMaybe
	blameCrash
)

// Suspect reports whether the tool's calls must run apart from those of other tools.
func (q *Quarantine) Suspect() bool { return q.suspect.Load() }

// Enter asks whether a call may be made; trial marks it as the quarantine's trial. Leave must be
// called with trial after the call.
func (q *Quarantine) Enter() (trial bool, _ *toolmesh.Error) {
	if !q.active.Load() {
		return false, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	switch {
	case !q.active.Load():
		return false, nil
	case !q.trying && !now.Before(q.next):
		q.trying = true
		return true, nil
	}
	wait := max(q.next.Sub(now), 0)
	return false, failure.Unavailable("%s is in quarantine, because its workers crashed %d times: the next trial is in %v",
		q.cfg.Tool, len(q.crashes), wait.Round(time.Millisecond)).WithRetryable(true).
		WithDetail("quarantine", map[string]any{"crashes": len(q.crashes), "retry_after_ms": wait.Milliseconds()})
}

// Leave records how an admitted call ended.
func (q *Quarantine) Leave(trial bool, v Verdict) {
	if !trial && (v.blame == blameNothing || v.blame == blameSurvived && !q.suspect.Load()) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if trial {
		q.trying = false
	}
	switch v.blame {
	case blameNothing:
	case blameSurvived:
		q.suspect.Store(false)
		if trial {
			q.crashes = nil
			q.active.Store(false)
			q.cfg.Changed("")
		}
	case blameMaybe:
		q.suspect.Store(true)
	case blameCrash:
		q.crashes = slices.DeleteFunc(q.crashes, func(c crash) bool {
			return now.Sub(c.at) > q.cfg.Window || c.worker == v.worker
		})
		q.crashes = append(q.crashes, crash{now, v.worker})
		begins := len(q.crashes) >= q.cfg.CrashLimit && !q.active.Load()
		if trial || begins {
			q.next = now.Add(q.cfg.TrialEvery)
		}
		if begins && !trial {
			q.active.Store(true)
			q.cfg.Changed(fmt.Sprintf("in quarantine: its workers crashed %d times within %v; one call in %v is tried",
				len(q.crashes), q.cfg.Window, q.cfg.TrialEvery))
		}
	}
}
