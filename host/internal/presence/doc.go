// Package presence is a process's claim to be a node of the mesh: it takes the
// node's lease, sends its heartbeats, and knows at each instant whether another process
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
// process is uncertain nothing is started or sent in the node's name: [Presence.Confirm]
// waits for the next state. Once it is lost, requests are left to the other process,
// and heartbeats and messages of a drain stop.
//
// # Why no two processes are certain
//
// Let S be [registry.Silence], 2.5 s. A process takes a node's id over only after it has
// listened for S without a heartbeat of the node. So a delivered heartbeat keeps the id for S:
//
//	certain until = time of sending + S  <=  time of delivery + S  <=  earliest takeover
//
// The time of sending is used because the process knows it; delivery is later. A heartbeat that
// has come back was routed by the broker, and so to all listeners. It counts only while the
// process is certain, in an unbroken row: after a gap another process may have taken over in
// between, and then only the lease decides, which is changed by compare-and-set. Both clocks are
// checked, as the monotonic one may stop while a machine sleeps.
//
// Two cases are outside of that argument. Behind a partition of the broker's cluster a heartbeat
// comes back that the other side does not receive: a heartbeat of another boot makes the process
// uncertain as soon as it arrives. And where the broker answers but the registry does not, the
// process goes on as the node, since calls need no JetStream, and a lease cannot be taken over
// from a registry that does not answer. See docs/decisions/018.
//
// # Inside
//
// All state is in [Presence], changed under one lock by the methods of standing.go and
// by two goroutines from [Presence.Start] to [Presence.Stop]: one maintains the lease and the
// node's records, one sends heartbeats and confirms the node. Nothing is sent and no
// function of [Options] is called under that lock. The check of each request
// ([Presence.Certain]) costs two atomic loads and a look at the clock.
package presence
