package chunks

import (
	"context"
	"time"

	"github.com/toolmesh/toolmesh/internal/bus"
)

const (
	// askEvery is the min time between two questions to the store, and askWait the max time
	// for an answer.
	askEvery = time.Second
	askWait  = 5 * time.Second
	// spare is the part of the store, one in so many, that is kept for running calls.
	spare = 10
)

// Space is the free space of a stream, of which a part is kept for running calls. Its method may
// be called concurrently.
type Space struct {
	bus    *bus.Bus
	stream string

	asking     chan struct{} // of capacity 1: held by the caller that asks; guards the fields below
	asked      time.Time     // when the store last answered, or did not in time
	used, size int64         // bytes
}

// NewSpace returns the space of a stream behind b.
func NewSpace(b *bus.Bus, stream string) *Space {
	return &Space{bus: b, stream: stream, asking: make(chan struct{}, 1)}
}

// Left returns the free bytes beyond those that are kept for running calls, and the max size of
// the stream, 0 for no bound or no answer. It asks the store at most once a second, and waits
// for the answer until ctx ends.
func (r *Space) Left(ctx context.Context) (left, size int64) {
	select {
	case r.asking <- struct{}{}:
	case <-ctx.Done():
		return 0, 0
	}
	defer func() { <-r.asking }()
	if time.Since(r.asked) >= askEvery {
		r.ask(ctx)
		r.asked = time.Now() // also without an answer: waiting callers do not ask one after the other
	}
	return r.size - r.used - r.size/spare, max(r.size, 0)
}

// ask asks the store. Without an answer the last one stays.
func (r *Space) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	stream, err := r.bus.JetStream().Stream(ctx, r.stream)
	if err != nil {
		return
	}
	info := stream.CachedInfo()
	r.used, r.size = int64(min(info.State.Bytes, 1<<62)), info.Config.MaxBytes
}
