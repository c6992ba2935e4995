// Package presence is a process's claim to be a node of the mesh: it takes the
// node's lease, beats its heart, and knows at each instant whether another process
// may have become the node.
//
// # States
//
//	              own heartbeat comes back: until = its sending + 2.5 s
//	                          ┌────────┐
//	                          │        ▼
//	new ──Start──────────▶  certain (now < until)
//	                          │        ▲
//	   now >= until, or       │        │  the broker answers, and the lease is renewed
//	   another boot is heard  ▼        │  or the registry says nothing for 2 s
//	                        uncertain ─┘
//	                          │
//	   the lease has another  ▼
//	   process's boot       lost (for good)
//
// The renewal of the lease, every 3 s, leads from certain to lost as well. While a
// process is uncertain nothing is started or said in the node's name: [Presence.Confirm]
// waits for the next state. Once it is lost, requests are left to the other process,
// and there are no heartbeats and no word of a drain.
//
// # Why no two processes are certain
//
// Let S be [registry.Silence], 2.5 s. A process takes a node's id over only after it
// has listened for S and heard no heartbeat of it. So a heartbeat that was delivered
// keeps the id for S after it was delivered:
//
//	certain until = time of sending + S  <=  time of delivery + S  <=  earliest takeover
//
// The time of sending is used since the process knows it; that of delivery is later. A
// heartbeat that has come back was delivered by the broker, and the broker delivers
// what it routes to all that listen. It counts only while the process is certain, as
// part of an unbroken row: after a gap another process may have taken over in between,
// and then the lease alone decides, which is changed by compare-and-set. Both clocks
// are looked at, as the monotonic one may stand while a machine sleeps.
//
// Two things are outside of that argument. Behind a partition of the broker's cluster
// a heartbeat comes back that the other side does not hear: another boot's heartbeat,
// once it is heard, makes the process uncertain at once. And where the broker answers
// but the registry does not, the process goes on as the node, since calls need no
// JetStream; nobody can take a lease over from a registry that does not answer. See
// docs/decisions/018.
//
// # Inside
//
// All state is in [Presence], changed under one lock by the methods of standing.go and
// by two goroutines from [Presence.Start] to [Presence.Stop]: one has the lease and what
// the registry is to say of the node, one sends heartbeats and asks whose the node is.
// Nothing is sent and no function of [Options] is called under that lock. What each
// request looks at ([Presence.Certain]) costs two atomic loads and a look at the clock.
package presence
