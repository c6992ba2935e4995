package sandbox

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/tool"
)

// Bounds limit a program with all processes that it starts; 0 is no limit.
type Bounds struct {
	Time   time.Duration
	Memory int64 // bytes
	Tasks  int   // processes and threads
	// Groups are where the kernel enforces Memory and Tasks; without them they are polled.
	Groups *cgroup.Tree
}

// aboveProgram is the memory in the control group of a program in addition to it, in bytes: the
// interpreter above it, and the kernel's own.
const aboveProgram = 28 << 20

// Backstop is the memory that one process may reserve, in bytes, where Memory is enforced for all together.
func Backstop(memory int64) int64 { return 2*memory + 256<<20 }

// Intervals at which processes are measured. Within one interval a process may exceed its
// limits.
const (
	// LookOften is for limits that a tool declares.
	LookOften = 20 * time.Millisecond
	// LookRarely is for all others: those of the node are wide and hold for every call.
	LookRarely = 100 * time.Millisecond
)

// Pace is the interval at which the processes of a call are measured, by the limits that its
// tool declares and those in effect; 0 for never.
func Pace(declared, inEffect tool.Limits) time.Duration {
	closely := func(l tool.Limits) bool { return l.CPUTime > 0 || l.Memory > 0 || l.Pids > 0 }
	switch {
	case !closely(inEffect) && inEffect.TempFiles == 0:
		return 0
	case closely(declared):
		return LookOften
	}
	return LookRarely
}

// Watch measures the processes below p at this interval, until p has ended or look returns
// done. It counts up to most tasks.
func (p *Process) Watch(every time.Duration, most int, look func(u Usage) (done bool)) {
	for {
		select {
		case <-p.done:
			return
		case <-time.After(every):
		}
		u, _ := UsageOf(p.Pid(), false, most)
		select {
		case <-p.done: // the id may be another process's
			return
		default:
		}
		if look(u) {
			return
		}
	}
}

// Enclose moves a process that has just started, with its children, into a group and limits the
// group's memory, in bytes; 0 leaves that to the caller. It does nothing without a group. If
// the system refuses, it logs that, and the limits are polled.
func Enclose(log *slog.Logger, group *cgroup.Group, pid int, memory int64) {
	if group == nil {
		return
	}
	var failed []error
	known := map[int]bool{}
	for found := []int{pid}; len(found) > 0; {
		for _, one := range found {
			known[one] = true
			failed = append(failed, group.Add(one))
		}
		found = slices.DeleteFunc(Descendants(pid), func(one int) bool { return known[one] })
	}
	if memory > 0 {
		failed = append(failed, group.Limit(memory))
	}
	if err := errors.Join(failed...); err != nil {
		log.Warn("process could not be moved to its control group: its limits are polled", slog.Int("pid", pid), slog.String("error", err.Error()))
	}
}

// EncloseProgram moves a process above a program that has not started into a group of its own
// and limits the memory (bytes) and tasks below it; 0 is no limit. It returns nil without
// control groups.
func EncloseProgram(log *slog.Logger, groups *cgroup.Tree, pid int, memory int64, tasks int) *cgroup.Group {
	if tasks > 0 {
		tasks++ // the process itself
	}
	group := groups.ForLimits(memory, tasks)
	if memory > 0 {
		memory += memory/32 + aboveProgram
	}
	Enclose(log, group, pid, memory)
	return group
}

// keep enforces the bounds of a process, above a program that has not started, until it ends.
// exceeded, called after that, returns which bound ended it, if any.
func (s *Spawner) keep(proc *Process, b Bounds) (exceeded func() error) {
	group := EncloseProgram(s.log, b.Groups, proc.Pid(), b.Memory, b.Tasks)
	end := time.Now().Add(b.Time)
	var found error
	var looking sync.WaitGroup
	looking.Go(func() {
		defer group.Close()
		proc.Watch(LookRarely, b.Tasks, func(u Usage) bool {
			memory := u.MemoryFor(b.Memory, 0, func() (int64, bool) { return ShareOf(proc.Pid(), false) })
			if found = b.exceeded(group, memory, u.Tasks); found == nil && b.Time > 0 && time.Now().After(end) {
				found = fmt.Errorf("it ran longer than %v and was killed", b.Time)
			}
			return found != nil
		})
		if found == nil {
			found = b.exceeded(group, 0, 0)
			return
		}
		proc.Kill()
	})
	return func() error { looking.Wait(); return found }
}

// exceeded returns which bound was exceeded: by these bytes and tasks, or because the kernel
// refused a task or killed a process for lack of memory.
func (b Bounds) exceeded(group *cgroup.Group, memory int64, tasks int) error {
	switch {
	case b.Memory > 0 && memory > b.Memory, group.Kills() > 0:
		return fmt.Errorf("it used more than its limit of %d bytes of memory and was killed", b.Memory)
	case b.Tasks > 0 && tasks > b.Tasks, group.Refused() > 0:
		return fmt.Errorf("it had more than its limit of %d processes and threads and was killed", b.Tasks)
	}
	return nil
}
