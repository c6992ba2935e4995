package agent

import (
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/registry"
)

// Stuck is why the agent does not get on, whatever the broker does; nil while it does.
// See [host.Host.Stuck]. It may be called at any time.
func (a *Agent) Stuck() error {
	return a.member.Stuck()
}

// Condition is why the agent is not to be counted on: what [host.Host.Unready] says, or
// that the indexes which were installed when it started have yet to be built. An index
// whose build failed, and one that is installed later, leaves the agent ready, for it
// serves the others: note says so, for people. It may be called at any time.
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

// Seen is what the agent knows of the mesh; nil before it has started and once it has
// drained.
func (a *Agent) Seen() *registry.View {
	return a.member.Seen()
}

// Workers are those of all indexes that the agent serves.
func (a *Agent) Workers() executor.Workers {
	var all executor.Workers
	for _, i := range a.indexes() {
		all.Add(i.Stats().Stats)
	}
	return all
}
