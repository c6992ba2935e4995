package quota

import (
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/subjects"
)

// Stored bytes of a session count for 15 minutes, independently of other sessions, and returned
// bytes do not count.
func TestQuota(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000_020, 0)
	const window = 15 * time.Minute
	q := New(100, window, func() time.Time { return now })
	take := func(session subjects.SessionID, n, used int64, ok bool) {
		t.Helper()
		if gotUsed, gotOK := q.Take(session, n); gotUsed != used || gotOK != ok {
			t.Errorf("%d bytes of %s: %d used, %v; want %d, %v", n, session, gotUsed, gotOK, used, ok)
		}
	}
	take("a", 60, 60, true)
	take("a", 41, 60, false)
	take("b", 100, 100, true) // a quota of its own
	now = now.Add(time.Minute)
	take("a", 40, 100, true)
	q.Give("a", 50) // 40 of this minute and 10 of the one before
	take("a", 51, 50, false)
	take("a", 50, 100, true)

	now = now.Add(window - 2*time.Minute)
	take("a", 1, 100, false) // all of it is younger than the window
	now = now.Add(time.Minute)
	take("a", 51, 50, false) // the first minute is over
	take("a", 1, 51, true)

	q.Sweep()
	if _, ok := q.accounts["b"]; ok || len(q.accounts) != 1 {
		t.Errorf("%d sessions are known, with b: %v; want a alone", len(q.accounts), ok)
	}
	now = now.Add(24 * time.Hour) // far more than all slices
	q.Sweep()
	q.Give("a", 1) // of a session that is forgotten
	if len(q.accounts) != 0 {
		t.Errorf("%d sessions are known after a day", len(q.accounts))
	}
	take("a", 100, 100, true)
}
