// Package picker chooses the node for a call: the better of two random ones.
// What a node said of its load last is corrected by the calls that this process
// has sent it since, so that a burst spreads before the next heartbeat.
//
// It does no I/O and starts no goroutine.
package picker
