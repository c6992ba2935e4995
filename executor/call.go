package executor

import (
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
	"github.com/toolmesh/toolmesh/executor/internal/program"
	"github.com/toolmesh/toolmesh/executor/internal/zygote"
)

// Types of internal packages under the names that callers use.
type (
	// Kind is how a tool is executed.
	FunctionKind = zygote.Kind
	// Function is one served function, described by its signature. [Call.VarArgs] has the further
	// positional arguments of a tool with VarArgs.
	Function = zygote.Tool
	// NotServed is a declared tool that is not served.
	NotServed = zygote.Unavailable
	// Call is one execution of a tool.
	Call = pool.Call
	// Nested makes the calls that a tool makes.
	Nested = pool.Nested
	// HeldLane is the lane that a call holds.
	HeldLane = pool.Lane
	// Recycle configures when a worker is replaced.
	Recycle = pool.Recycle
	// Workers counts workers and calls of pools.
	Workers = pool.Stats
	// Commands runs the commands of an index. [Executor.OpenCommands] makes one.
	Commands = program.Runner
	// CommandCall is one execution of a command.
	CommandCall = program.Call
	// Sink receives the items of a call and its tool's output.
	Output = output.Sink
	// Record is one piece of a tool's output, logs or progress.
	Record = output.Record
	// Stream is the source of a record.
	Stream = output.Stream
)

// The streams of records.
const (
	StreamStdout   = output.StreamStdout
	StreamStderr   = output.StreamStderr
	StreamLog      = output.StreamLog
	StreamProgress = output.StreamProgress
)
