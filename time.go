package toolmesh

import "time"

// MaxTime is the longest time that a caller, a tool or a setting can ask for; longer ones are cut
// to it, so that sums of times do not overflow.
const MaxTime = 100 * 365 * 24 * time.Hour

// Millis converts a number of milliseconds from an untrusted source, cut to -[MaxTime] to
// [MaxTime].
func Millis(n int64) time.Duration {
	return time.Duration(min(max(n, -MaxTime.Milliseconds()), MaxTime.Milliseconds())) * time.Millisecond
}
