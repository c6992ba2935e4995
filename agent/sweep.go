package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	// sweepEvery is about how often an agent looks for what others left in the
	// registry; they take turns by chance.
	sweepEvery = time.Hour
	// sweepAge is how long it may have been there: longer than a machine is off
	// over night.
	sweepAge = 24 * time.Hour
	// sweepWithin bounds one sweep.
	sweepWithin = time.Minute
)

// sweeper takes away what processes left in the registry that are gone.
type sweeper interface {
	Sweep(ctx context.Context, age time.Duration) (deleted int, err error)
}

// sweep sweeps now and then until ctx ends.
func sweep(ctx context.Context, s sweeper, log *slog.Logger) {
	for {
		timer := time.NewTimer(sweepEvery/2 + rand.N(sweepEvery))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
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
