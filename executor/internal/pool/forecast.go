package pool

import (
	"iter"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
)

// What follows decides which calls are not worth queueing: one that would not begin in
// time is refused while there is time to try another node, and so is one that would wait
// for long in a queue that does not get empty. A queue that calls came to at once, after it
// was empty, may be as long as their time allows.

const (
	// patience is which part of its time a call may wait in a queue that stands.
	patience = 20
	// A call may wait as long as it takes itself, and for this.
	moment = 50 * time.Millisecond
	// reconsider is how often it is looked whether queued calls still begin in time.
	reconsider = 20 * time.Millisecond
)

// pace is how long calls of a tool take.
type pace struct {
	calls int           // it is known of, up to enough
	took  time.Duration // moving average
}

// enough calls of a tool make known how long one takes.
const enough = 4

// expected is how long a call of a tool takes; 0 while that is not known.
func (s *state) expected(slot uint16) time.Duration {
	if int(slot) < len(s.paces) && s.paces[slot].calls == enough {
		return s.paces[slot].took
	}
	return 0
}

// youngest is how long the last call that was given to a worker has run, and its tool's slot,
// if all running calls are of that tool. It says nothing of other tools.
func (s *state) youngest(now time.Time) (slot uint16, ran time.Duration) {
	var last *job
	for _, w := range s.workers {
		if j := w.one; j != nil && j.open == 0 {
			if last != nil && j.Slot != last.Slot {
				return 0, 0
			}
			if last == nil || j.since.After(last.since) {
				last = j
			}
		}
	}
	if last == nil {
		return 0, 0
	}
	return last.Slot, now.Sub(last.since)
}

// learn notes how long a call took. The first one of a worker says nothing of the others:
// it may import, or load a model.
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

// ahead is how long a queued call still waits, and how long it takes then.
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
		of, ran := s.youngest(now)
		for _, w := range s.workers {
			if j := w.one; j != nil && j.open == 0 {
				before += max(s.expected(j.Slot)-now.Sub(j.since), 0)
			}
		}
		for _, j := range s.queue.Waiting {
			takes := s.expected(j.Slot)
			least := takes
			if j.Slot == of { // no shorter than all that run now have run for; those before it may be
				least = max(takes, ran)
			}
			if !yield(j, ahead{before / time.Duration(at), least}) {
				return
			}
			before += takes
		}
	}
}

// enqueue queues a call, or says why it is not worth that.
func (s *state) enqueue(j *job) (refused *toolmesh.Error) {
	j.since = time.Now()
	if len(s.queue.Waiting) == 0 {
		s.stands = j.since
	}
	s.queue.Add(j, j.Account)
	if s.cfg.holdsState() || j.deadline.IsZero() {
		return nil
	}
	for one, a := range s.forecast(j.since) {
		if one != j {
			continue
		}
		allowed := max(a.takes+moment, j.deadline.Sub(j.since)/patience)
		stands := j.Depth == 0 && a.wait > allowed && j.since.Sub(s.stands) > allowed
		// A call with none ahead may have less time than calls take: its caller has set that.
		if stands || a.wait > 0 && j.late(a.wait+a.takes/4, a.takes, j.since) {
			s.queue.Remove(j)
			refused = s.crowded(a)
		}
		break
	}
	return refused
}

// late reports whether a call does not come to its end in time.
func (j *job) late(wait, takes time.Duration, now time.Time) bool {
	return takes > 0 && !j.deadline.IsZero() && now.Add(wait+takes).After(j.deadline)
}

// giveUp refuses queued calls that do not begin in time any more.
func (s *state) giveUp() {
	if s.cfg.holdsState() {
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

// crowded is the error of a call that must not wait: when the queue will be where it is
// now, it may be worth another try.
func (s *state) crowded(a ahead) *toolmesh.Error {
	return failure.NotStarted(toolmesh.CodeBusy, "%d calls wait for the workers of %s, and this one would wait for %v: try again, or another node",
		len(s.queue.Waiting), s.cfg.Index, a.wait.Round(time.Millisecond)).
		WithRetryable(true).WithDetail("limit", toolmesh.LimitSlots).WithDetail("retry_after_ms", max(a.wait, a.takes).Milliseconds()+1)
}
