package executor

import (
	"cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// Policy says how one tool is run. The zero value is the default of each field.
type Policy struct {
	// Isolation says which process runs a call. A call may ask for a tighter one,
	// never for a looser one. Defaults to warm.
	Isolation toolmesh.Isolation
	// Affinity says what isolation session does while the session's worker is busy.
	// Tools that differ in it share no worker. Defaults to strict-queue.
	Affinity tool.Affinity
	// Sandbox says what the tool's processes may touch, its import included.
	// A tool whose level the machine does not give is unavailable. Defaults to
	// the executor's level, as far as the machine gives it.
	Sandbox tool.Sandbox
	// Limits bound one call. Zero fields mean those of the executor.
	Limits tool.Limits
	// Vars are environment variables that this tool's processes see beside those
	// of [Spec.Vars]. Tools with other variables never share a process with it.
	Vars map[string]string
}

func (p Policy) withDefaults(box tool.Sandbox) Policy {
	p.Isolation = cmp.Or(p.Isolation, toolmesh.IsolationWarm)
	p.Sandbox = cmp.Or(p.Sandbox, box)
	p.Affinity = cmp.Or(p.Affinity, tool.AffinityQueue)
	return p
}

func (p Policy) check() error {
	if _, err := tool.ParseIsolation(string(p.Isolation)); err != nil {
		return err
	}
	if _, err := tool.ParseSandbox(string(p.Sandbox)); err != nil {
		return err
	}
	_, err := tool.ParseAffinity(string(p.Affinity))
	return err
}

// groupKey is what all processes of a group have in common from their start:
// tools that differ in it never share a process, not even while they are imported.
type groupKey struct {
	sandbox tool.Sandbox
	env     string // all variables
}

// poolKey is what all calls of a pool have in common.
type poolKey struct {
	groupKey
	async     bool
	isolation toolmesh.Isolation
	limits    tool.Limits
	session   string // of isolation session, as are epoch and home: see [Call]
	epoch     string
	home      string
	affinity  tool.Affinity
	tool      string // of isolation fresh: its workers import nothing else
	suspect   string // the one tool whose calls run there, because it may have crashed others
}
