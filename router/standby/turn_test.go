package standby

import (
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// The end of a call wakes one call that waits for room on its node: the first that came.
func TestEndOfACallWakesOneWaitingCall(t *testing.T) {
	t.Parallel()
	s := &Standby{calls: make(map[*call]struct{}), sent: map[subjects.NodeID]int{"a": 2, "b": 1}, changed: make(chan struct{})}
	full := func(after time.Duration, nodes ...subjects.NodeID) *call {
		c := &call{s: s, arrived: time.Unix(0, 0).Add(after), waiting: true, room: make(chan struct{}, 1)}
		for _, id := range nodes {
			var one registry.Candidate
			one.Node = id
			c.full = append(c.full, one)
		}
		s.calls[c] = struct{}{}
		return c
	}
	second, first, other, waits := full(2, "b", "a"), full(1, "a"), full(0, "b"), full(0)
	taken := full(0, "a")
	taken.waiting = false
	woken := func(want ...*call) {
		t.Helper()
		for c := range s.calls {
			expected := false
			for _, one := range want {
				expected = expected || one == c
			}
			if (len(c.room) == 1) != expected {
				t.Errorf("the call that came at %v: woken is %v", c.arrived.UnixNano(), !expected)
			}
		}
		select {
		case <-s.changed:
			t.Error("all look again")
		default:
		}
	}
	woken()
	s.count("a", -1)
	woken(first)
	s.count("a", -1)
	woken(first, second)
	s.count("a", 1)
	s.count("b", -1)
	woken(first, second, other)
	s.count("b", -1)
	woken(first, second, other)
	_ = waits
}
