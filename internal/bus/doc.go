// Package bus is what the mesh asks of one NATS connection: the connection
// policy, one reply inbox for all calls, mesh time, connection state, the
// mesh's streams and buckets, and reads and writes of them.
//
// The unary path is [Bus.Open] or [Bus.Request]: one map entry and one publish,
// no subscription, no goroutine and no timer per call. Everything that needs
// JetStream is away from it.
//
// Five goroutines belong to a [Bus]: one sees the connection's state, one ticks and
// sees when this process was frozen, two measure the broker's clock (one asks, the
// other ends the question with the Bus), and one hands out replies, from the first
// [Bus.Open] on. A ping has one of its own until it is answered. [Bus.Close] ends them
// and leaves the connection open: it is the caller's. A connection of [ConnectOptions]
// has one more while its broker does not read.
//
// The package never makes a consumer, never subscribes per call, and knows
// nothing of tools, sessions or the form of messages.
package bus
