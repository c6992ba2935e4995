// Package output takes what tools print: it captures, cuts into lines, bounds the
// rate and removes secrets.
//
// A process writes in two ways. What goes through Python's sys.stdout, sys.stderr
// and logging arrives as LOG frames, which [RecordOf] reads. What bypasses them (a
// child, C code, os.write) arrives in the pipes of the descriptors 1 and 2, each
// read by a [Pipe]. A [Tail] keeps the last words for the error of a call whose
// process ends, and a [Redactor] knows the secrets of one index.
//
// # States
//
// What a pipe brings belongs to the call that runs when it is read; a line break
// or the end of the call hands it over:
//
//	            data                    line break, or too long
//	[ empty ] ────────> [ partial line ] ───────────────────────> handed over
//	     ^                     │                                      │
//	     │                     │ Settle: the call ends                │
//	     └─────────────────────┴──────────────────────────────────────┘
//
//	any ── the rate is exceeded ──> data is read and dropped, what was kept stays
//	any ── Close ──> flushed, settled, closed
//
// Reading and handing over are one step under the lock that [NewPipe] is given, the
// same for all pipes of a worker and for the end of its calls: output is handed over
// before the end of the call that made it, or to no call.
//
// The package must never decide whose output it is: its owner says so.
package output
