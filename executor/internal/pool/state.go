package pool

import (
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/executor/internal/turns"
)

const (
	// queueDelay is how long a call waits before it gets another worker.
	queueDelay = 3 * time.Millisecond
	// Calls shorter than shortCall keep the processors busy: more than shortWorkers for each
	// would only compete. A second one is useful: it runs while the answer of the first and the
	// next call are on their way, which takes longer than such a call (decision 017).
	shortCall    = time.Millisecond
	shortWorkers = 2
	// A call that has run for longCall is not short, even with a low average: it most likely waits
	// and needs no processor.
	longCall = 20 * time.Millisecond
	// asyncCalls is the number of simultaneous calls of a worker of coroutines.
	asyncCalls = 1024
)

// state is the mutable state of a pool. Its methods are called only by functions that are passed
// to [Pool.update].
type state struct {
	cfg *Config

	queue   turns.Queue[*job]
	workers []*worker
	idle    []*worker // of plain functions; last in, first out: the others cool down and end
	closed  bool

	starting int // processes being started
	alive    int // existing processes, including ending ones

	busy    int         // calls that have a worker
	depths  map[int]int // the same by depth
	waiting int         // of busy: calls whose tool waits for one that it made

	restarts     int           // workers that ended without being told to
	recycled     int           // workers that were replaced as planned
	service      time.Duration // moving average of the time a call takes
	paces        []pace        // of the tools, by slot
	stands       time.Time     // since when calls have been queued without a pause
	reconsidered time.Time     // last run of giveUp
	// lost is why a session's worker ended, until a call has reported it.
	lost string

	crashes  int       // in a row, without a successful call between
	failedAt time.Time // the last of the crashes
	nextTry  time.Time // no worker is started earlier, see pause

	// Work to do after the update.
	granted   []*job        // calls whose frames are to be sent
	starts    int           // workers to start
	dismissed []*worker     // workers to be told to end
	look      time.Duration // the next look at the queue; 0: none is needed
}

// assign makes j a call of w.
func (s *state) assign(w *worker, j *job) {
	w.places++
	j.first = w.places == 1
	j.worker, j.to, j.since = w, w, time.Now()
	j.before = w.proc.Load(sandbox.WordStarted)
	s.busy++
	s.depths[j.Depth]++
	if s.cfg.Async {
		w.jobs[j.id] = j
	} else {
		w.one = j
		w.proc.Eager(s.busy < runtime.GOMAXPROCS(0) && len(s.queue.Waiting) == 0)
	}
	if j.Lane != nil {
		w.limitTurns()
	}
	s.meter(w)
	s.granted = append(s.granted, j)
}

// release removes a call from its worker.
func (s *state) release(j *job) {
	s.busy--
	s.depths[j.Depth]--
	w := j.worker
	if j.open > 0 {
		s.waiting--
		w.waiting--
	}
	delete(w.jobs, j.id)
	if s.cfg.Async && w.proc.Load(sandbox.WordRunning) == j.id {
		w.proc.Store(sandbox.WordRunning, 0)
		w.metering.ended = true
	}
	if w.one == j {
		w.one = nil
	}
	j.worker = nil
	if j.again != nil {
		j.again.Stop()
	}
	if j.Lane != nil {
		w.limitTurns()
	}
}

// running are the calls that a worker holds.
func (w *worker) running() []*job {
	if w.one != nil {
		return []*job{w.one}
	}
	return slices.Collect(maps.Values(w.jobs))
}

// free reports whether a worker runs no call.
func (w *worker) free() bool { return w.one == nil && len(w.jobs) == 0 }

// pick finds a worker with room, nil without one.
func (s *state) pick() *worker {
	if s.cfg.Async {
		for _, w := range s.workers {
			if s.serves(w) && s.room(w) {
				return w
			}
		}
		return nil
	}
	last := len(s.idle) - 1
	if last < 0 {
		return nil
	}
	w := s.idle[last]
	s.idle = slices.Delete(s.idle, last, last+1)
	return w
}

// room reports whether a worker of coroutines may take one more call.
func (s *state) room(w *worker) bool {
	if s.cfg.Once {
		return w.places == 0
	}
	return len(w.jobs)-w.waiting < asyncCalls
}

// serves reports whether a worker takes calls.
func (s *state) serves(w *worker) bool {
	return !w.retired && (!w.blocked || s.cfg.Session)
}

func (s *state) count(such func(w *worker) bool) (n int) {
	for _, w := range s.workers {
		if such(w) {
			n++
		}
	}
	return n
}

// serving counts the workers that take calls.
func (s *state) serving() int { return s.count(s.serves) }

// most is the greatest number of workers at any time.
func (s *state) most() int {
	if s.cfg.Session {
		return 1
	}
	return s.cfg.MaxWorkers + s.waiting
}

// limit is the greatest number of workers now.
func (s *state) limit() int {
	if s.cfg.Async {
		return 1
	}
	limit := s.most()
	if s.service < shortCall {
		limit = min(limit, shortWorkers*runtime.GOMAXPROCS(0)+s.occupied()+s.waiting)
	}
	return max(limit, 1)
}

// occupied counts the workers with a long call: the average covers only ended calls.
func (s *state) occupied() int {
	now := time.Now()
	return s.count(func(w *worker) bool {
		j := w.one
		return j != nil && !w.retired && j.open == 0 && now.Sub(j.since) > longCall
	})
}

// settle gives queued calls to workers, compares the workers with the wanted ones, and records
// the work to do. It is the end of each update.
func (s *state) settle() {
	if s.closed {
		return
	}
	first := -1
	if len(s.queue.Waiting) > 0 {
		if first = s.dispatch(); len(s.queue.Waiting) > 0 {
			s.giveUp()
		}
	}
	if s.cfg.Once {
		s.restock()
		return
	}
	if first < 0 && len(s.idle) > 0 {
		return
	}
	have := s.serving() + s.starting
	if first < 0 && have > 0 {
		return // the common case: no call waits, and a worker serves
	}
	now := time.Now()
	switch {
	case have == 0 && len(s.queue.Waiting) == 0 && (s.cfg.Session || s.cfg.MinIdle == 0):
		// A session that makes no call needs no worker.
	case have == 0 && len(s.workers) > s.most():
		s.lookAfter(queueDelay) // all are blocked or ending
	case have == 0:
		if wait := s.pause(now); wait > 0 {
			s.lookAfter(wait)
		} else {
			s.start()
		}
	case first >= 0 && s.starting == 0 && have < s.limit():
		if wait := max(queueDelay-s.longest(now), s.pause(now)); wait > 0 {
			s.lookAfter(wait)
		} else {
			s.start()
		}
	case first >= 0 && have < s.most() && !s.cfg.Async:
		s.lookAfter(queueDelay) // the limit may grow when calls turn out to be long
	}
}

// restock starts workers for the queue and the spares of a pool whose workers serve one call
// each. Workers that are being started count: a tool that does not end must not be multiplied.
func (s *state) restock() {
	unused := s.count(func(w *worker) bool { return !w.retired && w.places == 0 })
	missing := s.cfg.Spares - unused - s.starting
	for _, j := range s.queue.Waiting {
		if s.admits(j) { // by itself
			missing++
		}
	}
	if missing <= 0 {
		return
	}
	if wait := s.pause(time.Now()); wait > 0 {
		s.lookAfter(wait)
		return
	}
	for room := s.most() - len(s.workers) - s.starting; missing > 0 && room > 0; room-- {
		s.start()
		missing--
	}
}

func (s *state) start() {
	s.starting++
	s.starts++
}

func (s *state) lookAfter(d time.Duration) {
	if s.look == 0 || d < s.look {
		s.look = d
	}
}

// retire takes a worker out of service; its calls may finish.
func (s *state) retire(w *worker) {
	w.retired = true
	if i := slices.Index(s.idle, w); i >= 0 {
		s.idle = slices.Delete(s.idle, i, i+1)
	}
}

// stop takes a worker out of service that is told to end, which is not a crash.
func (s *state) stop(w *worker) {
	s.retire(w)
	w.stopping = true
}

// dismiss makes a worker without calls end by itself.
func (s *state) dismiss(w *worker) {
	s.stop(w)
	s.dismissed = append(s.dismissed, w)
}

// refuses is the error of a call to a closed pool, or of the first one after the session's worker
// was lost.
func (s *state) refuses() *toolmesh.Error {
	switch {
	case s.closed:
		return s.shut()
	case s.lost != "":
		why := s.lost
		s.lost = ""
		return failure.StateGone(why)
	}
	return nil
}

// shut is the error of a call to a closed pool.
func (s *state) shut() *toolmesh.Error {
	if s.cfg.Session {
		return failure.Unavailable("the session has ended")
	}
	return failure.Unavailable("the index %s is closed", s.cfg.Index)
}

// empty takes all calls off the queue.
func (s *state) empty() []*job {
	queued := s.queue.Waiting
	s.queue.Waiting = nil
	return queued
}

// longest is the longest wait of a queued call.
func (s *state) longest(now time.Time) (d time.Duration) {
	for _, j := range s.queue.Waiting {
		d = max(d, now.Sub(j.since))
	}
	return d
}

// A worker that ends unexpectedly is replaced. If that repeats, because the import or the fork
// fails, each costs a start: starts become rarer, and calls get the error after a second at
// most.
const (
	// Crashes in a row that are repaired at once.
	freeCrashes = 3
	// After those a start waits, at first for this time, doubling each time up to the last.
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 30 * time.Second
	// A call does not wait longer than this for the next try.
	callBackoff = time.Second
)

// crashed records a worker's unexpected end and sets when the next one may start.
func (s *state) crashed() {
	s.crashes++
	s.failedAt = time.Now()
	if excess := s.crashes - freeCrashes; excess > 0 {
		wait := min(firstBackoff<<min(excess-1, 16), lastBackoff)
		s.nextTry = s.failedAt.Add(wait/2 + rand.N(wait/2+1)) //nolint:gosec // jitter
	}
}

// pause is the time until a worker may be started.
func (s *state) pause(now time.Time) time.Duration {
	at := s.nextTry
	if soon := s.failedAt.Add(callBackoff); len(s.queue.Waiting) > 0 && soon.Before(at) {
		at = soon
	}
	return max(at.Sub(now), 0)
}
