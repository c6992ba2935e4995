package agent

import (
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/registry"
)

// Stuck returns why the agent makes no progress even with a healthy broker; nil while it does. See
// [host.Host.Stuck]. It may be called at any time.
func (a *Agent) Stuck() error {
	return a.member.Stuck()
}

// Condition returns why the agent is not ready: the error of [host.Host.Unready], or that indexes
// which were installed at its start are not built yet. A failed build and an index installed later
// leave the agent ready, since it serves the others: note names them. It may be called at any time.
func (a *Agent) Condition() (note string, err error) {
	d := a.running.Load()
	if d == nil {
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "the agent is starting")
	}
	if err := a.member.Node().Unready(); err != nil {
		return "", err
	}
	building, failed := d.Outstanding()
	if len(building) > 0 && !a.served.Load() {
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "being built: %s", deploy.Some(building))
	}
	a.served.Store(true)
	var notes []string
	if len(building) > 0 {
		notes = append(notes, "being built: "+deploy.Some(building))
	}
	if len(failed) > 0 {
		notes = append(notes, "not served as installed, see mesh ls: "+deploy.Some(failed))
	}
	return strings.Join(notes, "; "), nil
}

// Figures are those of the node; nil before it has started.
func (a *Agent) Figures() *host.Figures {
	return a.member.Figures()
}

// Seen returns the agent's view of the mesh; nil before its start and after its drain.
func (a *Agent) Seen() *registry.View {
	return a.member.Seen()
}

// Workers are those of all indexes that the agent serves.
func (a *Agent) Workers() executor.Workers {
	var all executor.Workers
	for _, i := range a.open() {
		if i.index != nil {
			all.Add(i.index.Stats())
		}
	}
	return all
}
