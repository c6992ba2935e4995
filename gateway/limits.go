package gateway

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// kind is a kind of resource that requests hold while they run.
type kind int

const (
	streamsOpen kind = iota
	eventsOpen
	uploads
	downloads
	documents
	bodyBytes
	answerBytes
	hurriedBytes
	resultsPassed
	kinds
)

// rooms bound how much of each kind one token, or all together, hold at once.
type rooms [kinds]room

type room struct {
	*semaphore.Weighted
	size int64
	full string // the error's detail when the room is full
}

// newRooms returns the rooms of one token, or of all.
func newRooms(o *Options, ofAll bool) (made rooms) {
	for k, most := range [kinds]struct {
		token, all int64
		text       string
	}{
		streamsOpen: {int64(o.MaxStreams), math.MaxInt64, "streams"},
		eventsOpen:  {16, math.MaxInt64, "streams of events"}, // each stream reads the tools and the nodes by itself
		uploads:     {4, 16, "requests with files"},
		downloads:   {16, 32, "downloads"},                              // each holds some megabytes while its reader is slow
		documents:   {2, 4, "OpenAPI documents and lists with schemas"}, // each holds the descriptions of up to all tools
		// The largest body is in memory that often. Answers that wait for their readers have the same room again.
		bodyBytes:     {8 * o.MaxBody, 32 * o.MaxBody, "bytes of bodies"},
		answerBytes:   {8 * o.MaxBody, 32 * o.MaxBody, "bytes of large results"},
		hurriedBytes:  {8 * o.MaxBody, 32 * o.MaxBody, "bytes of answers that wait for their readers, beside large results"},
		resultsPassed: {8, 32, "large results that are passed on"},
	} {
		size, whose := most.token, "the token"
		if ofAll {
			size, whose = most.all, "the gateway"
		}
		made[k] = room{semaphore.NewWeighted(size), size, fmt.Sprintf("%s has %d %s already, and may have no more at once", whose, size, most.text)}
	}
	return made
}

// take takes n of a kind. The function gives them back. The error is busy.
func (l *link) take(k kind, n int64) (func(), error) {
	return l.acquire(k, n, func(r room) bool { return r.TryAcquire(n) })
}

// wait is take, but waits until ctx ends for a room that is full.
func (l *link) wait(ctx context.Context, k kind, n int64) (func(), error) {
	return l.acquire(k, n, func(r room) bool { return r.Acquire(ctx, n) == nil })
}

func (l *link) acquire(k kind, n int64, one func(room) bool) (func(), error) {
	if !one(l.rooms[k]) {
		return nil, busy("%s", l.rooms[k].full)
	}
	if !one(l.g.rooms[k]) {
		l.rooms[k].Release(n)
		return nil, busy("%s", l.g.rooms[k].full)
	}
	return func() { l.release(k, n) }, nil
}

func (l *link) release(k kind, n int64) {
	l.rooms[k].Release(n)
	l.g.rooms[k].Release(n)
}

// spend takes calls from the token's rate. The error is busy and says when to retry.
func (l *link) spend(calls int) error {
	if l.key.Calls == 0 {
		return nil
	}
	ls := &l.g.links
	ls.mu.Lock()
	defer ls.mu.Unlock()
	limiter := ls.limits[l.digest]
	if limiter == nil {
		maps.DeleteFunc(ls.limits, func(_ string, one *rate.Limiter) bool { return one.Tokens() >= float64(one.Burst()) }) // like new ones
		limiter = rate.NewLimiter(rate.Limit(float64(l.key.Calls)/l.key.In.Seconds()), l.key.Calls)
		ls.limits[l.digest] = limiter
	}
	now := time.Now()
	taken := limiter.ReserveN(now, calls)
	if !taken.OK() {
		return refused(toolmesh.CodePayloadTooLarge, "%d calls at once are more than the token may make: %d", calls, l.key.Calls)
	}
	wait := taken.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	taken.CancelAt(now)
	return refused(toolmesh.CodeBusy, "the token may make %d calls in %v, and has made them", l.key.Calls, l.key.In).WithDetail("retry_after_ms", max(1, wait.Milliseconds()))
}

// hide removes tools that the token may not use from the suggestions of an error.
func (l *link) hide(err error) error {
	e := toolmesh.AsError(err)
	if err == nil || !l.key.Narrowed() {
		return err
	}
	near, ok := e.Details["nearest"].([]any)
	if !ok {
		return err
	}
	e = e.WithDetail("nearest", slices.DeleteFunc(slices.Clone(near), func(one any) bool {
		id, _ := one.(string)
		return !l.key.Tools.Match(subjects.ToolID(id))
	}))
	e.Message, _, _ = strings.Cut(e.Message, "; did you mean")
	return e
}
