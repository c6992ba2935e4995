package pool

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/internal/wake"
)

// Memory limits have three guards. One allocation far beyond the limit is refused by the system
// (limits.py): a MemoryError, which a tool may handle. Used memory is measured by the watchdog,
// which applies the exact limit and reports it, but only at intervals. Behind both is the
// kernel's limit on the worker's control group, where groups exist: it acts at once, and covers
// processes that left their parent and files in memory. It is somewhat above the limit, because
// it also counts other memory: see bound.

const (
	// kernelShare is the kernel's own memory for a worker, beyond the limit: page tables,
	// stacks, buffers.
	kernelShare = 4 << 20
	// After a successful call shorter than brief the kernel is not asked whether it refused
	// anything: reaching the node's defaults takes longer. Under load a call of microseconds
	// takes milliseconds, too.
	brief = 10 * time.Millisecond
	// watchBrief is how often a worker is measured whose calls all began after the last look, if
	// its control group enforces the node's defaults: temporary files, which the group does not
	// count, may grow over many calls.
	watchBrief = time.Second
)

// metering is the watchdog's record of a worker.
type metering struct {
	base int64 // bytes of memory before the first call
	// Of its control group when the running call began: memory charged, and processes killed by
	// the kernel.
	charged int64
	kills   int
	seen    time.Duration // processor time, of the process and all below, at the last look
	looked  time.Time     // time of the last look; used by the watchdog only
	files   sandbox.Look  // at its temporary files; used by the watchdog only
	ended   bool          // a coroutine that was seen running since the last look has ended
	// Its own processor time at the last look, if it had no other processes then, else 0; used by the watchdog only.
	alone time.Duration
}

// bound sets the memory limit of a worker's group when it is ready for its first call. Pages
// shared with its zygote are charged to the zygote, but the first write to one charges the copy
// to the worker, though its memory does not grow. So its initial memory may be charged once
// more.
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
		w.pool.log.Warn("a worker's control group could not be limited: only the watchdog enforces its memory limit", slog.Int("pid", w.proc.Pid()), slog.String("error", err.Error()))
	}
}

// meter records a worker's figures when it gets a call, and wakes the watchdog.
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

// watch is the watchdog: while calls with limits run it measures their workers, and stops those
// that exceed a limit.
func (p *Pool) watch() {
	for {
		select {
		case <-p.limited:
		case <-p.open.Done():
			return
		}
		for busy := true; busy && wake.After(p.open, p.watchEvery); {
			busy = p.patrol()
		}
	}
}

// patrol measures each worker that runs a call; false if none does.
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

// tooBrief reports whether a worker need not be measured yet.
func (p *Pool) tooBrief(w *worker, calls []*job, now time.Time) bool {
	return w.proc.Group() != nil && p.watchEvery != sandbox.LookOften && now.Sub(w.metering.looked) < watchBrief &&
		!slices.ContainsFunc(calls, func(j *job) bool { return now.Sub(j.since) >= sandbox.LookRarely })
}

// asleep reports whether a worker without further processes and threads has not run since the
// last look: its usage is unchanged. Hundreds of calls may wait.
func (w *worker) asleep() bool {
	before, known := w.metering.alone, false
	if w.metering.alone, known = w.proc.ProcessorTime(); !known {
		w.metering.alone = 0
	}
	return before > 0 && before == w.metering.alone
}

// tempFiles is the size of a worker's temporary files, 0 until the next look is due.
func (w *worker) tempFiles() int64 {
	limit := int64(w.pool.cfg.Limits.TempFiles)
	if limit == 0 {
		return 0
	}
	files, looked := w.metering.files.Due(func() int64 { return w.proc.TempFiles(limit) })
	if !looked {
		w.metering.alone = 0 // measure it again, even if it sleeps by then
	}
	return files
}

// check stops calls that exceed a limit. u was measured while the worker ran the calls
// measured: it says nothing about calls that began later.
func (p *Pool) check(w *worker, u sandbox.Usage, measured []*job) {
	limits, memory, files := p.cfg.Limits, int64(0), int64(0)
	if u.Processes > 1 {
		w.metering.alone = 0
	}
	if limits.Pids == 0 || u.Tasks <= limits.Pids { // otherwise the exact memory is not needed, which is slow to measure
		files = w.tempFiles()
		memory = u.MemoryFor(int64(limits.Memory), w.metering.base, w.proc.Share)
	}
	p.update(func(s *state) {
		jobs := w.running()
		if w.stopping || !slices.ContainsFunc(jobs, func(j *job) bool { return slices.Contains(measured, j) }) {
			return
		}
		late := s.countTime(w, jobs, u.CPU)
		fatal := func(name string) *toolmesh.Error {
			return cmp.Or(w.outgrown(name), failure.Exceeded(name, limits, memory, u.Tasks, files))
		}
		if fatal("") != nil {
			s.stopFor(w, fatal)
			return
		}
		for _, j := range late {
			s.interrupt(j)
			w.warn(j)
		}
	})
}

// countTime adds the processor time since the last look to the calls that used it, and returns
// those above their limit.
func (s *state) countTime(w *worker, jobs []*job, cpu time.Duration) (late []*job) {
	limit := s.cfg.Limits.CPUTime
	spent := max(0, cpu-w.metering.seen)
	computing, known := s.computing(w, jobs, spent)
	if !known {
		return nil
	}
	w.metering.seen = cpu
	for _, j := range computing {
		if j.cpu += spent / time.Duration(len(computing)); limit > 0 && j.cpu > limit && j.breach.Load() == nil {
			j.breach.Store(failure.OutOfTime(j.Tool, limit, j.cpu))
			late = append(late, j)
		}
	}
	return late
}

// unseen is the processor time that a worker of coroutines may use before the watchdog gives up
// waiting to learn which call used it. The worker looks after each 10 ms, and sees neither threads
// nor other processes.
const unseen = 50 * time.Millisecond

// computing are the calls of a worker that used its processor time: the one that was seen
// running, none if that has ended or is abandoned, or else all that do not wait for a nested call.
// It is not known yet while the worker may still tell.
func (s *state) computing(w *worker, jobs []*job, spent time.Duration) (calls []*job, known bool) {
	if !s.cfg.Async {
		return jobs, true
	}
	id, ended := w.proc.Load(sandbox.WordRunning), w.metering.ended
	w.proc.Store(sandbox.WordRunning, 0)
	w.metering.ended = false
	switch j := w.jobs[id]; {
	case j != nil:
		return []*job{j}, true
	case ended || id != 0 && w.abandoned > 0:
		return nil, true
	case spent < unseen:
		return nil, false
	case w.waiting == 0 || w.waiting == len(jobs):
		return jobs, true
	}
	return slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool { return j.open > 0 }), true
}

// outgrown returns the error of a worker's call of a tool if the worker reached a limit of its control
// group since its call began; nil otherwise. The worker is then ended.
func (w *worker) outgrown(name string) *toolmesh.Error {
	return failure.ByKernel(name, w.pool.cfg.Limits, w.proc.Group(), w.metering.kills, w.metering.charged)
}

// endOutgrown ends a worker that survived reaching a limit of its control group: the call that ends
// now, nil if it was abandoned, has exceeded a limit, even if it succeeded. It skips brief successful
// calls if no tool declares such a limit.
func (s *state) endOutgrown(w *worker, h frame.Header, j *job) bool {
	declared := s.cfg.Declared.Memory > 0 || s.cfg.Declared.Pids > 0
	if w.proc.Group() == nil || w.free() || !declared && h.Type != frame.Error && j != nil && time.Since(j.since) < brief {
		return false
	}
	reached := w.outgrown("") != nil
	if reached {
		s.stopFor(w, w.outgrown)
	}
	return reached
}

// stopFor ends a worker and fails its calls because of a limit.
func (s *state) stopFor(w *worker, fails func(name string) *toolmesh.Error) {
	for _, j := range w.running() {
		if j.breach.Load() == nil {
			j.breach.Store(fails(j.Tool)) // nil if the counters cannot be read again
		}
		if !w.stopping && j.breach.Load() != nil {
			w.warn(j)
		}
	}
	s.stop(w)
	w.proc.Kill()
}

func (w *worker) warn(j *job) {
	w.pool.log.Warn("call exceeded a limit", slog.String("rpc_id", j.RPCID), slog.Int("pid", w.proc.Pid()), slog.String("error", j.breach.Load().Error()))
}
