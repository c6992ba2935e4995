package sandbox

import "time"

// Look limits how often something expensive is measured.
type Look struct{ next time.Time }

// Due measures unless that happened a moment ago or would take more than a twentieth of the
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

// Usage is the usage of a process and all processes below it.
type Usage struct {
	CPU       time.Duration // since they started, with children that were waited for
	Memory    int64         // resident bytes with mapped files; shared pages count for each process
	Tasks     int           // processes and threads
	Processes int
}

// mostProcesses bounds the measured processes: a fork bomb has many.
const mostProcesses = 4096

// MemoryFor is the memory to compare with a limit, beyond base. It calls share, which costs
// more, only if that decides.
func (u Usage) MemoryFor(limit, base int64, share func() (int64, bool)) int64 {
	memory := u.Memory - base
	if memory > limit {
		if shared, ok := share(); ok {
			memory = min(memory, shared)
		}
	}
	return memory
}
