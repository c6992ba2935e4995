// Package client is the caller's side of the mesh: calls, streams, cancels, and
// questions to the registry, over a NATS connection of one's own.
//
// A [Client] sends a tool's first call to the queue group. From then on it asks
// the registry, beside the calls and never in their way, which nodes serve the
// tool, and sends each call to the better of two of them. It listens to the
// heartbeats of the few nodes it uses, and to nothing else.
//
// What it promises: a sent request runs at most once (it sends again only what
// provably did not start, or is declared idempotent); a caller learns within
// three seconds that the node of its call is gone; a stream arrives in order,
// without gap or repeat, and ends exactly once. It holds no registry, links no
// executor and no broker.
package client
