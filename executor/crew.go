package executor

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/failure"
	"github.com/toolmesh/toolmesh/executor/frame"
	"github.com/toolmesh/toolmesh/executor/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// A call that waited this long gets another worker forked.
	patience = 3 * time.Millisecond
	// Calls shorter than this keep the processors busy: more workers than
	// briefWorkers for each would only get in each other's way. A second one is of
	// use: it runs while the answer of the first is on its way and the next call
	// wakes it, which takes longer than such a call. (64 callers, 2 processors:
	// 15 to 35 % more calls a second than with one worker each, and no more with a
	// third.)
	brief        = time.Millisecond
	briefWorkers = 2
	// A call that has run for so long is no brief one, whatever those before it
	// were: it waits for something, most likely, and needs no processor.
	lengthy = 20 * time.Millisecond
	// An event loop that gives no sign of life for this long is blocked. It is
	// looked at so often meanwhile: the looks count, not the clock, for time in
	// which we have not run either, as in a machine that stood still, says nothing.
	blockedAfter = time.Second
	blockedLooks = 4
	// Calls that one worker of coroutines holds at once.
	asyncCalls = 1024
	// A worker that holds so many gets its calls together: others are about to
	// come or go, most likely, and a write for each costs more than all the rest.
	crowd = 16
	// Bytes of calls that are written without waiting for more: the worker begins
	// with them while others are yet to be made.
	gathered = 4 << 10
	// A cancelled call is signalled again after this long, doubling to the second.
	firstInsistence = 2 * time.Millisecond
	lastInsistence  = 100 * time.Millisecond
)

// crew is the workers of one key, and the queue before them: first come, first
// served.
type crew struct {
	index  *Index
	family *family
	key    workerKey
	async  bool // as the key has it
	once   bool // a worker serves one call and ends
	spares int  // of once: how many workers wait for calls to come
	// affinity is that of the session whose crew this is; empty for all others.
	affinity tool.Affinity

	mu       sync.Mutex
	queue    fifo
	idle     []*worker // last in, first out: the others cool down and are reaped
	workers  map[*worker]struct{}
	starting int
	busy     int
	deep     int         // of busy: calls that tools made
	depths   map[int]int // the same by depth, from 1
	waiting  int         // of busy: calls whose tool waits for one that it made
	watching bool        // a look at the queue is scheduled
	closed   bool
	crashes  int // in a row, without a call that ended well between
	restarts int
	recycled int           // workers that were replaced in good order
	failedAt time.Time     // the last of the crashes
	nextTry  time.Time     // no worker is started before, see pause
	lookAt   time.Time     // when watching: the time of that look
	forgot   string        // why a session's worker ended that nobody has been told of
	service  time.Duration // moving average of the time a call takes
}

// submit gives a call to a worker, or queues it: then it makes the call's turn.
func (c *crew) submit(j *job) *toolmesh.Error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.shut()
	}
	if c.forgot != "" {
		err := c.refuses(j)
		c.mu.Unlock()
		return err
	}
	var w *worker
	if c.admits(j) {
		w = c.pick()
	}
	if w == nil {
		if err := c.refuses(j); err != nil {
			c.mu.Unlock()
			return err
		}
	}
	if w == nil {
		j.since = time.Now()
		j.turn = make(chan *toolmesh.Error, 1)
		c.queue.push(j)
		c.reconcile()
		c.mu.Unlock()
		return nil
	}
	c.assign(w, j)
	if c.once {
		c.reconcile()
	}
	crowded := len(w.jobs) > crowd
	c.mu.Unlock()
	if crowded {
		w.callCrowded(j)
	} else {
		w.call(j)
	}
	return nil
}

// granted tells a call that was queued that a worker has it, and its frame is
// written by now; or with an error that it gets none.
func granted(j *job, err *toolmesh.Error) {
	if j.turn != nil {
		j.turn <- err
	}
}

// wait waits for a queued call's turn; an error when it never comes.
func (c *crew) wait(ctx context.Context, j *job) *toolmesh.Error {
	if j.turn == nil {
		return nil
	}
	select {
	case err := <-j.turn:
		return err
	case <-ctx.Done():
		c.mu.Lock()
		queued := j.worker == nil && c.queue.remove(j)
		c.mu.Unlock()
		if queued {
			return failure.Ended(ctx, toolmesh.StartedNo)
		}
		return <-j.turn // it has just come
	}
}

// pick finds a worker with room. The lock is held.
func (c *crew) pick() *worker {
	if c.async {
		for w := range c.workers {
			if c.serves(w) && c.room(w) {
				return w
			}
		}
		return nil
	}
	n := len(c.idle)
	if n == 0 {
		return nil
	}
	at := n - 1
	if c.affinity == tool.AffinityHint {
		for i, w := range c.idle {
			if w.id < c.idle[at].id {
				at = i // the first of the session's knows most
			}
		}
	}
	w := c.idle[at]
	c.idle = slices.Delete(c.idle, at, at+1)
	return w
}

// assign makes j a call of w. The lock is held; the caller writes the frame.
func (c *crew) assign(w *worker, j *job) {
	w.places++
	j.worker, j.since = w, time.Now()
	j.before = w.page.Load(sandbox.WordStarted)
	c.hold(j)
	if c.async {
		w.jobs[j.id] = j
	} else {
		w.current.Store(j)
		w.from.brisk = c.busy < runtime.GOMAXPROCS(0) && c.queue.len() == 0
	}
	if watched(c.key.limits) {
		c.metered(w)
	}
}

// over notes that a call ended well for its worker. The lock is held.
func (c *crew) over(j *job) {
	c.release(j)
	c.crashes = 0
	c.service += (time.Since(j.since) - c.service) / 8
	j.calm()
}

// finishedPlain takes a call off its worker of plain functions and gives the
// worker its next call.
func (c *crew) finishedPlain(w *worker, j *job) {
	c.mu.Lock()
	c.over(j)
	select {
	case <-w.exited: // after its answer, and it found nobody idle to tell
		w.retired = true
		c.mu.Unlock()
		c.index.wg.Go(func() { w.finish(nil) })
		return
	default:
	}
	if c.once || w.retired {
		c.dismiss(w)
		c.reconcile()
		c.mu.Unlock()
		return
	}
	c.counted(w)
	next := c.next()
	if next != nil {
		c.assign(w, next)
	} else {
		w.idleSince = j.since
		c.idle = append(c.idle, w)
	}
	c.mu.Unlock()
	if next != nil {
		w.call(next)
		granted(next, nil)
	}
}

// finishedCoroutine takes the call of a terminal frame off its worker, and gives
// the worker a call that waits. nil when nobody waits for the ended call any more.
func (c *crew) finishedCoroutine(w *worker, id uint64) *job {
	c.mu.Lock()
	j := w.jobs[id]
	var next *job
	if j == nil {
		w.abandoned = max(0, w.abandoned-1)
	} else {
		delete(w.jobs, id)
		c.over(j)
		c.counted(w)
	}
	if c.once || w.retired {
		if len(w.jobs) == 0 {
			c.dismiss(w)
			c.reconcile()
		}
	} else if c.room(w) {
		if next = c.next(); next != nil {
			c.assign(w, next)
		}
	}
	c.mu.Unlock()
	if next != nil {
		w.call(next)
		granted(next, nil)
	}
	return j
}

// room reports whether a worker of coroutines may take one more call. The lock
// is held.
func (c *crew) room(w *worker) bool {
	if c.once {
		return w.places == 0
	}
	return len(w.jobs)-w.waiting < asyncCalls
}

// interrupt stops a call that a worker has: by a cancellation, and after the
// grace with its worker. It returns at once; the call's end comes as ever.
func (c *crew) interrupt(j *job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := j.worker
	if w == nil || j.grace != nil {
		return
	}
	w.cancel(j)
	c.insist(j, firstInsistence)
	j.grace = time.AfterFunc(c.index.x.opts.Grace, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if j.worker != w {
			return
		}
		j.killed = true
		w.retired, w.stopping = true, true
		if !c.async {
			w.kill()
			return
		}
		// Its other calls are let go on. We no longer wait for this one.
		delete(w.jobs, j.id)
		w.abandoned++
		begun := w.begun(j)
		c.release(j)
		if len(w.jobs) == 0 {
			w.kill()
		}
		c.reconcile()
		j.err = failure.Crashed(j.tool.Name, sandbox.Exit{Lost: true}, begun, "")
		j.done <- struct{}{}
	})
}

// insist signals a cancelled call again, until its worker has heard: a signal
// that arrives between the last look at it and a system call is only seen when
// that returns, and one that finds the worker's own code, or another coroutine,
// hits nothing. The lock is held.
func (c *crew) insist(j *job, after time.Duration) {
	w := j.worker
	j.again = time.AfterFunc(after/2+rand.N(after), func() { //nolint:gosec // two calls of one worker must not keep step
		c.mu.Lock()
		defer c.mu.Unlock()
		if j.worker != w || w.page.Load(sandbox.WordHeard) == j.id {
			return
		}
		w.signal(j)
		c.insist(j, min(2*after, lastInsistence))
	})
}

// leaveIdle takes a worker of plain functions that runs nothing out of service;
// true when nobody reads from it.
func (c *crew) leaveIdle(w *worker) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, one := range c.idle {
		if one == w {
			c.idle = slices.Delete(c.idle, i, i+1)
			w.retired = true
			return true
		}
	}
	return w.retired && w.stopping && !c.async && w.current.Load() == nil
}

// most is how many workers there may ever be.
func (c *crew) most() int {
	if c.keeps() {
		return 1
	}
	return c.index.maxWorkers() + c.waiting
}

// least is how many workers stay when nobody calls.
func (c *crew) least() int {
	if c.key.suspect != "" {
		return 0
	}
	return 1
}

// limit is how many workers there may be now. The lock is held.
func (c *crew) limit() int {
	limit := c.most()
	if c.async {
		return 1
	}
	if c.service < brief {
		limit = min(limit, briefWorkers*runtime.GOMAXPROCS(0)+c.occupied()+c.waiting)
	}
	return max(limit, 1)
}

// occupied counts the workers whose call turned out to be a long one: the
// average knows only of calls that have ended. The lock is held.
func (c *crew) occupied() int {
	n, now := 0, time.Now()
	for w := range c.workers {
		if j := w.current.Load(); j != nil && !w.retired && j.open == 0 && now.Sub(j.since) > lengthy {
			n++
		}
	}
	return n
}

// serves reports whether a worker takes calls. The lock is held.
func (c *crew) serves(w *worker) bool { return !w.retired && (!w.blocked || c.keeps()) }

// serving counts the workers that take calls. The lock is held.
func (c *crew) serving() int {
	n := 0
	for w := range c.workers {
		if c.serves(w) {
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
	first := c.dispatch()
	if c.once {
		c.restock()
		return
	}
	have := c.serving() + c.starting
	now := time.Now()
	switch {
	case have == 0 && (c.affinity != "" || c.least() == 0) && c.queue.len() == 0:
		// A session that makes no call needs no worker.
	case have == 0 && len(c.workers) > c.most():
		c.look(patience) // all are blocked, or on their way out
	case have == 0:
		if wait := c.pause(now); wait > 0 {
			c.look(wait)
			return
		}
		c.start()
	case first >= 0 && c.starting == 0 && have < c.limit():
		// The first that may have a worker has waited longest.
		waited := now.Sub(c.queue.list[first].since)
		if wait := max(patience-waited, c.pause(now)); wait > 0 {
			c.look(wait)
		} else {
			c.start()
		}
	case first >= 0 && have < c.most() && !c.async:
		c.look(patience) // the limit may grow when calls turn out to be long
	}
}

// dismiss has a worker that runs nothing end by itself, in the background. The
// lock is held.
func (c *crew) dismiss(w *worker) {
	w.retired, w.stopping = true, true
	c.index.wg.Go(func() { w.stop(c.index.x.opts.Grace) })
}

// start forks a worker in the background. The lock is held.
func (c *crew) start() {
	c.starting++
	c.index.wg.Go(func() {
		w, err := c.family.newWorker(c)
		c.mu.Lock()
		c.starting--
		if err == nil && c.closed {
			w.stopping, w.retired = true, true
			c.mu.Unlock()
			w.finish(nil)
			return
		}
		if err == nil {
			if w.retired { // it ended between its first words and now
				c.crashed()
				c.restarts++
			}
			next := c.join(w)
			c.reconcile()
			c.mu.Unlock()
			for _, j := range next {
				w.call(j)
				granted(j, nil)
			}
			return
		}
		c.crashed()
		c.restarts++
		var failed []*job
		if c.serving() == 0 && c.starting == 0 {
			for j := c.queue.pop(); j != nil; j = c.queue.pop() {
				failed = append(failed, j)
			}
		}
		if !c.closed {
			c.index.log.Error("cannot start a worker", slog.Any("error", err))
			c.look(c.pause(time.Now()))
		}
		c.mu.Unlock()
		for _, j := range failed {
			granted(j, failure.Unavailable("no worker of %s can be started: %s", c.index.spec.Name, err))
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
	w.idleSince = time.Now()
	c.born(w)
	var next []*job
	for {
		j := c.next()
		if j == nil {
			break
		}
		c.assign(w, j)
		next = append(next, j)
		if !c.async || !c.room(w) {
			break
		}
	}
	if len(next) == 0 && !c.async {
		c.idle = append(c.idle, w)
	}
	return next
}

// lost takes a worker that has ended out of service: its calls fail, and another
// is started if one is needed.
func (c *crew) lost(w *worker, cause error) {
	c.mu.Lock()
	_, joined := c.workers[w]
	delete(c.workers, w)
	if i := slices.Index(c.idle, w); i >= 0 {
		c.idle = slices.Delete(c.idle, i, i+1)
	}
	w.retired = true
	c.reckon(w)
	var failed, orphaned []*job
	var gone *toolmesh.Error // for the orphaned
	for _, j := range w.jobs {
		failed = append(failed, j)
	}
	clear(w.jobs)
	if j := w.current.Swap(nil); j != nil {
		failed = append(failed, j)
	}
	tools := map[*served]struct{}{}
	for _, j := range failed {
		tools[j.tool] = struct{}{}
	}
	for _, j := range failed {
		j.fatal, j.shared, j.innocent = w.id, len(tools) > 1, w.exit.Lost || w.stopping
		j.err = failure.Crashed(j.tool.Name, w.exit, w.begun(j), w.tail.of(j.session))
		j.calm()
		c.release(j)
	}
	if c.keeps() && !c.closed {
		why := "it ended: " + w.exit.String()
		if len(failed) == 0 && !w.stopping {
			c.forgot = why
		}
		for _, j := range failed {
			j.err = j.err.WithDetail("session_state", "lost")
		}
		for j := c.queue.pop(); j != nil; j = c.queue.pop() {
			orphaned, gone = append(orphaned, j), stateGone(why)
		}
	}
	if joined && !w.stopping && !c.closed { // one that never joined is start's affair
		c.restarts++
		if len(failed) == 0 {
			c.crashed() // what dies in a call is the tool's affair, and its quarantine's
		}
		c.index.log.Warn("a worker ended", slog.String("exit", w.exit.String()), slog.Int("calls", len(failed)),
			slog.Any("cause", cause))
	}
	w.page.Close()
	c.reconcile()
	c.mu.Unlock()
	if c.async {
		for _, j := range failed {
			j.done <- struct{}{}
		}
	}
	for _, j := range orphaned {
		granted(j, gone)
	}
}

// shut is the error of a call that finds its crew closed.
func (c *crew) shut() *toolmesh.Error {
	if c.affinity != "" {
		return failure.Unavailable("the session has ended")
	}
	return failure.Unavailable("the index %s is closed", c.index.spec.Name)
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
		granted(j, failure.Unavailable("the index %s is closed", c.index.spec.Name))
	}
}

// probe asks each event loop that has calls for a sign of life. One that gives
// none for a second is blocked by a coroutine that computes or waits without
// await: new calls go elsewhere until it answers.
func (c *crew) probe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.workers {
		switch {
		case (w.retired && w.abandoned == 0) || len(w.jobs) == 0:
		case w.silent == 0:
			w.silent = 1
			w.send(frame.Header{Type: frame.Ping, ID: w.id}, nil, nil)
		case w.silent < blockedLooks:
			w.silent++
		case w.retired:
			w.kill() // by a call that was given up: the others there will never end
		case !w.blocked:
			w.blocked = true
			c.index.log.Warn("a coroutine blocks its event loop, new calls go to another worker",
				slog.Int("pid", w.handle.Pid()), slog.Int("calls", len(w.jobs)))
			c.reconcile()
		}
	}
}

// answered notes a sign of life.
func (c *crew) answered(w *worker) {
	c.mu.Lock()
	w.silent, w.blocked = 0, false
	w.idleSince = time.Now()
	c.mu.Unlock()
}

// reap ends workers that were idle for long, down to one.
func (c *crew) reap(idleAfter time.Duration) {
	c.mu.Lock()
	if c.once {
		c.reapSpares(idleAfter)
		c.mu.Unlock()
		return
	}
	var old []*worker
	if c.async {
		for w := range c.workers {
			if !w.retired && len(w.jobs) == 0 && c.serving() > c.least() && time.Since(w.idleSince) >= idleAfter {
				old = append(old, w)
				w.retired = true
			}
		}
	}
	for len(c.idle) > 0 && c.serving() > c.least() && time.Since(c.idle[0].idleSince) >= idleAfter {
		w := c.idle[0]
		c.idle = slices.Delete(c.idle, 0, 1)
		w.retired = true
		old = append(old, w)
	}
	for _, w := range old {
		c.dismiss(w)
	}
	c.mu.Unlock()
}

// runPlain makes a call of a plain function: the caller itself reads what its
// worker says. The outcome is in j. An error that item returned stops the call
// and is returned.
func (c *crew) runPlain(ctx context.Context, j *job, item func(data []byte) error) error {
	if err := c.wait(ctx, j); err != nil {
		j.err = err
		return nil
	}
	w := j.worker
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, func() { c.interrupt(j) })
	}
	kind, body, refused, err := w.follow(j, item)
	over := !stop()
	if kind == 0 {
		w.finish(err) // sets j.err
	} else {
		c.finishedPlain(w, j)
		j.kind, j.body = kind, body
	}
	if over {
		c.endedJob(ctx, j)
	}
	return refused
}

// runCoroutine makes a call of a coroutine. As runPlain.
func (c *crew) runCoroutine(ctx context.Context, j *job, item func(data []byte) error) error {
	if err := c.wait(ctx, j); err != nil {
		j.err = err
		return nil
	}
	done := ctx.Done()
	over := false
	var refused error
	for {
		select {
		case <-j.done:
			if refused == nil && !over && item != nil {
				refused = j.deliver(item)
			}
			if over {
				c.endedJob(ctx, j)
			}
			return refused
		case <-j.items.notify:
			if refused == nil && !over {
				if refused = j.deliver(item); refused != nil {
					c.interrupt(j)
				}
			}
		case <-done:
			over, done = true, nil
			c.interrupt(j)
		}
	}
}

// deliver hands over the items that have arrived.
func (j *job) deliver(item func(data []byte) error) error {
	for {
		j.items.mu.Lock()
		list := j.items.list
		j.items.list = nil
		j.items.mu.Unlock()
		if len(list) == 0 {
			return nil
		}
		for _, data := range list {
			if err := item(data); err != nil {
				return err
			}
		}
	}
}

// taker gives a stream's items to its sink, and room for more to the worker
// when half of what it had is used up.
func (c *crew) taker(ctx context.Context, j *job) func(data []byte) error {
	used := 0
	return func(data []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := j.sink.Item(ctx, data); err != nil {
			return err
		}
		if used += len(data) + itemCost; used >= window/2 {
			c.mu.Lock()
			if w := j.worker; w != nil {
				w.credit(j.id, used)
			}
			c.mu.Unlock()
			used = 0
		}
		return nil
	}
}

// endedJob turns the outcome of a call into that of one whose context ended.
func (c *crew) endedJob(ctx context.Context, j *job) {
	begun := toolmesh.StartedYes
	switch {
	case j.err != nil:
		begun = j.err.Started
	case j.kind == frame.Error:
		begun = failure.FromWorker(j.body).Started
	}
	j.kind, j.body = 0, nil
	j.err = failure.Ended(ctx, begun)
	c.mu.Lock()
	killed := j.killed
	c.mu.Unlock()
	if killed {
		j.err = j.err.WithDetail("killed", true)
	}
}
