// Package bus is what the mesh asks of one NATS connection: the connection
// policy, one reply inbox for all calls, mesh time and connection state. What
// the mesh keeps in JetStream is package store's.
//
// An [Exchange] is a request that waits for a node, and the rule of what that node's
// silence means; a [Peer] is such a node, with its heartbeats.
//
// The unary path is [Bus.Open] or [Bus.Request]: one map entry and one publish,
// no subscription, no goroutine and no timer per call.
//
// These goroutines belong to a [Bus]: one sees the connection's state, one
// measures the broker's clock, one ticks and sees when this process was frozen,
// and from the first call on one reads the replies.
// [Bus.Close] ends them and leaves the connection open: it is the caller's. A
// connection of [ConnectOptions] has one more while its broker does not read.
//
// The package never subscribes per call, and knows nothing of tools.
package bus
