// Package zygote starts worker processes of Python quickly, by forking a process that has
// imported an index's tools: the zygote.
//
// A [Starter] belongs to an executor: it has one base process for each interpreter, with the
// modules that most tools import. A [Group] is the tools of an index that share an environment
// and a sandbox. It starts zygotes, each a copy of the base or an interpreter of its own; they
// are confined before they read anything of the index, and become or fork its workers. A
// [Process] is one worker: the pipes, the page and the signals between it and its pool.
//
// # States of a group
//
//	            Open: SETUP          DESCRIBED
//	NewGroup ──────────────> [ importing ] ──────────> [ open ] ──> Start: a worker
//	                          │   ^    │                 │   ^
//	  a module hangs, breaks  │   │    │ anything else   │   │ the next Start begins
//	  the protocol or ends    └───┘    v                 v   │ a zygote that must offer
//	  the process: it is left          failed        [ no zygote ] the same tools
//	  out, and the import                            (it ended: its
//	  begins anew                                     workers too)
//	any ── Close ──> closed: every process is killed, and waited for
//
// # States of a zygote
//
//	started ──> [ setting up ] ──> [ ready ] ── FORK ──> [ forking ] ──> [ ready ]
//	                 │                │                      │
//	                 │                └── BECOME ──> the worker itself (tools that must not
//	                 v                               be forked, and isolation fresh)
//	              ended <── the process ends: the workers whose end it can no longer
//	                        report are lost
//
// After CONFINED every message of a zygote may come from code of the index. A zygote answers one
// FORK at a time, so that the descriptors of answers cannot mix; it reports the exit of each
// worker by the worker's id.
//
// # States of a base
//
//	wanted ──> [ starting ] ──> [ ready ] ──> copies ──> ended (killed, or its interpreter
//	                 │                                    was replaced): the next index
//	                 v                                    has another started
//	              failed: for a minute each index starts an interpreter of its own
//
// # Why it is safe
//
//   - One goroutine at a time replaces a group's current zygote (renewing); the others wait, and
//     then use the new one.
//   - Every zygote is in its group's list from its start to its end, and Close kills all of
//     them: with a zygote end its workers and all their processes, by the kernel (process
//     namespaces) or by the process above them (sandbox).
//   - Processes are signalled through a [sandbox.Handle], never by id.
//
// The package does not know calls, queues or sessions: those are between a worker and its
// pool.
package zygote
