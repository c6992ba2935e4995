package executor

import (
	"math/rand/v2"
	"time"
)

// A worker that ends although nobody asked it to is replaced. One that does so
// again and again, because its import or its fork fails, costs a start each time:
// the starts become rarer, and calls are told after a second at most.

const (
	// Crashes in a row that are repaired at once.
	freeCrashes = 3
	// From then on a start waits, at first for this long, then for twice as long
	// each time, up to the last.
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 30 * time.Second
	// A call does not wait longer than this for the next try.
	callBackoff = time.Second
)

// crashed notes a worker's unwanted end and sets when the next may start. The
// lock is held.
func (c *crew) crashed() {
	c.crashes++
	c.failedAt = time.Now()
	if over := c.crashes - freeCrashes; over > 0 {
		wait := min(firstBackoff<<min(over-1, 16), lastBackoff)
		c.nextTry = c.failedAt.Add(wait/2 + rand.N(wait/2+1)) //nolint:gosec // jitter
	}
}

// pause is how long no worker may be started yet. The lock is held.
func (c *crew) pause(now time.Time) time.Duration {
	at := c.nextTry
	if soon := c.failedAt.Add(callBackoff); c.queue.len() > 0 && soon.Before(at) {
		at = soon
	}
	return max(at.Sub(now), 0)
}

// look calls reconcile after a while. The lock is held.
func (c *crew) look(after time.Duration) {
	at := time.Now().Add(after)
	if c.watching && !at.Before(c.lookAt) {
		return
	}
	c.watching, c.lookAt = true, at
	c.index.after(after, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.lookAt.Equal(at) {
			return // another look came before it
		}
		c.watching = false
		c.reconcile()
	})
}
