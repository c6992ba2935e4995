package executor

import (
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
	// Call is one execution of a tool.
	Call = pool.Call
	// Nested makes the calls that a tool makes.
	Nested = pool.Nested
	// Lane is the lane that a call holds.
	Lane = pool.Lane
	// Recycle says when a worker is replaced.
	Recycle = pool.Recycle
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
