// Package subjects owns every name that the mesh uses on NATS: the typed ids,
// the encoding of a name as a subject token, and the building, parsing and
// matching of every subject, stream, bucket, key and queue group of
// docs/protocol, sections 1 and 2. No other package holds a subject literal.
//
// # Use
//
// Ids are string types ([ToolID], [SessionID], [NodeID] and others), so that constants need no
// constructor. A builder, such as [Tool] or [Registry], validates them and returns a subject;
// [Parse] turns a subject back into a [Subject], and both agree for every name. A name with
// characters that a token cannot have is encoded, and one that is too long is hashed:
// [EncodeToken] and [IsHashed]. [NodeRights] and its neighbours are the permissions of users, and
// [Globs] match tool ids.
//
// A builder's error says which part cannot travel and why; it has no code, and the caller adds
// one. Lengths are bytes.
//
// It also decides which reply subjects a serving side may answer
// ([ReplyAllowed]). It imports only the standard library and does no I/O; every
// function may be called concurrently. Read on: docs/protocol/names.md.
package subjects
