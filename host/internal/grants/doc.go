// Package grants gives calls their turns in lanes that reach beyond one batch: those of a
// session, of the mesh, and of one node. [host/internal/lane] says who has to wait for whom; this
// package says who decides that, for how long a decision stands, and what happens when
// somebody is lost.
//
// # Who decides
//
// The lanes of a session, and those of the mesh, are a domain. A domain has one owner:
// the node that first needed it, whose name stands in MESH_LANES for as long as it is in
// use. The owner keeps all turns in memory. Others ask it, with one message for a turn and
// one to give it back; the store is asked where the owner is not known, and no more. The
// lanes of a node are that node's own, and need neither.
//
// # For how long
//
// An owner is one as long as its node's lease stands ([Options.Lease]): 8 s after its last
// renewal it grants nothing any more, and another node may own the domain 10 s after it at
// the earliest. What it grants ends with it: a [Grant] stands until the owner's lease did
// when it was asked last, counted from when it was asked. Who holds a grant asks again
// every 2 s. Where no answer comes, the call is told to stop a moment before the end, and
// its worker is stopped before it, by its zygote, should this process be frozen.
//
// So nobody has to hear of anybody's death: an owner, or a holder, that is killed, frozen
// or cut off has let go by the time at which another one may begin. All of it rests on clocks
// that run equally fast, not on clocks that agree.
//
// # Workers of sessions
//
// A [Home] is a domain without turns: its owner has the worker of a session for an index, and
// runs the calls. The others pass them on to it.
//
// # First come, first served
//
// Turns are granted in the order in which the owner hears of them. A new owner begins
// with an empty queue, in which those that wait line up anew.
//
// A package of the host's: nothing here knows of tools, and it never runs one.
package grants
