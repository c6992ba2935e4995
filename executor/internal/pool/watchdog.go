package pool

import (
	"log/slog"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/internal/wake"
)

// A limit on memory has three guards. What is asked for at once, far beyond it,
// is refused by the system (limits.py): a MemoryError, which a tool may handle.
// What is touched is measured by the watchdog, which is exact about what the
// limit means and says so, but looks only now and then. Behind both stands the
// kernel's bound on the worker's control group, where there are groups: nothing
// is faster, and nothing hides from it, neither a process that left its parent
// nor a file in memory. It stands a bit further out than the limit, because it
// also counts what the limit does not: see bound.

const (
	// kernelShare is for what the kernel holds on a worker's behalf, beyond the limit:
	// tables of pages, stacks, buffers.
	kernelShare = 4 << 20
	// After a call that was shorter and ended well it is not asked whether the kernel
	// refused it anything: to come to the node's defaults takes longer. A call of
	// microseconds takes milliseconds, too, while others want the processor.
	brief = 10 * time.Millisecond
	// watchBrief is how often a worker is looked at whose calls all began after the last
	// look, where only the node's defaults hold and its control group keeps them: temporary
	// files, which the group does not count, may grow over many calls.
	watchBrief = time.Second
)

// metering is the watchdog's record of a worker.
type metering struct {
	base int64 // bytes of memory before the first call
	// Of its control group: what was charged to it by then, and the processes that
	// the kernel had killed there when the running call began.
	charged int64
	kills   int
	seen    time.Duration // processor time, of the process and all below, at the last look
	looked  time.Time     // when that was; the watchdog's own
	files   sandbox.Look  // at its temporary files; the watchdog's own
	// Likewise: its own processor time at the last look, if it was alone then, else 0.
	alone time.Duration
}

// bound sets the bound of a worker's group when it is ready for its first call.
// What it has of its zygote is charged to that; but the first to write to a
// common page pays for the copy, though it has no more memory than before. So all
// that it began with may be charged to it once more.
func (w *worker) bound() {
	limits := w.pool.cfg.Limits
	w.metering.base = w.memory()
	group := w.proc.Group()
	if group == nil {
		return
	}
	used, err := group.Usage()
	if err == nil {
		w.metering.charged = used
		limit := int64(limits.Memory)
		err = group.Limit(used + w.metering.base + limit + limit/32 + kernelShare)
	}
	if err != nil {
		w.pool.log.Warn("a worker's control group is not bounded", slog.Int("pid", w.proc.Pid()), slog.String("error", err.Error()))
	}
}

// meter notes where a worker's meter stands when it gets a call, and wakes the
// watchdog.
func (s *state) meter(w *worker) {
	if w.pool.watchEvery == 0 {
		return
	}
	if len(w.jobs) <= 1 { // else it is metered already
		if s.cfg.Limits.CPUTime > 0 {
			if u, ok := w.proc.Usage(0); ok {
				w.metering.seen = u.CPU
			}
		}
		if s.cfg.Declared.Memory > 0 {
			w.metering.kills = w.proc.Group().Kills()
		}
	}
	wake.Up(w.pool.limited)
}

// watch is the watchdog: it looks at the calls of a pool with limits while there
// are any, and stops what takes more than it may.
func (p *Pool) watch() {
	for {
		select {
		case <-p.limited:
		case <-p.open.Done():
			return
		}
		for busy := true; busy; {
			select {
			case <-time.After(p.watchEvery):
			case <-p.open.Done():
				return
			}
			busy = p.patrol()
		}
	}
}

// patrol looks at each worker that runs a call; false when none does.
func (p *Pool) patrol() bool {
	running := map[*worker][]*job{}
	p.read(func(s *state) {
		for _, w := range s.workers {
			if !w.free() {
				running[w] = w.running()
			}
		}
	})
	now := time.Now()
	for w, measured := range running {
		if p.tooBrief(w, measured, now) || w.asleep() {
			continue
		}
		w.metering.looked = now
		if u, ok := w.proc.Usage(p.cfg.Limits.Pids); ok {
			p.check(w, u, measured)
		}
	}
	return len(running) > 0
}

// tooBrief reports whether a worker need not be looked at yet.
func (p *Pool) tooBrief(w *worker, calls []*job, now time.Time) bool {
	return w.proc.Group() != nil && p.watchEvery != sandbox.LookOften && now.Sub(w.metering.looked) < watchBrief &&
		!slices.ContainsFunc(calls, func(j *job) bool { return now.Sub(j.since) >= sandbox.LookRarely })
}

// asleep reports whether a worker, which had no processes and threads but its own, has not
// run since the last look: it has no more than it had then. Hundreds of calls may wait.
func (w *worker) asleep() bool {
	before, known := w.metering.alone, false
	if w.metering.alone, known = w.proc.ProcessorTime(); !known {
		w.metering.alone = 0
	}
	return before > 0 && before == w.metering.alone
}

// tempFiles is what a worker's temporary files take, 0 while it is not time to look.
func (w *worker) tempFiles() int64 {
	limit := int64(w.pool.cfg.Limits.TempFiles)
	if limit == 0 {
		return 0
	}
	files, looked := w.metering.files.Due(func() int64 { return w.proc.TempFiles(limit) })
	if !looked {
		w.metering.alone = 0 // to be looked at again, though it may sleep by then
	}
	return files
}

// check stops what has taken more than it may. u was measured while the worker ran the
// calls measured: it says nothing about one that began when they had ended.
func (p *Pool) check(w *worker, u sandbox.Usage, measured []*job) {
	limits, memory, files := p.cfg.Limits, int64(0), int64(0)
	if u.Processes > 1 {
		w.metering.alone = 0
	}
	if limits.Pids == 0 || u.Tasks <= limits.Pids { // else the rest does not matter, and takes long
		files = w.tempFiles()
		memory = u.MemoryFor(int64(limits.Memory), w.metering.base, w.proc.Share)
	}
	p.update(func(s *state) {
		jobs := w.running()
		if w.stopping || !slices.ContainsFunc(jobs, func(j *job) bool { return slices.Contains(measured, j) }) {
			return
		}
		late := s.countTime(w, jobs, u.CPU)
		var fatal func(j *job) *toolmesh.Error
		switch {
		case w.outgrown() != nil:
			fatal = w.outgrown()
		case failure.Exceeded("", limits, memory, u.Tasks, files) != nil:
			fatal = func(j *job) *toolmesh.Error { return failure.Exceeded(j.Tool, limits, memory, u.Tasks, files) }
		}
		if fatal != nil {
			s.stopFor(p.log, w, jobs, fatal)
			w.proc.Kill()
			return
		}
		for _, j := range late {
			s.interrupt(p, j)
			w.warn(p.log, j)
		}
	})
}

// countTime adds the processor time since the last look to the calls that it counts
// for, and returns those that have used more than they may.
func (s *state) countTime(w *worker, jobs []*job, cpu time.Duration) (late []*job) {
	limit := s.cfg.Limits.CPUTime
	computing := computing(w, jobs)
	share := max(0, cpu-w.metering.seen) / time.Duration(len(computing))
	w.metering.seen = cpu
	for _, j := range computing {
		if j.cpu += share; limit > 0 && j.cpu > limit && j.breach.Load() == nil {
			j.breach.Store(failure.OutOfTime(j.Tool, limit, j.cpu))
			late = append(late, j)
		}
	}
	return late
}

// computing are those of a worker's calls that its processor time counts for: the
// one that was seen to use it, or else all that do not wait for a call they made.
func computing(w *worker, jobs []*job) []*job {
	if len(jobs) == 1 {
		return jobs
	}
	if id := w.proc.Load(sandbox.WordRunning); id != 0 {
		w.proc.Store(sandbox.WordRunning, 0)
		if j := w.jobs[id]; j != nil {
			return []*job{j}
		}
	}
	if w.waiting == 0 || w.waiting == len(jobs) {
		return jobs
	}
	return slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool { return j.open > 0 })
}

// outgrown makes the error of the calls of a worker that ran into its group's bounds: the
// kernel killed a process of it since its call began, or refused it one; nil of another.
// A worker of which that is seen is ended.
func (w *worker) outgrown() func(j *job) *toolmesh.Error {
	group, limits := w.proc.Group(), w.pool.cfg.Limits
	switch {
	case group.Kills() > w.metering.kills:
		peak, reached := group.Peak()-w.metering.charged, group.Reached()
		return func(j *job) *toolmesh.Error { return failure.Starved(j.Tool, int64(limits.Memory), peak, reached) }
	case group.Refused() > 0:
		return func(j *job) *toolmesh.Error { return failure.Refused(j.Tool, limits) }
	}
	return nil
}

// endOutgrown ends a worker that is still there though it ran into its group's bounds: the
// call that ends now has exceeded a limit, whatever it says. After a brief call that ended
// well that is not asked where no tool declares such a limit.
func (p *Pool) endOutgrown(w *worker, h frame.Header, since time.Time) (ended bool) {
	if w.proc.Group() == nil || p.cfg.Declared.Memory == 0 && p.cfg.Declared.Pids == 0 && h.Type != frame.Error && time.Since(since) < brief {
		return false
	}
	p.update(func(s *state) {
		if fails := w.outgrown(); fails != nil && !w.free() {
			ended = true
			s.stopFor(p.log, w, w.running(), fails)
			w.proc.Kill()
		}
	})
	return ended
}

// stopFor takes a worker out of service whose calls fail because of a limit.
func (s *state) stopFor(log *slog.Logger, w *worker, jobs []*job, fails func(j *job) *toolmesh.Error) {
	for _, j := range jobs {
		if j.breach.Load() == nil {
			j.breach.Store(fails(j))
		}
		if !w.stopping {
			w.warn(log, j)
		}
	}
	s.stop(w)
}

func (w *worker) warn(log *slog.Logger, j *job) {
	log.Warn("a call exceeded a limit", slog.String("rpc_id", j.RPCID), slog.Int("pid", w.proc.Pid()), slog.String("error", j.breach.Load().Error()))
}
