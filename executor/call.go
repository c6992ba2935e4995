package executor

import (
	"encoding/json"
	"time"

	"github.com/toolmesh/toolmesh/tool"
)

// Kind says how a tool is run.
type Kind string

// The kinds of tools.
const (
	KindSync           Kind = "sync"
	KindAsync          Kind = "async"
	KindGenerator      Kind = "generator"
	KindAsyncGenerator Kind = "async_generator"
)

// Streaming reports whether tools of the kind yield items.
func (k Kind) Streaming() bool { return k == KindGenerator || k == KindAsyncGenerator }

func (k Kind) async() bool { return k == KindAsync || k == KindAsyncGenerator }

// Tool is one served function, as its signature describes it.
type Tool struct {
	Name         string          `json:"name"` // module.function
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema"` // nil: nothing is known
	Kind         Kind            `json:"kind"`
	// Positional are the parameters that positional arguments fill, in order.
	Positional []string `json:"positional"`
	// VarArgs: further positional arguments go into [Call.VarArgs].
	VarArgs  bool     `json:"varargs"`
	Warnings []string `json:"warnings"`
}

// Unavailable is a declared tool that is not served.
type Unavailable struct {
	Name      string `json:"name"`
	Reason    string `json:"reason"` // for people
	Traceback string `json:"traceback,omitempty"`
}

// Call is one execution of a tool.
type Call struct {
	Tool string // a [Tool.Name]
	// RPCID names the call in log lines. It need not be unique here.
	RPCID string
	// Session is whose call it is; calls of one session share the workers that
	// isolation session leases to it.
	Session string
	// Epoch tells the session from others of its name, earlier and later; empty
	// where it is not known to have been created, which was at Created.
	Epoch   string
	Created time.Time
	// Isolation tightens that of the tool's [Policy]; a looser one is ignored.
	Isolation tool.Isolation
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
	// Depth is how many calls are above this one, when a tool made it: by this
	// the index sees to it that calls never wait for each other in a circle.
	Depth int
}

// Stats is a moment's view of an [Index].
type Stats struct {
	Workers  int   // processes that take calls
	Starting int   // processes on their way
	Busy     int   // calls in workers
	Waiting  int   // calls in the queue
	Restarts int   // workers that ended without being told to, since Open
	Spawned  int   // workers that imported the index themselves because it must not be forked, since Open
	Recycled int   // workers that were replaced for their calls, age or memory, since Open
	Pids     []int // of the workers
	Root     int   // pid of the process above them all
	// ForkUnsafe is why tools of the index are not forked; empty when all are.
	ForkUnsafe string
	// Quarantined are the tools whose calls are refused for a while, because they
	// killed too many workers.
	Quarantined []string
}
