// Package admit decides whether a node runs a call: it counts the node's slots and
// shares them out between sessions that want more than there are, knows the calls in flight, recognises a repeated call, keeps the recent results
// for repetitions and the names of those whose results have given way, knows since
// when it remembers, and remembers cancels that overtook their call.
//
// All state is in one [Table] that is changed under one lock by Begin, Finish
// and Cancel. It does no I/O, starts no goroutine, and never looks into
// arguments or results.
package admit
