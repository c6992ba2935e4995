// Package lane decides which calls must not overlap, and in what order they take
// turns: [Rule] says what one call touches, [Queue] gives the turns.
//
// A Queue is one domain: the calls of a batch, of a session, or of the mesh. It does
// no I/O, starts no goroutine and takes no lock: its owner holds one around it.
package lane
