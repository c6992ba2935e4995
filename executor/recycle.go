package executor

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"time"
)

// Workers that live long gather what tools leave behind: they are replaced from
// time to time. The new one is ready before the old one gets no more calls, and
// a bit of chance keeps all of them from being replaced at once.

// jittered is n give or take a tenth.
func jittered[T ~int | ~int64 | ~uint64](n T) T {
	if n <= 0 {
		return 0
	}
	return n - n/10 + T(rand.Int64N(int64(n/5)+1)) //nolint:gosec // no secret
}

// mortal reports whether the crew's workers are replaced by age: one that serves
// a single call ends anyway, and one that a session knows must not.
func (c *crew) mortal() bool { return !c.once && c.affinity == "" }

// born sets when a worker is to be replaced. The lock is held.
func (c *crew) born(w *worker) {
	if !c.mortal() {
		return
	}
	o := c.index.x.opts
	w.due = uint64(jittered(int64(o.RecycleCalls))) //nolint:gosec // not negative
	if o.RecycleAge > 0 {
		w.expires = time.Now().Add(jittered(o.RecycleAge))
	}
	w.base = resident(w.handle.Pid())
	w.most = jittered(o.RecycleMemory)
}

// counted replaces a worker that has served its number of calls. The lock is held.
func (c *crew) counted(w *worker) {
	if w.due > 0 && w.places >= w.due {
		c.replace(w, "calls")
	}
}

// weigh replaces the workers that have grown too old or too large.
func (c *crew) weigh() {
	if !c.mortal() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.workers {
		switch {
		case !w.expires.IsZero() && time.Now().After(w.expires):
			c.replace(w, "age")
		case w.most > 0 && resident(w.handle.Pid())-w.base > w.most:
			c.replace(w, "memory")
		}
	}
}

// replace starts another worker and then lets w go. The lock is held.
func (c *crew) replace(w *worker, why string) {
	if w.tired || w.retired || c.closed {
		return
	}
	w.tired = true
	c.index.wg.Go(func() {
		fresh, err := c.family.newWorker(c)
		c.mu.Lock()
		if err != nil {
			// It goes on, and is tried again: a worker of some age beats none.
			w.tired, w.due, w.expires = false, w.places+1000, time.Now().Add(time.Minute)
			c.mu.Unlock()
			c.index.log.Warn("a worker could not be replaced", slog.String("why", why), slog.Any("error", err))
			return
		}
		if c.closed {
			fresh.stopping, fresh.retired = true, true
			c.mu.Unlock()
			fresh.finish(nil)
			return
		}
		next := c.join(fresh)
		c.recycled++
		c.letGo(w)
		c.mu.Unlock()
		for _, j := range next {
			fresh.call(j)
			granted(j, nil)
		}
		c.index.log.Debug("a worker was replaced", slog.String("why", why), slog.Int("pid", w.handle.Pid()))
	})
}

// letGo takes a worker out of service: it ends now if it runs nothing, else
// with its last call. The lock is held.
func (c *crew) letGo(w *worker) {
	if w.retired {
		return
	}
	if i := slices.Index(c.idle, w); i >= 0 {
		c.idle = slices.Delete(c.idle, i, i+1)
		c.dismiss(w)
		return
	}
	w.retired = true
	if c.async && len(w.jobs) == 0 {
		c.dismiss(w)
	}
}

// resident is the memory of a process in bytes, 0 when it is not known.
func resident(pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var total, pages int64
	if _, err := fmt.Sscan(string(data), &total, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
