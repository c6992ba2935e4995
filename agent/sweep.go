package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/toolmesh/toolmesh/internal/wake"
)

const (
	// sweepEvery is about how often an agent sweeps the registry; the intervals are random, so
	// that the agents alternate.
	sweepEvery = time.Hour
	// sweepAge is the min age of a record that is removed: longer than a machine is off at night.
	sweepAge = 24 * time.Hour
	// sweepWithin bounds one sweep.
	sweepWithin = time.Minute
)

// sweeper removes the records of processes that have ended.
type sweeper interface {
	Sweep(ctx context.Context, age time.Duration) (deleted int, err error)
}

// sweep sweeps now and then until ctx ends.
func sweep(ctx context.Context, s sweeper, log *slog.Logger) {
	for wake.After(ctx, sweepEvery/2+rand.N(sweepEvery)) {
		attempt, cancel := context.WithTimeout(ctx, sweepWithin)
		switch n, err := s.Sweep(attempt, sweepAge); {
		case err != nil && ctx.Err() == nil:
			log.Warn("registry not swept", slog.String("error", err.Error()))
		case n > 0:
			log.Info("registry swept", slog.Int("records", n))
		}
		cancel()
	}
}

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
