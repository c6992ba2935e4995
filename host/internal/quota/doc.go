// Package quota counts the bytes that each session stores through a node, for as long as the
// store keeps them, and enforces a limit.
//
// A reservation is made before bytes are sent to the store, and given back if the store has not
// taken them. It ages with them:
//
//	Take ──▶ reserved ──their time──▶ gone
//	            │
//	            └──Give (the store has not taken it)──▶ gone
//
// Bytes age in slices, a fifteenth of the time, so that a session costs the same memory however
// much it stores, and Sweep forgets those that store nothing. All state is in one
// [Quota], under one lock. It does no I/O and starts no goroutine.
package quota
