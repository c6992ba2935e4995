package chunks

import (
	"context"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
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

// Room is what a node knows of the room that is left in the store of chunks. It asks
// while streams begin, and nothing waits for the answer: the first stream after a
// quiet time begins whatever the store holds. Its methods may be called concurrently.
type Room struct {
	base context.Context //nolint:containedctx // ends with the node
	bus  *bus.Bus
	run  func(func())

	mu         sync.Mutex
	asked      time.Time // when the store was last asked
	known      time.Time // when it last answered
	used, most int64     // bytes
}

// NewRoom returns the room of the store behind b. run has a goroutine run a function,
// whose questions end with base.
func NewRoom(base context.Context, b *bus.Bus, run func(func())) *Room {
	return &Room{base: base, bus: b, run: run}
}

// Short reports whether what is left is to be kept for the streams that run, and how
// many bytes the store holds and may hold. It does not block.
func (r *Room) Short() (used, most int64, short bool) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.asked) >= askEvery {
		r.asked = now
		r.run(r.ask)
	}
	if r.most <= 0 || now.Sub(r.known) >= knownFor {
		return 0, 0, false
	}
	return r.used, r.most, r.most-r.used < r.most/spare
}

// ask asks the store. Without an answer what was known counts for its time.
func (r *Room) ask() {
	ctx, cancel := context.WithTimeout(r.base, askWait)
	defer cancel()
	stream, err := r.bus.JetStream().Stream(ctx, subjects.StreamChunks)
	if err != nil {
		return
	}
	info := stream.CachedInfo()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = time.Now()
	r.used, r.most = int64(min(info.State.Bytes, 1<<62)), info.Config.MaxBytes
}
