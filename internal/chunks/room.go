package chunks

import (
	"context"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/internal/bus"
)

const (
	// askEvery is how often the store is asked at most how full it is, and askWait
	// how long its answer may take.
	askEvery = time.Second
	askWait  = 5 * time.Second
	// knownFor is how long an answer counts: a store empties by itself.
	knownFor = 5 * time.Second
	// spare is the part of the store, one in so many, that is for streams that run.
	spare = 10
)

// Room is what a node knows of the room that is left in a store, of which a part is kept
// for what runs. Use [Room.Left] or [Room.Short] of one, not both. The methods may be called
// concurrently.
type Room struct {
	base   context.Context //nolint:containedctx // ends with the node
	bus    *bus.Bus
	stream string
	run    func(func())

	asking chan struct{} // of capacity 1: one of those that wait for the answer asks

	mu         sync.Mutex
	asked      time.Time // when the store was last asked
	known      time.Time // when it last answered
	used, most int64     // bytes
}

// NewRoom returns the room of a stream behind b. run has a goroutine run a function,
// whose questions end with base.
func NewRoom(base context.Context, b *bus.Bus, stream string, run func(func())) *Room {
	return &Room{base: base, bus: b, stream: stream, run: run, asking: make(chan struct{}, 1)}
}

// Left returns how many bytes are left beyond what is kept for what runs, and how many
// the store may hold, 0 for no bound or no answer. It asks the store once a second at most,
// and waits for the answer until ctx ends.
func (r *Room) Left(ctx context.Context) (left, most int64) {
	select {
	case r.asking <- struct{}{}:
	case <-ctx.Done():
		return 0, 0
	}
	r.mu.Lock()
	stale := time.Since(r.asked) >= askEvery
	if stale {
		r.asked = time.Now() // also if it does not answer: waiters do not ask one after the other
	}
	r.mu.Unlock()
	if stale {
		r.ask(ctx)
	}
	<-r.asking
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most - r.used - r.most/spare, max(r.most, 0)
}

// Short reports whether what is left is to be kept for the streams that run, and how
// many bytes the store holds and may hold. It does not block: the first stream after a
// quiet time begins whatever the store holds.
func (r *Room) Short() (used, most int64, short bool) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.asked) >= askEvery {
		r.asked = now
		r.run(func() { r.ask(r.base) })
	}
	if r.most <= 0 || now.Sub(r.known) >= knownFor {
		return 0, 0, false
	}
	return r.used, r.most, r.most-r.used < r.most/spare
}

// ask asks the store. Without an answer what was known counts for its time.
func (r *Room) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	stream, err := r.bus.JetStream().Stream(ctx, r.stream)
	if err != nil {
		return
	}
	info := stream.CachedInfo()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = time.Now()
	r.used, r.most = int64(min(info.State.Bytes, 1<<62)), info.Config.MaxBytes
}
