package wake

import (
	"context"
	"time"
)

// Up wakes the goroutine that waits for a channel of capacity 1. One that was woken and has yet to look is not woken
// twice.
func Up(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// After returns true after a time, or false as soon as ctx ends.
func After(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
