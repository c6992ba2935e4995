// Package program runs tools that are commands: programs of any language, one
// process per call.
//
// A [Runner] belongs to one index. Each call starts startup/command.py, an interpreter of
// its own that sees to the sandbox, the limits and the end of everything that the
// program starts; the program itself is its child. Arguments are a list, never a
// line for a shell. What the program writes to stdout is the result: text, one JSON
// value, or an item per line. What it writes to stderr are log lines.
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
// A run is owned by the goroutine of its call. Its helpers (stderr, the end of ctx,
// the look at its limits) tell it through r.breach and r.exceeded only, and have
// ended when the call returns.
//
// # States of a runner
//
//	[ open ] ── Close ──> [ closing: no new calls ] ── idle, or ctx ends: the rest is killed ──> [ closed ]
//
// The package must never read the environment, know an index beyond its [Config],
// or let a text with a secret out: errors and log lines go through Config.Redact.
package program
