// Package quota counts what each session has stored through a node within the time
// that the store keeps it, and holds it to a limit.
//
// A reservation is made before something is sent to the store, and given back if the
// store has not taken it. It ages with what is stored:
//
//	Take ──▶ reserved ──their time──▶ gone
//	            │
//	            └──Give (the store has not taken it)──▶ gone
//
// Bytes age in slices, a fifteenth of the time, so that a session costs the same memory however
// much it stores, and Sweep forgets those that store nothing. All state is in one
// [Quota] that is changed under one lock. It does no I/O and starts no goroutine.
package quota
