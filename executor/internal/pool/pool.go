package pool

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// endTimeout is how long a killed process may take to end.
const endTimeout = 5 * time.Second

// Config has the settings that a pool's workers share. All times and numbers must be set, except
// those documented as zero.
type Config struct {
	Index  string // its name, for messages
	Logger *slog.Logger
	Redact *output.Redactor // removes secrets from output that bypasses the protocol; may be nil

	// Async tells that workers run coroutines, many at a time, instead of plain functions,
	// one at a time.
	Async  bool
	Once   bool // each worker serves one call and ends
	Spares int  // idle workers kept with Once; may be 0
	// MinIdle is how many workers are kept without calls. With 0 the first call starts the first
	// worker.
	MinIdle int
	// Session tells that a session owns the pool: its state is in the only worker, which the
	// first call starts.
	Session bool

	MaxWorkers int // that run calls
	// MaxCalls limits simultaneous calls, without those that wait for a nested call; 0: the
	// workers' capacity.
	MaxCalls int
	Limits   tool.Limits // of one call; zero fields mean no limit
	Declared tool.Limits // the limits that the tools declare; the others are the node's

	Grace        time.Duration // from a call's cancellation to the end of its worker
	StartTimeout time.Duration // from a worker's start until it is ready
	IdleAfter    time.Duration // after which an idle worker is ended
	Recycle      Recycle
	MaxFrame     uint32 // bytes
}

// Pool is a set of equal workers with one queue, which serves accounts fairly and each account
// first come, first served. Its methods may be called concurrently.
type Pool struct {
	cfg      Config
	log      *slog.Logger
	spawn    func(ctx context.Context) (Process, error)
	nextCall atomic.Uint64

	watchEvery time.Duration // interval of the watchdog; 0 without a watchdog

	limited chan struct{}   // capacity 1: a call with limits begins
	open    context.Context //nolint:containedctx // until no more workers are started: an update cannot be given one
	shut    context.CancelFunc
	gone    chan struct{} // closed when the pool is closed and its last process has ended
	wg      sync.WaitGroup

	mu    sync.Mutex
	state state
	look  *time.Timer // triggers an update when something is due
}

// New makes a pool. spawn starts one worker process, which sends READY when it can
// take calls; it may be called concurrently.
func New(cfg Config, spawn func(ctx context.Context) (Process, error)) *Pool {
	p := &Pool{cfg: cfg, log: cfg.Logger, spawn: spawn, limited: make(chan struct{}, 1), gone: make(chan struct{})}
	p.open, p.shut = context.WithCancel(context.Background())
	p.state.cfg, p.state.depths = &p.cfg, map[int]int{}
	p.look = time.AfterFunc(time.Hour, func() { p.update(func(*state) {}) })
	p.look.Stop()
	p.wg.Go(p.maintain)
	if p.watchEvery = sandbox.Pace(cfg.Declared, cfg.Limits); p.watchEvery > 0 {
		p.wg.Go(p.watch)
	}
	return p
}

// update changes the state, as no other function does: f records an event; then update finds
// and starts the consequences for the queue and the workers. f must not block or call update.
func (p *Pool) update(f func(s *state)) {
	p.mu.Lock()
	s := &p.state
	f(s)
	s.settle()
	granted := s.granted
	s.granted = nil
	if s.starts > 0 || len(s.dismissed) > 0 || s.look > 0 {
		p.begin(s)
	}
	if s.closed && s.alive+s.starting == 0 {
		select {
		case <-p.gone:
		default:
			close(p.gone)
		}
	}
	p.mu.Unlock()
	for _, j := range granted {
		j.to.call(j)
		if j.turn != nil {
			j.turn <- nil
		}
	}
}

// read looks at the state. f must not change it.
func (p *Pool) read(f func(s *state)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.state)
}

// begin starts the work that an update has found.
func (p *Pool) begin(s *state) {
	for ; s.starts > 0; s.starts-- {
		p.wg.Go(func() { _ = p.start() })
	}
	for _, w := range s.dismissed {
		p.wg.Go(w.end)
	}
	s.dismissed = nil
	if s.look > 0 {
		p.look.Reset(s.look)
		s.look = 0
	}
}

// Warm starts a worker, so that the first call finds one. Its error is why none can be
// started.
func (p *Pool) Warm() error {
	closed := false
	p.update(func(s *state) {
		if closed = s.closed; !closed {
			s.starting++
			p.wg.Add(1)
		}
	})
	if closed {
		return failure.Unavailable("the index %s is closed", p.cfg.Index)
	}
	defer p.wg.Done()
	return p.start()
}

// start starts a worker. Calls that wait for one get the error if it fails.
func (p *Pool) start() error {
	w, err := p.newWorker()
	p.update(func(s *state) {
		s.starting--
		if err == nil {
			s.welcome(w)
			return
		}
		s.crashed()
		s.restarts++
		if s.serving() == 0 && s.starting == 0 {
			for _, j := range s.empty() {
				j.turn <- failure.Unavailable("no worker of %s can be started: %s", s.cfg.Index, err)
			}
		}
		if !s.closed {
			p.log.Error("worker could not be started", slog.String("error", err.Error()))
		}
	})
	return err
}

// welcome puts a ready worker into service, in place of a worn one if there is one. If it has ended
// meanwhile, that is a crash.
func (s *state) welcome(w *worker) {
	switch {
	case s.closed:
		w.retired, w.stopping = true, true
		if !w.ended {
			w.proc.Kill() // its watcher, or its reader, finishes it
		}
		return
	case w.ended:
		s.restarts++
		s.crashed()
		return
	}
	s.replaceWorn()
	s.workers = append(s.workers, w)
	w.idleSince = time.Now()
	s.limitWear(w)
	if !s.cfg.Async {
		s.idle = append(s.idle, w)
	}
}

// answered records the frame that ends a call, and returns the call; nil if it was abandoned before.
func (s *state) answered(w *worker, h frame.Header, body []byte) (j *job, err error) {
	if j, err = w.holds(h.ID); err == nil && s.endOutgrown(w, h, j) {
		err = errExceeded
	}
	if err != nil {
		return nil, err
	}
	if h.Flags&frame.FlagSpent != 0 {
		s.stop(w) // its call used it up
	}
	if j == nil {
		w.abandoned--
	} else {
		j.kind, j.body = h.Type, body
		s.release(j)
		s.crashes = 0
		s.learn(j, time.Since(j.since))
	}
	switch {
	case !w.free():
	case w.ended: // after its answer
		s.retire(w)
	case s.cfg.Once || w.retired:
		s.dismiss(w)
	case !s.cfg.Async:
		w.idleSince = j.since
		s.idle = append(s.idle, w)
	}
	s.countCalls(w)
	return j, nil
}

// processEnded records that a worker's process has ended, and finishes the worker unless a
// goroutine reads from it, which then notices the end itself.
func (p *Pool) processEnded(w *worker) {
	alone := false
	p.update(func(s *state) {
		w.ended = true
		alone = w.ready && !s.cfg.Async && w.one == nil
		if alone {
			s.retire(w)
		}
	})
	if alone {
		w.finish(nil)
	}
}

// remove takes an ended worker out of service: its calls fail, and another is started if
// needed.
func (s *state) remove(w *worker, cause error) {
	before := len(s.workers)
	s.workers = slices.DeleteFunc(s.workers, func(one *worker) bool { return one == w })
	joined := len(s.workers) < before
	s.retire(w)
	entered := func(j *job) bool { return w.begun(j) == toolmesh.StartedYes }
	if w.exit.Code == exitSpent && !slices.ContainsFunc(w.running(), entered) {
		w.stopping = true
	}
	if !w.free() && w.outgrown("") != nil {
		s.stopFor(w, w.outgrown)
	}
	if until := w.proc.Load(sandbox.WordUntil); until > 0 && sandbox.Boottime(time.Now()) >= until {
		w.stopping = true // ended by its zygote, or by itself between calls: not a crash
		for _, j := range w.running() {
			if j.Lane != nil && j.breach.Load() == nil {
				j.breach.Store(failure.TurnOver(j.Tool, w.begun(j)))
			}
		}
	}
	failed := w.running()
	tools := map[string]struct{}{}
	for _, j := range failed {
		tools[j.Tool] = struct{}{}
	}
	for _, j := range failed {
		if !w.exit.Lost && !w.stopping {
			j.verdict = Verdict{blame: blameCrash, worker: w.proc.ID()}
			if len(tools) > 1 {
				j.verdict.blame = blameMaybe
			}
		}
		j.err = failure.Crashed(j.Tool, w.exit, w.begun(j), w.tail.Of(j.Session))
		if s.cfg.Session && !s.closed {
			j.err = j.err.WithDetail("session_state", "lost")
		}
		s.release(j)
		if s.cfg.Async {
			j.done <- struct{}{}
		}
	}
	if s.cfg.Session && !s.closed {
		why := "it ended: " + w.exit.String()
		if len(failed) == 0 && !w.stopping {
			s.lost = why
		}
		for _, j := range s.empty() {
			j.turn <- failure.StateGone(why)
		}
	}
	if joined && !w.stopping && !s.closed { // start handles one that never joined
		s.restarts++
		if len(failed) == 0 {
			s.crashed() // an end during a call counts in its tool's quarantine
		}
		w.pool.log.Warn("worker ended unexpectedly", slog.String("exit", w.exit.String()), slog.Int("calls", len(failed)), slog.Any("cause", cause))
	}
}

// exitSpent is the exit status of a worker that ends between two calls because one of them
// changed it irreparably; state/snapshot.py has the same number.
const exitSpent = 75

// Stats is a snapshot of a pool, or of several.
type Stats struct {
	Workers  int   // that take calls
	Starting int   // being started
	Busy     int   // calls that have a worker
	Waiting  int   // calls in the queue
	Restarts int   // workers that ended without being told to
	Recycled int   // workers that were replaced for their calls, age or memory
	Pids     []int // of the workers, including ending ones
}

// Add adds the figures of another pool.
func (s *Stats) Add(more Stats) {
	s.Workers += more.Workers
	s.Starting += more.Starting
	s.Busy += more.Busy
	s.Waiting += more.Waiting
	s.Restarts += more.Restarts
	s.Recycled += more.Recycled
	s.Pids = append(s.Pids, more.Pids...)
}

// Stats returns a snapshot.
func (p *Pool) Stats() (stats Stats) {
	p.read(func(s *state) {
		stats = Stats{Starting: s.starting, Busy: s.busy, Waiting: len(s.queue.Waiting), Restarts: s.restarts, Recycled: s.recycled}
		for _, w := range s.workers {
			if !w.retired {
				stats.Workers++
			}
			stats.Pids = append(stats.Pids, w.proc.Pid())
		}
	})
	return stats
}

// End refuses further calls, cancels running ones and ends each worker at once or after its
// last call. It returns at once.
func (p *Pool) End() {
	p.refuse(func(s *state) {
		for _, w := range s.workers {
			for _, j := range w.running() {
				s.interrupt(j)
			}
			switch {
			case w.retired:
			case w.free():
				s.dismiss(w)
			default:
				s.stop(w)
			}
		}
	})
}

// Gone is closed when the pool was ended or closed, and its last process has ended.
func (p *Pool) Gone() <-chan struct{} { return p.gone }

// Close refuses further calls, fails the queued ones, kills the workers and waits for the
// pool's goroutines. Running calls fail, which does not count as a crash.
func (p *Pool) Close() {
	p.refuse(func(s *state) {
		for _, w := range s.workers {
			w.stopping = true
			w.proc.Kill()
		}
	})
	p.Wait()
}

// Wait waits for the goroutines and processes of an ended pool.
func (p *Pool) Wait() {
	p.wg.Wait()
	p.look.Stop()
}

func (p *Pool) refuse(f func(s *state)) {
	p.update(func(s *state) {
		if !s.closed {
			s.closed = true
			p.shut()
		}
		for _, j := range s.empty() {
			j.turn <- s.shut()
		}
		f(s)
	})
}
