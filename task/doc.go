// Package task runs durable tasks: calls that somebody has handed in and that are made
// whatever becomes of him, of who makes them, and of the broker meanwhile. A [Service]
// answers what callers ask (mesh.task.<session>.<verb>) and runs what is queued, as one of
// all agents and routers; nobody leads.
//
// # What is stored
//
// A task's record in the bucket MESH_TASKSTATE is the task: its name, what it calls, its
// state, attempts and result. Each change is a compare-and-set. The message in the queue
// MESH_TASKS only says that somebody is to look at the record, and so may be there twice:
//
//	           submit                        ┌── attempt failed, after a while ──┐
//	(none) ──────────────▶ queued ──▶ running ──────────────────────────────────┘
//	   │                     ▲           ├──▶ succeeded
//	   └──▶ scheduled ── due ┘           ├──▶ failed ── retry ──▶ queued
//	                                     └──▶ cancelled
//
// "running" is written when a call has taken a moment, so that calls which do not are spared
// the write. Whoever looks at a record in between makes the same call under the same
// idempotency key, and joins it.
//
// # Why it is safe
//
// The broker delivers a message to one runner, and again when that one says nothing for
// ackWait. Each attempt has an idempotency key of its own, so that the next runner gets what
// the node that runs the attempt comes to, and begins no second one beside it. What an
// attempt ended with counts when it is written over the record that the runner has read:
// one result is seen, also when two runners have it. Then only is the message done.
//
// # Who is next
//
// A task is queued by its priority, and by how many tasks of its session are queued already
// with that priority: its level. Each priority and level has a consumer, and runners take
// the lowest level first. So a session's first tasks stand before the thousands of another
// one. One time in four they begin at the other end, so that those come along, too.
//
// The package never runs a tool and never chooses a node: that is the client's.
package task
