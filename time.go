package toolmesh

import "time"

// MaxTime is the longest time that a caller, a tool or a setting can ask for: what is
// longer means this. So nothing that is added to such a time overflows.
const MaxTime = 100 * 365 * 24 * time.Hour

// Millis is the time of a number of milliseconds that somebody else has written: from
// -[MaxTime] to [MaxTime].
func Millis(n int64) time.Duration {
	return time.Duration(min(max(n, -MaxTime.Milliseconds()), MaxTime.Milliseconds())) * time.Millisecond
}
