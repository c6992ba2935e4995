// Package payloads moves values that are too large for a message to and from the mesh's
// object store, for callers that have no right to that: a node does it for them, on
// subjects of their session ([Server]), and [Put], [Get] and [Delete] are the caller's
// side. What a node needs itself it reads and stores with [Load], [Store] and [Copy].
//
// It holds pieces of a value, never all of one, but for Load. It must never name a value
// of another session than that of the subject that was asked on.
package payloads
