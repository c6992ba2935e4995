// Package bus is the mesh's use of one NATS connection: the connection policy, one reply inbox for
// all calls, mesh time and connection state. JetStream is in package store.
//
// An [Exchange] is a request that waits for a node, with the rule for that node's silence; a
// [Peer] is such a node, with its heartbeats.
//
// The unary path is [Bus.Open] or [Bus.Request]: one map entry and one publish,
// no subscription, no goroutine and no timer per call.
//
// A [Bus] has these goroutines: one for the connection's state, one that measures the broker's
// clock, one that ticks and notices when this process was frozen, and from the first call on
// one that reads the replies. [Bus.Close] ends them and leaves the connection, which is the
// caller's, open. A connection of [ConnectOptions] has one more while its broker does not
// read.
//
// The package does not subscribe per call, and knows nothing of tools.
package bus
