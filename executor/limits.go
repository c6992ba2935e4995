package executor

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// scratch is the folder, below the executor's, of what confined workers write.
const scratch = "tmp"

// Sandbox is the level that tools run in which demand none, and why it is not
// the one of [Options.Sandbox]. The first call tests the machine.
func (x *Executor) Sandbox() (effective tool.Sandbox, reasons []string) {
	return x.spawner.Survey().Effective(x.opts.Sandbox)
}

func (x *Executor) defaultSandbox() tool.Sandbox {
	effective, _ := x.Sandbox()
	return effective
}

// ownFolder makes the folder that the processes of a zygote to be may write,
// where its sandbox level leaves them no other.
func (x *Executor) ownFolder(s *setup) (err error) {
	s.Folder, err = sandbox.Folder(s.Sandbox, filepath.Join(x.dir, scratch))
	return err
}

// removeFolder removes what the worker wrote to its own.
func (w *worker) removeFolder() {
	if w.zygote.folder != "" {
		_ = os.RemoveAll(filepath.Join(w.zygote.folder, "w"+strconv.FormatUint(w.id, 10)))
	}
}

// Lacks says why a tool that demands a sandbox level cannot be served; empty
// when it can. The first call tests the machine.
func (x *Executor) Lacks(level tool.Sandbox) string { return x.spawner.Survey().Lacks(level) }

// refuse lists the family's tools as unavailable, for want of the sandbox level.
func (f *family) refuse(why string) []Unavailable {
	all := make([]Unavailable, 0, len(f.setup.Tools))
	for _, name := range f.setup.Tools {
		all = append(all, Unavailable{Name: name, Reason: why})
	}
	return all
}

// spent takes a worker out of service that its own call has used up: its end is
// no crash.
func (c *crew) spent(w *worker) {
	c.mu.Lock()
	w.retired, w.stopping = true, true
	c.mu.Unlock()
}

// exitSpent is the status of a worker that ends between two calls because one of
// them has changed it beyond repair; snapshot.py says the same.
const exitSpent = 75

// resigned says of a worker that ended by itself between two calls that this is no crash.
func (c *crew) resigned(w *worker) {
	if w.exit.Code != exitSpent {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	jobs := slices.Collect(maps.Values(w.jobs))
	if j := w.current.Load(); j != nil {
		jobs = append(jobs, j)
	}
	for _, j := range jobs {
		if w.begun(j) == toolmesh.StartedYes {
			return // it ended in the midst of a call
		}
	}
	w.stopping = true
}
