package gateway

import (
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// What a token is narrowed to. The broker holds its calls to that; here its lists are, and its rate.

// may reports whether lists of the token have a tool, as far as its globs say.
func (l *link) may(id subjects.ToolID) bool { return l == nil || l.key.Tools.Match(id) }

// narrowed reports whether the token may call some tools alone.
func (l *link) narrowed() bool { return l != nil && (len(l.key.Tools) > 0 || l.key.ReadOnly) }

// readOnly reports whether lists of the token have tools alone that declare read_only.
func (l *link) readOnly() bool { return l != nil && l.key.ReadOnly }

// spend takes calls from the token's rate. The error is busy, and says when there are enough again.
func (l *link) spend(calls int) error {
	if l == nil || l.key.Rate == 0 {
		return nil
	}
	l.limited.Do(func() {
		l.limiter = rate.NewLimiter(rate.Limit(l.key.Rate), max(1, int(math.Ceil(l.key.Rate))))
	})
	now := time.Now()
	taken := l.limiter.ReserveN(now, calls)
	if !taken.OK() {
		return refused(toolmesh.CodePayloadTooLarge, "%d calls at once are more than the token may make: %d", calls, l.limiter.Burst())
	}
	wait := taken.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	taken.CancelAt(now)
	return refused(toolmesh.CodeBusy, "the token may make %v calls in a second, and has made them", l.key.Rate).WithDetail("retry_after_ms", max(1, wait.Milliseconds()))
}
