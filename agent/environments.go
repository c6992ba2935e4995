package agent

import (
	"context"
	"time"

	"github.com/toolmesh/toolmesh/internal/wake"
)

// environmentAge is how long an environment that no index uses is kept. A build
// that failed is tried again within two minutes and finds its environment.
const environmentAge = 3 * time.Minute

// tidy removes environments that no index uses until ctx ends. It begins once every installed
// index has its own: the others are of an earlier process.
func tidy(ctx context.Context, ready func(context.Context) error, remove func(age time.Duration), age time.Duration) {
	if ready(ctx) != nil {
		return
	}
	for remove(age); wake.After(ctx, max(age/4, time.Millisecond)); {
		remove(age)
	}
}
