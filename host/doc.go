// Package host makes a process a node of the mesh: it subscribes the subjects
// of the tools it is given, checks and admits each request, hands it to the
// tool's [Handler], and answers in the form that the caller used, with chunks
// stored and delivered for streams. It renews the node's lease, beats its
// heart, and drains without losing a call.
//
// A host never runs anything by itself: a Go function, a Python worker and an
// MCP server are all Handlers, so it links neither the executor nor a broker.
// Inside NATS callbacks it only parses and admits. It never answers a reply
// subject that [subjects.ReplyAllowed] refuses, and makes no subscription, no
// registry read and no JetStream request for a unary call.
package host
