// Package task runs durable tasks: calls that a caller submits, and that are made even if the
// caller, the runner or the broker is lost in the meantime. A [Service] answers the requests
// of callers (mesh.task.<session>.<verb>) and runs queued tasks. Every agent and router has one,
// and they are equal.
//
// # What is stored
//
// The record of a task in the bucket MESH_TASKSTATE is the task: its name, its call, its state,
// attempts and result. Each change is a compare-and-set. The message in the queue MESH_TASKS only
// asks a runner to read the record, and so may exist twice:
//
//	           submit                        ┌── attempt failed, after a while ──┐
//	(none) ──────────────▶ queued ──▶ running ──────────────────────────────────┘
//	   │                     ▲           ├──▶ succeeded
//	   └──▶ scheduled ── due ┘           ├──▶ failed ── retry ──▶ queued
//	                                     └──▶ cancelled
//
// A runner writes "running" once a call has taken a moment, which spares short calls the
// write. A second runner that reads the record before that makes the same call under the
// same idempotency key, and joins it.
//
// # Why it is safe
//
// The broker delivers a message to one runner, and again when that runner is silent for
// ackWait. Each attempt has an idempotency key of its own: the next runner gets the outcome
// of the node that runs the attempt, and begins no second one. The outcome of an attempt
// counts when it is written over the record that the runner has read: callers see one
// result, even if two runners have it. Only then is the message acknowledged.
//
// # Which task is next
//
// A task is queued by its priority and by its level: how many tasks of its session are
// queued already with that priority. Each priority and level has a consumer, and runners take
// the lowest level first. So the first tasks of a session run before the thousands of another
// one. One time in four a runner begins at the other end, so that those make progress, too.
//
// The package does not run tools or choose nodes: the client does.
package task
