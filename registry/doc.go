// Package registry knows which node serves which tool: the records that nodes
// write into the mesh's buckets, the lease that makes a process a node, the view
// of all of it that agents and routers hold (other hosts hold one of the sessions
// alone), and the answers they give to clients, which hold nothing.
//
// # Use
//
// Callers need only the types of this package that package client returns, such as
// [ListedTool]. A program that shows the mesh, or chooses nodes itself, holds a [View]:
// [NewConn] wraps a NATS connection, [OpenView] reads the registry and follows it, and
// [View.Notify] tells of changes. One [Conn] serves a view, a client and a host.
//
//	View        the whole registry in memory: tools, nodes, indexes, sessions
//	Store       records other than a node's own, read and written one at a time
//	Lease       a node's own records; package host holds it
//	Responder   answers the questions of clients from a view
//
// # How a view stays true
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
// # Errors, units and concurrency
//
// Errors are [toolmesh.Error] values: tool_not_found with details.nearest for a name that no tool
// has, unavailable while the store cannot be read. Fields that end in MS are milliseconds; other
// times are durations, and [LeaseTTL] and its neighbours the times of a lease. The methods of all
// types may be called concurrently; those of a view send no message.
//
// The package never runs a tool and is not on the path of a call. Read on:
// docs/protocol/names.md for the buckets, docs/scale.md for what a view costs.
package registry
