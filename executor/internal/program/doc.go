// Package program runs tools that are commands: programs of any language, one
// process per call.
//
// A [Runner] belongs to one index. Each call starts startup/command.py, an interpreter that
// sets up the sandbox, the limits and the end of all processes; the program is its child.
// Arguments are a list, never a line for a shell. The program's stdout is the result: text, one
// JSON value, or an item per line. Its stderr becomes log lines.
//
// # States of a run
//
//	Call
//	  │ a place is free
//	  v
//	[ launched ] ── into its control group ──> [ bounded ]
//	                                               │ request: level, limits, argv, environment
//	                                               v
//	          ctx ends, or CPU time exceeded  [ running ]  memory or processes exceeded,
//	        ┌──────────────────────────────────────┤       output too long, sink's error,
//	        │                                      │       Close cuts off
//	        v                                      ├───────────────────────┐
//	[ asked to end: SIGTERM ]                      │                       │
//	        │ Grace                                │ it ends by itself     │
//	        └─────────────> killed <───────────────┼───────────────────────┘
//	                          │                    │
//	                          v                    v
//	                       [ ended: nothing that it started is left ] ──> result or error
//
// A run is owned by the goroutine of its call. Its helpers (stderr, the check of limits) report only
// through r.breach, and have ended when the call returns.
//
// # States of a runner
//
//	[ open ] ── Close ──> [ closing: no new calls ] ── idle, or ctx ends: the rest is killed ──> [ closed ]
//
// The package does not read the environment, knows of an index only its [Config], and never
// shows a secret: errors and log lines go through Config.Redact.
package program
