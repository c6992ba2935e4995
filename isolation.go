package toolmesh

import "slices"

// Isolation selects the process that runs a call. Empty: warm, or in a request the tool's
// declaration.
type Isolation string

// The isolations, from the cheapest to the most separate.
const (
	// IsolationWarm: a warm worker that serves many calls.
	IsolationWarm Isolation = "warm"
	// IsolationSession: a worker bound to one session.
	IsolationSession Isolation = "session"
	// IsolationFork: a fresh child of the imported environment per call.
	IsolationFork Isolation = "fork"
	// IsolationFresh: a new interpreter per call.
	IsolationFresh Isolation = "fresh"
)

// Isolations lists them, from the cheapest to the most separate.
func Isolations() []Isolation {
	return []Isolation{IsolationWarm, IsolationSession, IsolationFork, IsolationFresh}
}

// Valid reports whether i is one of [Isolations].
func (i Isolation) Valid() bool { return slices.Contains(Isolations(), i) }

// Tighter is the stricter of two isolations; empty asks for nothing.
func (i Isolation) Tighter(other Isolation) Isolation {
	if slices.Index(Isolations(), other) > slices.Index(Isolations(), i) {
		return other
	}
	return i
}
