package registry

import (
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/codec"
)

// The rate of busy answers is the difference of two heartbeats over their distance; if that is
// unknown or old, it is zero.
func TestRefusalsBetweenHeartbeats(t *testing.T) {
	t.Parallel()
	began := time.Unix(1_700_000_000, 0)
	var r refusals
	for i, step := range []struct {
		at        time.Duration
		busy, ms  uint64
		boot      string
		calls     int
		wanting   float64
		heartbeat string
	}{
		{0, 500, 9000, "a", 0, 0, "the first says nothing of when"},
		{time.Second, 600, 10_000, "a", 100, 1, "a hundred, of 10 ms each"},
		{1100 * time.Millisecond, 640, 10_400, "a", 100, 1, "sent at once: too soon to tell"},
		{2 * time.Second, 700, 14_000, "a", 100, 4, "that one counts here"},
		{4 * time.Second, 702, 16_000, "a", 2, 1, "one was lost"},
		{5 * time.Second, 702, 16_000, "a", 0, 0, "none"},
		{6 * time.Second, 3, 3000, "b", 0, 0, "another process"},
		{7 * time.Second, 5, 5000, "b", 2, 2, "which goes on"},
		{8 * time.Second, 1, 1000, "b", 0, 0, "totals that fall are no difference"},
		{9 * time.Second, 2, 1500, "b", 1, 0.5, "and then are"},
	} {
		another := i == 0 || step.boot == "b" && step.at == 6*time.Second
		r.take(codec.Heartbeat{Boot: step.boot, Busy: step.busy, BusyMS: step.ms}, another, began.Add(step.at))
		if r.calls != step.calls || r.wanting != step.wanting {
			t.Errorf("%v, %s: %d calls, %v callers; want %d and %v", step.at, step.heartbeat, r.calls, r.wanting, step.calls, step.wanting)
		}
	}
}
