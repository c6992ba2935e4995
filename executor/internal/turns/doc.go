// Package turns is the queue of calls that wait for a place of an index: for a
// worker, or for one of the programs that may run at once. Accounts take turns,
// whatever one of them sends.
//
// It must never know what waits, or for what.
package turns
