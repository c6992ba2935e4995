// Package host makes a process a node of the mesh: it subscribes the subjects of the tools
// that it is given, checks and admits each request, hands it to the tool's [Handler], and
// answers in the form that the caller used, with chunks stored and delivered for streams. It
// drains without losing a call.
//
// A host never runs anything by itself: a Go function, a Python worker and an MCP server are
// all Handlers, so it links neither the executor nor a broker. It never answers a reply
// subject that [subjects.ReplyAllowed] refuses.
//
// # Owners
//
// A [Host] wires its parts together, starts and stops them. Each part owns its state, and all
// share core: the node's identity, its connection and its rooms.
//
//	intake      request.go, intake.go   requests become calls: receive is the way of each
//	runner      run.go, relay.go        calls run, here or on another node, and are answered
//	publisher   publisher.go            services, and (records.go) their records in the registry
//	streams     streams.go              stored chunks, and requests for them
//	listeners   listeners.go            the goroutines that requests come on
//
// The rooms, in host/internal, know nothing of the host:
//
//	admit       whether a call runs: slots, names, repetitions, cancels
//	sessions    which sessions exist, and their epochs
//	once        idempotency keys
//	reply       answers: held, paced, by reference
//	stream      the readers of a call, and the stream that it may yield
//	quota       the bytes that a session stores in streams
//	presence    the node's lease and heartbeat; whether this process still is the node
//	lane        which calls must not overlap; grants: lanes across nodes
//	batch       the calls of a batch
//
// # Goroutines
//
// Requests come through a channel, not in NATS callbacks. One goroutine of the listeners
// takes a request all the way, from its subject to its answer. There are as many of these
// goroutines as calls in flight, and at most 256 more that wait for requests. For as long as
// the host serves, there are also two of the host (a ticker, and one that follows the sessions
// in which it serves), two of presence, that of the lease, those of the view of sessions if
// the host has its own, and those of nats.go for five subscriptions with a callback and for
// the service discovery. Reading stored chunks, ending a stream whose handler does not return,
// and looking a session up have a goroutine each while they last.
//
// The callbacks parse and look calls up. That of cancels also ends the call's context and
// answers; that of requests for stored chunks waits while 16 of them are being answered; that
// of the node's own heartbeats only notes them.
//
// # Requests of a call
//
// A unary call makes no subscription and no JetStream request. It reads the registry in one
// case: before it is refused because its session is unknown, or has ended, as far as the view
// says. A stream does so too if the view knows of no creation of its session. Such a question
// is asked once for all that wait for it, with the call's slot held. After a freeze or a cut
// the first requests wait until the lease has been renewed, and those with a deadline until
// the broker has told the time.
package host
