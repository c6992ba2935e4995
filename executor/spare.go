package executor

import (
	"slices"
	"time"

	"github.com/toolmesh/toolmesh/tool"
)

// A crew whose workers serve one call each. A fork is cheap, yet not as cheap as
// none: one worker that has been forked already waits for the next call, and is
// replaced as soon as it gets it.

// spareWorkers is how many unused workers a crew of an isolation keeps. A new
// interpreter is more than a guess should cost.
func spareWorkers(isolation tool.Isolation) int {
	if isolation == tool.IsolationFork {
		return 1
	}
	return 0
}

func newCrew(ix *Index, f *family, key workerKey) *crew {
	return &crew{
		index: ix, family: f, key: key, async: key.async, workers: map[*worker]struct{}{},
		once:   key.isolation == tool.IsolationFork || key.isolation == tool.IsolationFresh,
		spares: spareWorkers(key.isolation),
	}
}

// unused counts the workers of a once crew that have got no call yet. The lock
// is held.
func (c *crew) unused() int {
	if !c.async {
		return len(c.idle)
	}
	n := 0
	for w := range c.workers {
		if !w.retired && w.places == 0 {
			n++
		}
	}
	return n
}

// restock starts what the queue and the spares need. Those on their way out
// count: a tool that does not end must not be multiplied. The lock is held.
func (c *crew) restock() {
	missing := c.admissibles() + c.spares - c.unused() - c.starting
	if missing <= 0 {
		return
	}
	if wait := c.pause(time.Now()); wait > 0 {
		c.look(wait)
		return
	}
	for room := c.most() - len(c.workers) - c.starting; missing > 0 && room > 0; room-- {
		c.start()
		missing--
	}
}

// reapSpares ends workers that waited for long without getting a call. The lock
// is held.
func (c *crew) reapSpares(idleAfter time.Duration) {
	if c.async {
		for w := range c.workers {
			if !w.retired && w.places == 0 && time.Since(w.idleSince) >= idleAfter {
				c.dismiss(w)
			}
		}
		return
	}
	for len(c.idle) > 0 && time.Since(c.idle[0].idleSince) >= idleAfter {
		w := c.idle[0]
		c.idle = slices.Delete(c.idle, 0, 1)
		c.dismiss(w)
	}
}
