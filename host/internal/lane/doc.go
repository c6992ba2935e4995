// Package lane decides which calls must not overlap, and their order: [Rule] returns the [Key] of
// a call, [Queue] its turn.
//
// A Queue is one domain: the calls of a batch, of a session, or of the mesh. It does no I/O,
// starts no goroutine and takes no lock: its owner holds one around it.
package lane
