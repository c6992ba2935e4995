// Package registry knows which node serves which tool: the records that nodes
// write into the mesh's buckets, the lease that makes a process a node, the view
// of all of it that agents and routers hold (other hosts hold one of the sessions
// alone), and the answers they give to clients, which hold nothing.
//
// A [View] is a snapshot by batched direct gets plus the buckets' republished
// changes. Changes are applied by revision, per key, so that a snapshot and the
// changes that arrive while it is read need no order between them; a hole in the
// sequence of a bucket is read again. No consumer is made, so the number of views
// is not limited by JetStream.
//
// A node can be called when four things agree on its boot: its lease, what it
// says it serves, its heartbeat, and that this is not older than 2.5 s. Such
// nodes are the candidates of an answer, and the client that asked chooses between
// them.
//
// The package never runs a tool and is not on the path of a call.
package registry
