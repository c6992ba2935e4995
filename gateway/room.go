package gateway

import (
	"context"
	"fmt"

	"golang.org/x/sync/semaphore"
)

// room bounds how much of one kind is in use at once, by a token or by all.
type room struct {
	*semaphore.Weighted
	size int64
	full string // the detail of the error when no more is left
}

func newRoom(size int64, full string) room {
	return room{semaphore.NewWeighted(size), size, fmt.Sprintf(full, size)}
}

// take takes n of each room; give them back with the function. The error is busy.
func take(n int64, rooms ...room) (func(), error) {
	return acquire(n, rooms, func(r room) bool { return r.TryAcquire(n) })
}

// wait is take which waits for a room that is full, until ctx ends.
func wait(ctx context.Context, n int64, rooms ...room) (func(), error) {
	return acquire(n, rooms, func(r room) bool { return r.Acquire(ctx, n) == nil })
}

func acquire(n int64, rooms []room, one func(room) bool) (func(), error) {
	release := func(taken []room) {
		for _, r := range taken {
			r.Release(n)
		}
	}
	for i, r := range rooms {
		if !one(r) {
			release(rooms[:i])
			return nil, busy("%s", r.full)
		}
	}
	return func() { release(rooms) }, nil
}
