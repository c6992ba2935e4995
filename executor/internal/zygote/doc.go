// Package zygote starts worker processes of Python: quickly, because a process that
// has imported an index's tools, the zygote, is forked for each.
//
// A [Starter] is an executor's: it has the base processes, one for each interpreter,
// which have imported what most tools import. A [Group] is the tools of an index that
// share an environment and a sandbox; it starts zygotes, each a copy of the base or an
// interpreter of its own, which are confined before they take anything of the index, and
// makes workers of them. A [Process] is one worker: the
// pipes, the page and the signals by which a pool speaks with it.
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
// All that a zygote says after CONFINED may be said by code of the index. It answers one FORK at a time, for the descriptors in its answers must not mix;
// it reports the exit of each worker by the worker's id.
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
//   - A group's current zygote is replaced by one goroutine at a time (renewing), under
//     which the others wait, and then use the new one.
//   - Every zygote is in its group's list from its start to its end, and Close kills all of
//     them: with a zygote, its workers and all that they started end, by the kernel
//     (process namespaces) or by the process above them (sandbox).
//   - A process's id is never used to signal it: a [sandbox.Handle] is.
//
// The package must never know of calls, queues or sessions: what a worker does is
// between it and its pool.
package zygote
