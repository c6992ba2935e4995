package sandbox

import "time"

// Look is when something was looked at that may take long to look at.
type Look struct{ next time.Time }

// Due looks, unless that was done a moment ago, or would take more than a twentieth of the
// time.
func (l *Look) Due(look func() int64) (found int64, looked bool) {
	began := time.Now()
	if began.Before(l.next) {
		return 0, false
	}
	found = look()
	now := time.Now()
	l.next = now.Add(max(LookRarely/2, 20*now.Sub(began)))
	return found, true
}

// Usage is what a process and all below it take.
type Usage struct {
	CPU       time.Duration // since they started, with what they waited for
	Memory    int64         // resident bytes, of mapped files too; pages that several hold count for each
	Tasks     int           // processes and threads
	Processes int
}

// mostProcesses bounds the processes that are looked at: a bomb has many.
const mostProcesses = 4096

// MemoryFor is the memory to compare with a limit, beyond base: share, which costs
// more, is asked only if it decides.
func (u Usage) MemoryFor(limit, base int64, share func() (int64, bool)) int64 {
	memory := u.Memory - base
	if memory > limit {
		if shared, ok := share(); ok {
			memory = min(memory, shared)
		}
	}
	return memory
}
