package executor

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/frame"
)

const (
	// A call that waited this long gets another worker forked.
	patience = 3 * time.Millisecond
	// Calls shorter than this keep the processors busy: more workers than
	// processors would only get in each other's way.
	brief = time.Millisecond
	// Calls that one worker of coroutines holds at once.
	asyncCalls = 1024
	// Restarts wait this long after repeated crashes, doubling to the second.
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = time.Second
	// Crashes in a row that are repaired at once.
	freeCrashes = 3
)

// crew is the workers of one kind, of plain functions or of coroutines, and the
// queue before them: first come, first served.
type crew struct {
	index *Index
	async bool

	mu       sync.Mutex
	queue    fifo
	idle     []*worker // last in, first out: the others cool down and are reaped
	workers  map[*worker]struct{}
	starting int
	busy     int
	watching bool // a look at the queue is scheduled
	closed   bool
	crashes  int // in a row, without a call that ended well between
	restarts int
	nextTry  time.Time
	service  time.Duration // moving average of the time a call takes
}

// fifo is a queue of jobs with cheap ends.
type fifo struct {
	list []*job
	head int
}

func (q *fifo) len() int { return len(q.list) - q.head }

func (q *fifo) push(j *job) { q.list = append(q.list, j) }

func (q *fifo) pop() *job {
	if q.len() == 0 {
		return nil
	}
	j := q.list[q.head]
	q.list[q.head] = nil
	q.head++
	if q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	} else if q.head > 1024 && q.head > len(q.list)/2 {
		q.list = append(q.list[:0], q.list[q.head:]...)
		q.head = 0
	}
	return j
}

func (q *fifo) remove(j *job) bool {
	for i := q.head; i < len(q.list); i++ {
		if q.list[i] == j {
			q.list = append(q.list[:i], q.list[i+1:]...)
			return true
		}
	}
	return false
}

// submit gives a call to a worker, or queues it.
func (c *crew) submit(j *job) *toolmesh.Error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return unavailable("the index %s is closed", c.index.spec.Name)
	}
	w := c.pick()
	if w == nil {
		j.since = time.Now()
		c.queue.push(j)
		c.reconcile()
		c.mu.Unlock()
		return nil
	}
	c.assign(w, j)
	c.mu.Unlock()
	w.call(j)
	return nil
}

// pick finds a worker with room. The lock is held.
func (c *crew) pick() *worker {
	if c.async {
		limit := asyncCalls
		if own := c.index.spec.Concurrency; own > 0 {
			if c.busy >= own {
				return nil
			}
			limit = own
		}
		var best *worker
		for w := range c.workers {
			if !w.retired && len(w.jobs) < limit && (best == nil || len(w.jobs) < len(best.jobs)) {
				best = w
			}
		}
		return best
	}
	if n := len(c.idle); n > 0 {
		w := c.idle[n-1]
		c.idle = c.idle[:n-1]
		w.idle = false
		return w
	}
	return nil
}

// assign makes j a call of w. The lock is held; the caller writes the frame.
func (c *crew) assign(w *worker, j *job) {
	w.turns++
	j.worker, j.turn, j.since = w, w.turns, time.Now()
	w.jobs[j.id] = j
	c.busy++
	if !c.async {
		w.current.Store(j)
	}
}

// finished takes the call of a terminal frame off its worker and gives the
// worker its next call. nil when nobody waits for the call any more.
func (c *crew) finished(w *worker, id uint64) *job {
	c.mu.Lock()
	j := w.jobs[id]
	if j == nil {
		kill := false
		if w.abandoned > 0 {
			w.abandoned--
			kill = w.retired && w.abandoned == 0 && len(w.jobs) == 0
		}
		c.mu.Unlock()
		if kill {
			w.kill()
		}
		return nil
	}
	delete(w.jobs, id)
	c.busy--
	c.crashes = 0
	c.service += (time.Since(j.since) - c.service) / 8
	if !c.async {
		w.current.Store(nil)
	}
	if w.retired {
		done := len(w.jobs) == 0
		c.mu.Unlock()
		if done {
			w.kill()
		}
		return j
	}
	next := c.queue.pop()
	if next != nil {
		c.assign(w, next)
	} else if !c.async {
		w.idle, w.idleSince = true, time.Now()
		c.idle = append(c.idle, w)
	}
	c.mu.Unlock()
	if next != nil {
		w.call(next)
	}
	return j
}

// withdraw takes a call out of the queue; false when a worker has it or it has ended.
func (c *crew) withdraw(j *job) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return j.worker == nil && c.queue.remove(j)
}

// abandon stops waiting for a call that ignored its cancellation. Its worker
// takes no new one and is ended when its other calls are. False when the call
// has ended after all.
func (c *crew) abandon(j *job) bool {
	j.worker.logMu.Lock() // no record is handed over after this
	defer j.worker.logMu.Unlock()
	c.mu.Lock()
	w := j.worker
	if w.jobs[j.id] != j {
		c.mu.Unlock()
		return false
	}
	delete(w.jobs, j.id)
	w.abandoned++
	w.retired, w.stopping = true, true
	c.busy--
	kill := len(w.jobs) == 0
	c.reconcile()
	c.mu.Unlock()
	if kill {
		w.kill()
	}
	return true
}

// limit is how many workers there may be now. The lock is held.
func (c *crew) limit() int {
	limit := c.index.maxWorkers()
	if c.async {
		return 1
	}
	if c.service < brief {
		limit = min(limit, runtime.GOMAXPROCS(0))
	}
	return max(limit, 1)
}

// serving counts the workers that take calls. The lock is held.
func (c *crew) serving() int {
	n := 0
	for w := range c.workers {
		if !w.retired {
			n++
		}
	}
	return n
}

// reconcile compares what is there with what is wanted, and starts a worker or
// schedules the next look. The lock is held.
func (c *crew) reconcile() {
	if c.closed {
		return
	}
	have := c.serving() + c.starting
	now := time.Now()
	switch {
	case have == 0:
		if wait := c.nextTry.Sub(now); wait > 0 {
			c.look(wait)
			return
		}
		c.start()
	case c.queue.len() > 0 && c.starting == 0 && have < c.limit():
		// The head of the queue has waited longest.
		waited := now.Sub(c.queue.list[c.queue.head].since)
		if waited >= patience {
			c.start()
		} else {
			c.look(patience - waited)
		}
	case c.queue.len() > 0 && have < c.index.maxWorkers() && !c.async:
		c.look(patience) // the limit may grow when calls turn out to be long
	}
}

// look calls reconcile after a while. The lock is held.
func (c *crew) look(after time.Duration) {
	if c.watching {
		return
	}
	c.watching = true
	c.index.after(after, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watching = false
		c.reconcile()
	})
}

// start forks a worker in the background. The lock is held.
func (c *crew) start() {
	c.starting++
	c.index.wg.Go(func() {
		w, err := c.index.newWorker(c)
		c.mu.Lock()
		c.starting--
		if err == nil && c.closed {
			w.stopping = true
			c.mu.Unlock()
			w.kill()
			return
		}
		if err == nil {
			next := c.join(w)
			c.reconcile()
			c.mu.Unlock()
			for _, j := range next {
				w.call(j)
			}
			return
		}
		c.crashed()
		var failed []*job
		if c.serving() == 0 && c.starting == 0 {
			for j := c.queue.pop(); j != nil; j = c.queue.pop() {
				failed = append(failed, j)
			}
		}
		if !c.closed {
			c.index.log.Error("cannot start a worker", slog.Any("error", err))
			c.look(time.Until(c.nextTry))
		}
		c.mu.Unlock()
		for _, j := range failed {
			j.err = unavailable("no worker of %s can be started: %s", c.index.spec.Name, err)
			j.done <- struct{}{}
		}
	})
}

// join adds a ready worker and gives it what waits. The lock is held; the
// caller sends the calls. A worker that ended meanwhile is not added.
func (c *crew) join(w *worker) []*job {
	if w.retired {
		return nil
	}
	c.workers[w] = struct{}{}
	var next []*job
	for {
		j := c.queue.pop()
		if j == nil {
			break
		}
		c.assign(w, j)
		next = append(next, j)
		if !c.async || len(w.jobs) >= asyncCalls {
			break
		}
	}
	if len(next) == 0 && !c.async {
		w.idle, w.idleSince = true, time.Now()
		c.idle = append(c.idle, w)
	}
	return next
}

// crashed notes a worker's unwanted end and sets when the next may start. The
// lock is held.
func (c *crew) crashed() {
	c.crashes++
	c.restarts++
	if over := c.crashes - freeCrashes; over > 0 {
		wait := min(firstBackoff<<min(over-1, 10), lastBackoff)
		c.nextTry = time.Now().Add(wait/2 + rand.N(wait/2+1)) //nolint:gosec // jitter
	}
}

// lost finishes a worker that has ended: its calls fail, and another is started
// if one is needed.
func (c *crew) lost(w *worker, cause error) {
	c.mu.Lock()
	delete(c.workers, w)
	for i, one := range c.idle {
		if one == w {
			c.idle = append(c.idle[:i], c.idle[i+1:]...)
			break
		}
	}
	w.current.Store(nil)
	w.retired = true
	failed := make([]*job, 0, len(w.jobs))
	for _, j := range w.jobs {
		failed = append(failed, j)
		j.err = crashed(j.tool.Name, w.exit, w.begun(j), w.tail.String())
		c.busy--
	}
	clear(w.jobs)
	if !w.stopping && !c.closed {
		c.crashed()
		c.index.log.Warn("a worker ended", slog.String("exit", w.exit.String()), slog.Int("calls", len(failed)),
			slog.Any("cause", cause))
	}
	w.page.Close()
	c.reconcile()
	c.mu.Unlock()
	for _, j := range failed {
		j.done <- struct{}{}
	}
}

// close refuses further calls and fails the queued ones. From here on a
// worker's end is no crash.
func (c *crew) close() {
	c.mu.Lock()
	c.closed = true
	for w := range c.workers {
		w.stopping = true
	}
	var failed []*job
	for j := c.queue.pop(); j != nil; j = c.queue.pop() {
		failed = append(failed, j)
	}
	c.mu.Unlock()
	for _, j := range failed {
		j.err = unavailable("the index %s is closed", c.index.spec.Name)
		j.done <- struct{}{}
	}
}

// reap ends workers that were idle for long, down to one.
func (c *crew) reap(idleAfter time.Duration) {
	c.mu.Lock()
	var old []*worker
	for len(c.idle) > 0 && c.serving() > 1 && time.Since(c.idle[0].idleSince) >= idleAfter {
		w := c.idle[0]
		c.idle = c.idle[1:]
		w.idle, w.retired, w.stopping = false, true, true
		old = append(old, w)
	}
	c.mu.Unlock()
	for _, w := range old {
		c.index.wg.Go(func() { w.stop(c.index.x.opts.Grace) })
	}
}

// await waits for the outcome of a submitted call; when ctx ends, it sees to it
// that the work stops.
func (c *crew) await(ctx context.Context, j *job) {
	select {
	case <-j.done:
	case <-ctx.Done():
		c.stopJob(ctx, j)
	}
}

// stopJob ends a call: out of the queue, else by a cancellation, else, after
// the grace, with its worker. The outcome is set and done is consumed.
func (c *crew) stopJob(ctx context.Context, j *job) {
	if c.withdraw(j) {
		j.err = ended(ctx, toolmesh.StartedNo)
		return
	}
	c.mu.Lock()
	w := j.worker
	running := w != nil && w.jobs[j.id] == j
	if running {
		w.cancel(j) // under the lock: the page is unmapped under it too
	}
	c.mu.Unlock()
	killed := false
	if running {
		timer := time.NewTimer(c.index.x.opts.Grace)
		select {
		case <-j.done:
			timer.Stop()
		case <-timer.C:
			killed = true
			if c.async {
				if c.abandon(j) {
					break
				}
			} else {
				c.mu.Lock()
				if w.jobs[j.id] == j {
					w.stopping, w.retired = true, true
					w.kill()
				}
				c.mu.Unlock()
			}
			<-j.done
		}
	} else {
		<-j.done
	}
	begun := toolmesh.StartedYes
	switch {
	case j.err != nil:
		begun = j.err.Started
	case j.kind == frame.Error:
		begun = fromWorker(j.body).Started
	}
	j.kind, j.body = 0, nil
	j.err = ended(ctx, begun)
	if killed {
		j.err = j.err.WithDetail("killed", true)
	}
}
