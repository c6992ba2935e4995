// Package payloads moves values above a message's size to and from the mesh's object store. Callers
// have no right to that store: a node acts for them, on subjects of their session ([Server]);
// [Put], [Get] and [Delete] are the caller's side. Nodes use [Load], [Store] and [Copy] for
// themselves.
//
// It holds pieces of a value, never all of one, but for Load. It must never name a value
// of another session than that of the subject that was asked on.
package payloads
