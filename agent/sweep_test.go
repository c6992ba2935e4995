package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// swept notes when it was asked to sweep.
type swept struct {
	at  []time.Time
	age time.Duration
}

func (s *swept) Sweep(ctx context.Context, age time.Duration) (int, error) {
	s.at, s.age = append(s.at, time.Now()), age
	if len(s.at)%2 == 0 {
		return 0, errors.New("no leader")
	}
	return 1, ctx.Err()
}

func TestSweepsAreAboutHourly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, s := time.Now(), &swept{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			sweep(ctx, s, slog.New(slog.DiscardHandler))
			close(done)
		}()
		time.Sleep(100 * time.Hour) // of the bubble
		cancel()
		<-done
		if s.age != 24*time.Hour || len(s.at) < 67 || len(s.at) > 200 {
			t.Fatalf("%d sweeps in 100 hours, of what is older than %v", len(s.at), s.age)
		}
		gaps := make(map[time.Duration]bool)
		last := began
		for _, at := range s.at {
			gap := at.Sub(last)
			if gap < 30*time.Minute || gap > 90*time.Minute {
				t.Errorf("%v between two sweeps", gap)
			}
			gaps[gap] = true
			last = at
		}
		if len(gaps) < len(s.at)/2 {
			t.Errorf("%d sweeps, %d different gaps: agents would sweep all at once", len(s.at), len(gaps))
		}
	})
}
