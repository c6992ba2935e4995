package executor

import (
	"log/slog"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/failure"
	"github.com/toolmesh/toolmesh/executor/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// watchEvery is how often the watchdog looks at limited calls that run: what a
// call may take beyond a limit before it is stopped is what it can take in that
// time.
const watchEvery = 20 * time.Millisecond

// meter is what the watchdog knows of a worker. Guarded by the crew's lock.
type meter struct {
	base int64 // bytes of memory before the first call
	// Of its control group: what was charged to it by then, and the processes that
	// the kernel had killed there when the running call began.
	charged int64
	kills   int
	seen    time.Duration // processor time, of the process and all below, at the last look
}

// watched reports whether calls under these limits must be looked at while they run.
func watched(l tool.Limits) bool { return l.CPUTime > 0 || l.Memory > 0 || l.Pids > 0 }

// alarm wakes the watchdog: a call to be watched begins.
func (ix *Index) alarm() {
	select {
	case ix.watching <- struct{}{}:
	default:
	}
}

// watch looks at the calls that are limited, while there are any.
func (ix *Index) watch() {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		ticker.Stop()
		select {
		case <-ix.watching:
		case <-ix.stop:
			return
		}
		ticker.Reset(watchEvery)
		for busy := true; busy; {
			select {
			case <-ticker.C:
			case <-ix.stop:
				return
			}
			busy = false
			for _, c := range ix.everyCrew() {
				if watched(c.key.limits) {
					busy = c.patrol() || busy
				}
			}
		}
	}
}

// patrol looks at each worker that runs a call; false when none does.
func (c *crew) patrol() bool {
	c.mu.Lock()
	workers := make([]*worker, 0, len(c.workers))
	for w := range c.workers {
		if len(c.running(w)) > 0 {
			workers = append(workers, w)
		}
	}
	c.mu.Unlock()
	for _, w := range workers {
		if u, ok := w.handle.Usage(); ok {
			c.judge(w, u)
		}
	}
	return len(workers) > 0
}

// running are the calls that a worker holds. The lock is held.
func (c *crew) running(w *worker) []*job {
	var list []*job
	if !c.async {
		if j := w.current.Load(); j != nil && j.worker == w {
			list = append(list, j)
		}
		return list
	}
	for _, j := range w.jobs {
		list = append(list, j)
	}
	return list
}

// metered notes where a worker's meter stands when it gets a call. The lock is held.
func (c *crew) metered(w *worker) {
	if c.key.limits.CPUTime > 0 && len(c.running(w)) <= 1 {
		if u, ok := w.handle.Usage(); ok {
			w.meter.seen = u.CPU
		}
	}
	if w.group != nil && len(c.running(w)) <= 1 {
		w.meter.kills = w.group.Kills()
	}
	c.index.alarm()
}

// judge stops what has taken more than it may.
func (c *crew) judge(w *worker, u sandbox.Usage) {
	limits := c.key.limits
	memory := int64(0)
	if limits.Memory > 0 {
		memory = u.Memory - w.meter.base
		if memory > int64(limits.Memory) && u.Processes > 1 {
			// Children share pages with their parent: those count once.
			if share, ok := w.handle.Share(); ok {
				memory = min(memory, share)
			}
		}
	}
	c.mu.Lock()
	jobs := c.running(w)
	if len(jobs) == 0 || w.stopping {
		c.mu.Unlock()
		return
	}
	var over []*job
	computing := c.computing(w, jobs)
	share := max(0, u.CPU-w.meter.seen) / time.Duration(len(computing))
	w.meter.seen = u.CPU
	for _, j := range computing {
		if j.cpu += share; limits.CPUTime > 0 && j.cpu > limits.CPUTime && j.breach == nil {
			j.breach = failure.OutOfTime(j.tool.Name, limits.CPUTime, j.cpu)
			over = append(over, j)
		}
	}
	var fatal func(j *job) *toolmesh.Error
	switch {
	case w.starved():
		fatal = w.starvation()
	case limits.Memory > 0 && memory > int64(limits.Memory):
		fatal = func(j *job) *toolmesh.Error {
			return failure.OutOfMemory(j.tool.Name, int64(limits.Memory), memory, failure.SourceWatchdog)
		}
	case limits.Pids > 0 && u.Tasks > limits.Pids:
		fatal = func(j *job) *toolmesh.Error {
			return failure.TooManyProcesses(j.tool.Name, limits.Pids, u.Tasks)
		}
	}
	if fatal != nil {
		for _, j := range jobs {
			j.breach = fatal(j)
		}
		w.retired, w.stopping = true, true
		w.kill()
		over = nil
	}
	c.mu.Unlock()
	for _, j := range over {
		c.interrupt(j)
	}
	if fatal != nil || len(over) > 0 {
		c.index.log.Warn("a call exceeded a limit", slog.Int("pid", w.handle.Pid()), slog.Any("error", jobs[0].breach))
	}
}

// computing are those of a worker's calls that its processor time counts for: the
// one that was seen to use it, or else all that do not wait for a call they made.
// The lock is held.
func (c *crew) computing(w *worker, jobs []*job) []*job {
	if len(jobs) == 1 {
		return jobs
	}
	if id := w.page.Load(sandbox.WordRunning); id != 0 {
		w.page.Store(sandbox.WordRunning, 0)
		if j := w.jobs[id]; j != nil {
			return []*job{j}
		}
	}
	if w.waiting == 0 || w.waiting == len(jobs) {
		return jobs
	}
	return slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool { return j.open > 0 })
}

// breached is the limit that a call exceeded, nil if it kept them all.
func (c *crew) breached(j *job) *toolmesh.Error {
	if !watched(c.key.limits) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return j.breach
}
