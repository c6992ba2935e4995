// Package output handles the output of tools: it captures it, cuts it into lines, limits its
// rate and removes secrets.
//
// A process writes in two ways. Output through Python's sys.stdout, sys.stderr and logging
// arrives as LOG frames, which [RecordOf] reads. Output that bypasses them (of a child, C code
// or os.write) arrives in the pipes of the descriptors 1 and 2, each read by a [Pipe]. A
// [Tail] keeps the end of it for the error of a call whose process ends, and a [Redactor] knows
// the secrets of one index.
//
// # States
//
// Data of a pipe belongs to the call that runs when it is read; a line break
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
// Reading and passing on are one step under the lock of [NewPipe], which all pipes of a worker
// share with the end of its calls: output is passed on before the end of the call that made it,
// or to no call.
//
// The package does not decide to which call output belongs: its owner does.
package output
