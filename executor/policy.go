package executor

import (
	"cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// Policy configures one tool. The zero value has the default of each field.
type Policy struct {
	// Isolation decides which process runs a call. A call may tighten it, but not loosen it.
	// Defaults to warm.
	Isolation toolmesh.Isolation
	// Sandbox is the level of the tool's processes, including its import. The tool is
	// unavailable if the machine lacks it. Defaults to the executor's level, as far as the
	// machine has it.
	Sandbox tool.Sandbox
	// Limits are of one call. Zero fields mean those of the executor.
	Limits tool.Limits
	// Vars are environment variables of this tool's processes in addition to [Spec.Vars].
	// Tools with other variables never share a process with it.
	Vars map[string]string
}

func (p Policy) withDefaults(box tool.Sandbox) Policy {
	p.Isolation = cmp.Or(p.Isolation, toolmesh.IsolationWarm)
	p.Sandbox = cmp.Or(p.Sandbox, box)
	return p
}

func (p Policy) check() error {
	if _, err := tool.ParseIsolation(string(p.Isolation)); err != nil {
		return err
	}
	_, err := tool.ParseSandbox(string(p.Sandbox))
	return err
}

// groupKey is shared by all processes of a group: tools with different ones never share a
// process, not even during import.
type groupKey struct {
	sandbox tool.Sandbox
	env     string // all variables
}

// poolKey is shared by all calls of a pool.
type poolKey struct {
	groupKey
	async     bool
	isolation toolmesh.Isolation
	limits    tool.Limits
	session   string // of isolation session, as are epoch and home: see [Call]
	epoch     string
	home      string
	tool      string // for isolation fresh: its workers import this tool only
	suspect   string // the only tool of the pool, because it may have crashed others
}
