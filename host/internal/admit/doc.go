// Package admit decides whether a node runs a call. It shares the node's slots between sessions,
// knows the calls in flight, and recognises repeated calls: it keeps recent results, the names of
// earlier calls and the time since when it has them, and cancels that overtook their call.
//
// All state is in one [Table], which Begin, Finish and Cancel change under one lock. It does no
// I/O, starts no goroutine, and never looks into arguments or results.
package admit
