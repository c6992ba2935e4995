// Package grants grants calls their lanes beyond one batch: those of a session, of the mesh, and
// of one node. [host/internal/lane] is the order among waiting calls; this package is about which
// node grants, how long a grant is valid, and what happens when a node is lost.
//
// # Owners
//
// The lanes of a session, and those of the mesh, are a domain. A domain has one owner: the node
// that first needed it, whose name is in MESH_LANES while it is in use. The owner keeps all
// holds in memory. Other nodes ask it, with one message to acquire a lane and one to release it;
// they ask the store only while the owner is unknown. The lanes of a node are its own, and need
// neither.
//
// # Validity
//
// An owner is valid as long as its node's lease ([Options.Lease]): 8 s after its last renewal it
// grants nothing more, and at the earliest 10 s after it another node may own the domain. Its
// grants end with it: a [Grant] is valid until the end of the owner's lease
// that the last request saw, counted from its sending. The holder renews every 2 s. Without an answer the
// call is told to stop a moment before the end, and its zygote stops its worker before it, even
// if this process is frozen.
//
// So no node has to notice the end of another one: an owner or holder that is killed, frozen or
// cut off has stopped before another may begin. All of it depends on clocks of equal speed, not
// on clocks that agree.
//
// # Workers of sessions
//
// A [Home] is a domain without lanes: its owner has the worker of a session for an index, and
// runs the calls. Other nodes pass them on to it.
//
// # First come, first served
//
// Lanes are granted in the order in which requests reach the owner. A new owner begins with an
// empty queue, in which waiting calls line up again.
//
// It never runs a tool and knows none.
package grants
