package agent

import (
	"context"
	"time"
)

// environmentAge is how long an environment that no index uses is kept. A build
// that failed is tried again within two minutes and finds its environment.
const environmentAge = 3 * time.Minute

// tidy removes environments that no index uses until ctx ends. It begins when
// everything that is installed has asked for its own: what nobody has asked for
// by then, an earlier process left.
func tidy(ctx context.Context, ready func(context.Context) error, remove func(age time.Duration), age time.Duration) {
	if ready(ctx) != nil {
		return
	}
	ticker := time.NewTicker(max(age/4, time.Millisecond))
	defer ticker.Stop()
	for {
		remove(age)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
