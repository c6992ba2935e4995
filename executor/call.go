package executor

import (
	"encoding/json"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/pool"
	"github.com/toolmesh/toolmesh/executor/zygote"
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
	// Lane is a call's turn in a lane.
	Lane = pool.Lane
)

// The kinds of tools.
const (
	KindSync           = zygote.KindSync
	KindAsync          = zygote.KindAsync
	KindGenerator      = zygote.KindGenerator
	KindAsyncGenerator = zygote.KindAsyncGenerator
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
