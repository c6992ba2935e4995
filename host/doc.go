// Package host makes a process a node of the mesh: it subscribes the subjects
// of the tools it is given, checks and admits each request, hands it to the
// tool's [Handler], and answers in the form that the caller used, with chunks
// stored and delivered for streams. It drains without losing a call. What decides
// whether a call runs is in host/internal/admit; the node's lease and heartbeat, and whether
// this process still is the node, are in host/internal/presence; streams, and all that read a
// call, are in host/internal/stream; what a session may store in streams is in host/internal/quota.
//
// A host never runs anything by itself: a Go function, a Python worker and an
// MCP server are all Handlers, so it links neither the executor nor a broker. It
// never answers a reply subject that [subjects.ReplyAllowed] refuses.
//
// # What runs where
//
// Requests come through a channel, not in NATS callbacks. A goroutine of the intake
// takes one request all the way, from its subject to its answer: receive, in call.go,
// is the list of the steps. There are as many of these goroutines as calls in flight,
// and at most 256 more that wait for requests. Beside them, for as long as the host
// serves, there are two of the host (a ticker, and one that follows the sessions in
// which it serves), two of presence, that of the lease, those of the view of sessions
// if the host has its own, and those of nats.go for five subscriptions with a callback
// and for the service discovery. Reading stored chunks, ending a stream whose handler
// does not return, and looking a session up have a goroutine each while they last.
//
// The callbacks parse and look calls up. That of cancels also ends the call's context
// and answers; that of requests for stored chunks waits while 16 of them are
// being answered; that of the node's own heartbeats only notes them.
//
// # What a call asks of others
//
// A unary call makes no subscription and no JetStream request. It reads the registry in
// one case: before it is refused since its session is not known, or has ended, as far
// as the view says. A stream does so too if the view knows of no creation of its
// session. Such a question is asked once for all that wait for it, with the call's slot
// taken. After a freeze or a cut the first requests wait until the lease has been
// renewed, and those with a deadline until the broker has told the time.
package host
