package sandbox

import (
	"fmt"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
)

// Bounds are what a program may take, with all that it starts; 0 is no bound.
type Bounds struct {
	Time   time.Duration
	Memory int64 // bytes
	Tasks  int   // processes and threads
	// Groups are where the kernel keeps Memory and Tasks; elsewhere they are kept by looking.
	Groups *cgroup.Tree
}

const (
	boundsEvery = 100 * time.Millisecond // how often it is looked
	aboveIt     = 28 << 20               // bytes of the process above a program, and of the kernel
)

// keep keeps a process, above a program that has not begun, within the bounds until it
// ends. exceeded, called after that, says which one made it end, if one did.
func (b Bounds) keep(proc *Process) (exceeded func() error) {
	var found error
	if b.Time == 0 && b.Memory == 0 && b.Tasks == 0 {
		return func() error { return nil }
	}
	tasks := b.Tasks
	if tasks > 0 {
		tasks++ // the process above it
	}
	group := b.Groups.ForLimits(b.Memory, tasks)
	if group != nil {
		err := group.Add(proc.Pid())
		if err == nil && b.Memory > 0 {
			err = group.Limit(b.Memory + aboveIt)
		}
		if err != nil { // then it is looked at
			group.Close()
			group = nil
		}
	}
	end := time.Now().Add(b.Time)
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			select {
			case <-proc.Done():
				if found == nil {
					found = b.refused(group)
				}
				if group != nil {
					group.Close()
				}
				return
			case <-time.After(boundsEvery):
			}
			if found == nil {
				if found = b.check(proc, group, end); found != nil {
					go proc.Kill()
				}
			}
		}
	})
	return func() error { looking.Wait(); return found }
}

func (b Bounds) check(proc *Process, group *cgroup.Group, end time.Time) error {
	if b.Time > 0 && time.Now().After(end) {
		return fmt.Errorf("it did not end within %v and was ended", b.Time)
	}
	if err := b.refused(group); err != nil {
		return err
	}
	u, _ := UsageOf(proc.Pid(), false, b.Tasks)
	if b.Tasks > 0 && u.Tasks > b.Tasks {
		return b.tooMany()
	}
	if b.Memory > 0 && u.MemoryFor(b.Memory, 0, func() (int64, bool) { return ShareOf(proc.Pid(), false) }) > b.Memory {
		return b.tooMuch()
	}
	return nil
}

// refused says what the kernel has refused, or killed a process for.
func (b Bounds) refused(group *cgroup.Group) error {
	switch {
	case group == nil:
		return nil
	case group.Kills() > 0:
		return b.tooMuch()
	case group.Refused() > 0:
		return b.tooMany()
	}
	return nil
}

func (b Bounds) tooMuch() error {
	return fmt.Errorf("it took more than the %d bytes of memory that it may and was ended", b.Memory)
}

func (b Bounds) tooMany() error {
	return fmt.Errorf("it had more than the %d processes and threads that it may and was ended", b.Tasks)
}
