package executor

import (
	"encoding/json"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
	"github.com/toolmesh/toolmesh/executor/internal/program"
	"github.com/toolmesh/toolmesh/executor/internal/zygote"
)

// Types of the packages below, which do the work, as this package's callers see them.
type (
	// Kind says how a tool is run.
	Kind = zygote.Kind
	// Tool is one served function, as its signature describes it. Further positional
	// arguments of one with VarArgs go into [Call.VarArgs].
	Tool = zygote.Tool
	// Unavailable is a declared tool that is not served.
	Unavailable = zygote.Unavailable
	// Nested makes the calls that a tool makes.
	Nested = pool.Nested
	// Lane is the lane that a call holds.
	Lane = pool.Lane
	// Workers counts workers and calls of pools.
	Workers = pool.Stats
	// Commands runs the commands of an index. [Executor.OpenCommands] makes one.
	Commands = program.Runner
	// CommandCall is one execution of a command.
	CommandCall = program.Call
	// Sink takes the items of a call, and what its tool prints and logs.
	Sink = output.Sink
	// Record is one piece of what a tool prints, logs or says of its progress.
	Record = output.Record
	// Stream is where a record comes from.
	Stream = output.Stream
)

// The streams of records.
const (
	StreamStdout   = output.StreamStdout
	StreamStderr   = output.StreamStderr
	StreamLog      = output.StreamLog
	StreamProgress = output.StreamProgress
)

// Call is one execution of a tool.
type Call struct {
	Tool string // a [Tool.Name]
	// RPCID names the call in log lines. It need not be unique here.
	RPCID string
	// Session is whose call it is; calls of one session share the workers that
	// isolation session leases to it.
	Session string
	// Account is whose turn it takes when calls wait for workers: sessions may share
	// one. Empty is one like others.
	Account string
	// Epoch tells the session from others of its name; empty for one that nobody created.
	// Home tells its worker, of isolation session, from an earlier one whose state is old:
	// the session had another one since, elsewhere.
	Epoch, Home string
	// Isolation tightens that of the tool's [Policy]; a looser one is ignored.
	Isolation toolmesh.Isolation
	// Args is the arguments object, passed through unparsed; empty means none.
	Args json.RawMessage
	// VarArgs is an array of further positional arguments, for tools that take them.
	VarArgs json.RawMessage
	// Stream gives a generator's items to the sink one by one; a plain
	// function's result is then its one item.
	Stream bool
	// Collect makes a generator's result the list of its items instead of the
	// last. Ignored with Stream.
	Collect bool
	// Nested makes the calls that the tool makes. Without it they fail.
	Nested Nested
	// Lane is the call's turn in a lane; nil for most.
	Lane Lane
	// Depth is how many calls are above this one, when a tool made it: by this
	// the index sees to it that calls never wait for each other in a circle.
	Depth int
}

// Stats is a moment's view of an [Index].
type Stats struct {
	pool.Stats     // of all its pools
	Root       int // pid of the process above them all
	// ForkUnsafe is why tools of the index are not forked; empty when all are.
	ForkUnsafe string
	// Quarantined are the tools whose calls are refused for a while, because they
	// killed too many workers.
	Quarantined []string
}
