package retry

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/wake"
)

const (
	// The first look is after firstLook, on average; then the time doubles up to lastLook.
	firstLook = 50 * time.Millisecond
	lastLook  = time.Second
	// lookTimeout bounds the looks of a call that no deadline bounds.
	lookTimeout = 30 * time.Second
)

// Full reports whether a call was refused by a node without a slot.
func Full(err error) bool {
	e := toolmesh.AsError(err)
	return e.Code == toolmesh.CodeBusy && e.Started == toolmesh.StartedNo && e.Details["limit"] == toolmesh.LimitSlots
}

// Group is calls of which one's end may be the place that another waits for. Make it
// with [NewGroup]. Its methods may be called concurrently.
type Group struct {
	ended chan struct{} // capacity 1: one of the calls has ended
}

// NewGroup makes a group without calls.
func NewGroup() Group { return Group{ended: make(chan struct{}, 1)} }

// End tells one of the calls that wait that another has ended.
func (g *Group) End() {
	wake.Up(g.ended)
}

// Look gives what one call waits with: it returns when it is time to look again,
// and false when there is no time for that.
func (g *Group) Look() func(ctx context.Context) bool {
	var until time.Time
	next := firstLook
	return func(ctx context.Context) bool {
		now := time.Now()
		if until.IsZero() {
			var ok bool
			if until, ok = ctx.Deadline(); !ok {
				until = now.Add(lookTimeout)
			}
		}
		wait := next/2 + rand.N(next) //nolint:gosec // jitter
		next = min(2*next, lastLook)
		if until.Sub(now) < wait {
			return false
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-g.ended:
		case <-timer.C:
		case <-ctx.Done():
		}
		return ctx.Err() == nil
	}
}
