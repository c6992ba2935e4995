package grants

import (
	"context"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/tool"
)

// lease is a presence with a lease that ends soon.
type lease struct {
	Presence
	since, until time.Time
}

func (l lease) Held() (since, until time.Time) { return l.since, l.until }

// A call whose owner's lease ends soon waits for the next one, and asks again a few times only.
func TestCallWaitsForTheOwnersNextLease(t *testing.T) {
	since := time.Now()
	k := New(Options{Node: "here", Boot: "1", Presence: lease{since: since, until: since.Add(1400 * time.Millisecond)}, Go: func(f func()) { go f() }})
	k.domain(domainKey{session: "s"}).term = newTerm(since, 1, time.Time{})
	ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
	defer cancel()
	waited := 0
	_, _ = k.Take(ctx, Ask{Scope: tool.LaneSession, Session: "s", RPCID: "r", Tool: "x.y", Wait: func() { waited++ }})
	if k.counter > 50 || waited != 1 {
		t.Errorf("asked %d times in 0.9 s, and was told to wait %d times", k.counter, waited)
	}
}
