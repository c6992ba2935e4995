package pool

import (
	"iter"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
)

// The forecast refuses calls that are not worth queueing: a call that would not begin in time is
// refused early enough to try another node, and so is one that would wait long in a queue
// that does not become empty. A burst into an empty queue may be as long as the calls' time
// allows.

const (
	// A call may wait 1/patience of its time in a queue that stays non-empty.
	patience = 20
	// moment is how long a call may wait in addition to its own duration.
	moment = 50 * time.Millisecond
	// reconsider is how often queued calls are checked for whether they still begin in time.
	reconsider = 20 * time.Millisecond
)

// pace is the duration of a tool's calls.
type pace struct {
	calls int           // measured calls, up to enough
	took  time.Duration // moving average
}

// enough is the number of calls after which a tool's duration is known.
const enough = 4

// expected is the duration of a call of a tool; 0 while it is unknown.
func (s *state) expected(slot uint16) time.Duration {
	if int(slot) < len(s.paces) && s.paces[slot].calls == enough {
		return s.paces[slot].took
	}
	return 0
}

// learn records the duration of a call. The first call of a worker is left out: it may import,
// or load a model.
func (s *state) learn(j *job, took time.Duration) {
	s.service += (took - s.service) / 8
	if j.first && !s.cfg.Once {
		return
	}
	for len(s.paces) <= int(j.Slot) {
		s.paces = append(s.paces, pace{})
	}
	p := &s.paces[j.Slot]
	p.calls = min(p.calls+1, enough)
	p.took += (took - p.took) / (1 << (p.calls - 1))
}

// ahead is how long a queued call still waits, and how long it takes after that.
type ahead struct{ wait, takes time.Duration }

// forecast yields the queued calls in their order.
func (s *state) forecast(now time.Time) iter.Seq2[*job, ahead] {
	return func(yield func(*job, ahead) bool) {
		at := s.most()
		if s.cfg.Async {
			at = asyncCalls
		}
		if s.cfg.MaxCalls > 0 {
			at = min(at, s.cfg.MaxCalls)
		}
		var before time.Duration
		var youngest *job // of the running calls, if all are of one tool: others tell nothing about it
		alike := true
		for _, w := range s.workers {
			if j := w.one; j != nil && j.open == 0 {
				before += max(s.expected(j.Slot)-now.Sub(j.since), 0)
				alike = alike && (youngest == nil || j.Slot == youngest.Slot)
				if youngest == nil || j.since.After(youngest.since) {
					youngest = j
				}
			}
		}
		for _, j := range s.queue.Waiting {
			takes := s.expected(j.Slot)
			least := takes
			if alike && youngest != nil && j.Slot == youngest.Slot { // at least as long as all running calls have run; calls ahead of it may be shorter
				least = max(takes, now.Sub(youngest.since))
			}
			if !yield(j, ahead{before / time.Duration(at), least}) {
				return
			}
			before += takes
		}
	}
}

// enqueue queues a call, or returns why it is refused.
func (s *state) enqueue(j *job) (refused *toolmesh.Error) {
	j.since = time.Now()
	if len(s.queue.Waiting) == 0 {
		s.stands = j.since
	}
	s.queue.Add(j, j.Account)
	if s.cfg.Session || j.deadline.IsZero() {
		return nil
	}
	for one, a := range s.forecast(j.since) {
		if one != j {
			continue
		}
		allowed := max(a.takes+moment, j.deadline.Sub(j.since)/patience)
		stands := j.Depth == 0 && a.wait > allowed && j.since.Sub(s.stands) > allowed
		// The first call of the queue may have less time than calls take: its caller chose that.
		if stands || a.wait > 0 && j.late(a.wait+a.takes/4, a.takes, j.since) {
			s.queue.Remove(j)
			refused = s.crowded(a)
		}
		break
	}
	return refused
}

// late reports whether a call would end too late.
func (j *job) late(wait, takes time.Duration, now time.Time) bool {
	return takes > 0 && !j.deadline.IsZero() && now.Add(wait+takes).After(j.deadline)
}

// giveUp refuses queued calls that would begin too late.
func (s *state) giveUp() {
	if s.cfg.Session {
		return
	}
	now := time.Now()
	s.lookAfter(reconsider)
	if now.Sub(s.reconsidered) < reconsider {
		return
	}
	s.reconsidered = now
	var late []*job
	for j, a := range s.forecast(now) {
		if (a.wait > 0 || s.expected(j.Slot) == 0) && j.late(a.wait, a.takes, now) {
			late = append(late, j)
			j.turn <- s.crowded(a)
		}
	}
	for _, j := range late {
		s.queue.Remove(j)
	}
}

// crowded is the error of a call that must not wait. It suggests a retry when the queue will
// have passed its present length.
func (s *state) crowded(a ahead) *toolmesh.Error {
	return failure.NotStarted(toolmesh.CodeBusy, "%d calls wait for the workers of %s, and this one would wait for %v: try again, or another node",
		len(s.queue.Waiting), s.cfg.Index, a.wait.Round(time.Millisecond)).
		WithRetryable(true).WithDetail("limit", toolmesh.LimitSlots).WithDetail("retry_after_ms", max(a.wait, a.takes).Milliseconds()+1)
}
