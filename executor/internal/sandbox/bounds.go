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

// Bounds are what a program may take, with all that it starts; 0 is no bound.
type Bounds struct {
	Time   time.Duration
	Memory int64 // bytes
	Tasks  int   // processes and threads
	// Groups are where the kernel keeps Memory and Tasks; elsewhere they are kept by looking.
	Groups *cgroup.Tree
}

// aboveProgram is what the control group of a program holds next to it, in bytes: the
// interpreter above it, and what the kernel holds on its behalf.
const aboveProgram = 28 << 20

// Backstop is what one process may reserve, in bytes, where Memory is kept for all of them.
func Backstop(memory int64) int64 { return 2*memory + 256<<20 }

// How often processes are looked at: what they take beyond a limit before they are stopped
// is what they can take in that time.
const (
	// LookOften is for limits that a tool declares.
	LookOften = 20 * time.Millisecond
	// LookRarely is for all others: those of the node are wide and hold for every call.
	LookRarely = 100 * time.Millisecond
)

// Pace is how often the processes of a call are looked at whose tool declares limits, for
// those in effect; 0: they need not be.
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

// Watch looks at what is below the process, as often as every says, until it has ended or
// look is done. Tasks beyond most are not counted.
func (p *Process) Watch(every time.Duration, most int, look func(u Usage) (done bool)) {
	for {
		select {
		case <-p.done:
			return
		case <-time.After(every):
		}
		u, _ := UsageOf(p.Pid(), false, most)
		select {
		case <-p.done: // it was another process's id by then
			return
		default:
		}
		if look(u) {
			return
		}
	}
}

// Enclose moves a process that has just begun into a group, with what it has started, and
// bounds the group's memory, in bytes; 0: the caller does so later. It does nothing without a
// group. Where the system refuses, the log says so, and the limits are kept by looking.
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
		log.Warn("a process is in no control group", slog.Int("pid", pid), slog.String("error", err.Error()))
	}
}

// EncloseProgram moves a process above a program that has not begun into a group of its own,
// which bounds the memory (bytes) and the tasks of what will be below it; 0 is no bound. The
// group is nil where there are none.
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

// keep keeps a process, above a program that has not begun, within the bounds until it
// ends. exceeded, called after that, says which one made it end, if one did.
func (s *Spawner) keep(proc *Process, b Bounds) (exceeded func() error) {
	if b.Time == 0 && b.Memory == 0 && b.Tasks == 0 {
		return func() error { return nil }
	}
	group := EncloseProgram(s.log, b.Groups, proc.Pid(), b.Memory, b.Tasks)
	end := time.Now().Add(b.Time)
	var found error
	var looking sync.WaitGroup
	looking.Go(func() {
		defer group.Close()
		proc.Watch(LookRarely, b.Tasks, func(u Usage) bool {
			memory := u.MemoryFor(b.Memory, 0, func() (int64, bool) { return ShareOf(proc.Pid(), false) })
			if found = b.exceeded(group, memory, u.Tasks); found == nil && b.Time > 0 && time.Now().After(end) {
				found = fmt.Errorf("it did not end within %v and was ended", b.Time)
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

// exceeded says which bound was exceeded: by these bytes and tasks, or as the kernel has
// refused a task, or killed a process for want of memory.
func (b Bounds) exceeded(group *cgroup.Group, memory int64, tasks int) error {
	switch {
	case b.Memory > 0 && memory > b.Memory, group.Kills() > 0:
		return fmt.Errorf("it took more than the %d bytes of memory that it may and was ended", b.Memory)
	case b.Tasks > 0 && tasks > b.Tasks, group.Refused() > 0:
		return fmt.Errorf("it had more than the %d processes and threads that it may and was ended", b.Tasks)
	}
	return nil
}
