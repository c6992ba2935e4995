package sandbox

import "time"

// Usage is what a process and all below it take.
type Usage struct {
	CPU       time.Duration // since they started, with what they waited for
	Memory    int64         // resident bytes; pages that several hold count for each
	Tasks     int           // processes and threads
	Processes int
}

// mostProcesses bounds the processes that are looked at: a bomb has many.
const mostProcesses = 4096
